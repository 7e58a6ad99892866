/* Shows attention maps, wherever they come from. Imports nothing, so that it can stand in a page of its own.

mount(root, source, address) needs
    source.runs()                  a promise of [{run, steps}]; a run without maps has no steps
    source.header(run, step)       of the header that vit/inspection/map_record.py writes
    source.blob(run, step, index)  of an ArrayBuffer
    address                        {read, write, listen}: URLSearchParams of the state; by default those of this page
and returns a function that looks for new runs and steps. Letters as in the README: T tokens, h heads; b is an image. */

const JOINED = ["mean", "rollout", "relevance"];
const LABELS = { mean: "mean of heads", rollout: "rollout", relevance: "relevance" };
const WHY = ": they have not been written yet, they were too large, or it comes from another program";
const HINT =
  "Hover over a patch, tap it, or move with the arrow keys: the map shows where it attends; a click holds it. " +
  "With no patch chosen: what the pooled vector, which is classified, attends to (the readout).";
const KEPT = 500; // blobs in memory
const SHARP = 128; // pixels of a side up to which each is shown as a square
const THUMBNAIL = 112; // pixels

export const ownAddress = {
  read: () => new URLSearchParams(location.hash.slice(1)),
  write: (values) => history.replaceState(null, "", `#${values}`),
  listen: (changed) => addEventListener("hashchange", changed),
};

export function mount(root, source, address = ownAddress) {
  const view = new View(root, source, address);
  view.restore();
  address.listen(() => view.restore());
  return () => view.refresh();
}

/* ---- numbers ---- */

/* Adds to `sum` (T) what `weights` (T) receive through a matrix of bytes: the product weights · M. */
function addThrough(sum, weights, bytes, offset, scale) {
  const T = weights.length;
  for (let q = 0; q < T; q++) {
    const w = (weights[q] * scale) / 255;
    if (w) for (let k = 0, at = offset + q * T; k < T; k++) sum[k] += w * bytes[at + k];
  }
  return sum;
}

/* What the weights attend to, (T), by a head's number, the mean over heads, the rollout or the relevance. */
function received({ header, b, layers, relevance }, weights, layer, head) {
  const T = weights.length, h = header.heads;
  const add = (l, head) => addThrough(sum, weights, layers[l], (b * h + head) * T * T, header.scales[l][b][head]);
  const sum = new Float64Array(T);
  if (head === "relevance") return addThrough(sum, weights, relevance, b * T * T, header.relevance_scales[b]);
  if (head === "rollout") {
    // readout · A_L · … · A_1, from the left: no product of matrices is needed
    for (let l = header.layers - 1; l >= 0; l--) {
      const mean = received({ header, b, layers }, weights, l + 1, "mean");
      weights = mean.map((value, t) => (value + weights[t]) / 2);
    }
    return weights;
  }
  if (head !== "mean") return add(layer - 1, head - 1);
  for (let i = 0; i < h; i++) add(layer - 1, i);
  return sum.map((value) => value / h);
}

const asHead = (text) => (JOINED.includes(text) ? text : Number(text));
const joinedIn = (header) => JOINED.filter((name) => name !== "relevance" || header.relevance_scales);
const upTo = (count) => Array.from({ length: count }, (_, i) => i + 1);
const describe = (layer, head) => `layer ${layer}, ${head === "mean" ? LABELS.mean : `head ${head}`}`;
const short = (value) => String(Number(value.toPrecision(2)));
const nearest = (values, wanted) => values.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/* ---- what was loaded ---- */

class Store {
  constructor(source) {
    this.source = source;
    this.kept = new Map();
  }

  keep(key, load) {
    if (!this.kept.has(key)) {
      const promise = load();
      promise.catch(() => this.kept.delete(key));
      this.kept.set(key, promise);
      if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
    }
    return this.kept.get(key);
  }

  header = (run, step) => this.keep(JSON.stringify([run, step]), () => this.source.header(run, step));
  picture = (run, step, index) => this.blob(run, step, index, (bytes) => createImageBitmap(new Blob([bytes])));
  matrices = (run, step, index, T) =>
    this.blob(run, step, index, async (compressed) => {
      const inflated = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
      const bytes = new Uint8Array(await new Response(inflated).arrayBuffer());
      bytes.forEach((_, i) => i % T && (bytes[i] += bytes[i - 1])); // differences, modulo 256
      bytes.forEach((_, i) => i % (T * T) >= T && (bytes[i] += bytes[i - T]));
      return bytes;
    });

  blob(run, step, index, decode) {
    return this.keep(JSON.stringify([run, step, index]), async () => decode(await this.source.blob(run, step, index)));
  }
}

/* ---- elements; text goes through textContent only ---- */

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const labelled = (text, control) => make("label", {}, make("span", { textContent: text }), control);

function fill(select, entries, chosen) {
  const key = JSON.stringify(entries);
  if (select.dataset.key !== key) {
    select.replaceChildren(...entries.map(([value, textContent]) => make("option", { value, textContent })));
    select.dataset.key = key; // else an open list would close at each look for new steps
  }
  select.value = chosen;
}

function colour(share) {
  const at = 3 * Math.round(255 * clamp(share || 0, 0, 1));
  return INFERNO.subarray(at, at + 3);
}

function paintHeat(canvas, values, peak, [rows, columns]) {
  [canvas.height, canvas.width] = [rows, columns];
  const pixels = new ImageData(columns, rows);
  values.forEach((value, i) => pixels.data.set([...colour(value / peak), 255], 4 * i));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

function paintPicture(canvas, picture, largest = Infinity) {
  const scale = Math.min(1, largest / Math.max(picture.height, picture.width));
  [canvas.height, canvas.width] = [picture.height, picture.width].map((side) => Math.max(1, Math.round(side * scale)));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.style.imageRendering = picture.width > SHARP ? "auto" : "pixelated";
}

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/* ---- the whole ---- */

class View {
  constructor(root, source, address) {
    this.source = source;
    this.address = address;
    this.store = new Store(source);
    this.runs = [];
    this.hover = null; // a place: {prefix} or {row, column, grid}
    this.images = make("div", { class: "images", role: "radiogroup", ariaLabel: "Image" });
    const box = (name) =>
      make("input", { type: "checkbox", onchange: ({ target }) => this.change({ [name]: target.checked }) });
    [this.compare, this.overview] = ["compare", "overview"].map(box);
    this.panes = [new Pane(this, 0), new Pane(this, 1)];
    const choices = make("div", { class: "choices" }, labelled("Compare two", this.compare));
    choices.append(labelled("All layers and heads", this.overview));
    const top = make("header", {}, this.images, choices);
    const panes = make("div", { class: "panes" }, ...this.panes.map(({ element }) => element));
    const hint = make("p", { class: "hint", textContent: HINT });
    root.replaceChildren(make("main", { class: "attention" }, top, hint, panes));
  }

  restore() {
    const values = this.address.read();
    const number = (name) => (/^\d+$/.test(values.get(name) ?? "") ? Number(values.get(name)) : null);
    const place = (end) => ({
      run: values.get("run" + end),
      step: number("step" + end), // null: the newest
      layer: number("layer" + end) || Infinity, // the last
      head: asHead(values.get("head" + end) ?? "mean") || "mean",
    });
    const [, row, column] = /^(\d+),(\d+)$/.exec(values.get("patch") ?? "") ?? [];
    const prefix = number("prefix");
    const pinned = row ? { row: row - 1, column: column - 1 } : prefix ? { prefix: prefix - 1 } : null;
    this.state = {
      image: (number("image") || 1) - 1,
      pinned,
      compare: values.get("compare") === "1",
      overview: values.get("overview") !== "0",
      places: [place(""), place("2")],
    };
    this.refresh();
  }

  save() {
    const { image, pinned, compare, overview, places } = this.state;
    const values = new URLSearchParams({ image: image + 1 });
    places.slice(0, compare ? 2 : 1).forEach((place, i) => {
      for (const [name, value] of Object.entries(place))
        if (value !== null && value !== Infinity) values.set(name + (i ? "2" : ""), value);
    });
    if (pinned?.prefix !== undefined) values.set("prefix", pinned.prefix + 1);
    else if (pinned) {
      const { row, column } = this.panes[0].data ? this.panes[0].within(pinned) : pinned;
      values.set("patch", `${row + 1},${column + 1}`);
    }
    if (compare) values.set("compare", "1");
    if (!overview) values.set("overview", "0");
    this.address.write(values);
  }

  change(part) {
    const { places } = this.state;
    if (part.compare && !places[1].run) {
      const steps = this.runs.find(({ run }) => run === places[0].run)?.steps ?? [];
      const other = places[0].head === "relevance" ? "mean" : "relevance";
      places[1] = { ...places[0], ...(steps.length > 1 ? { step: steps[0] } : { head: other }) }; // before and after
    }
    Object.assign(this.state, part);
    this.load();
    this.save();
  }

  async refresh() {
    try {
      this.runs = await this.source.runs();
    } catch (error) {
      if (!this.runs.length) return this.panes[0].complain(error.message);
    }
    for (const place of this.state.places.slice(0, this.state.compare ? 2 : 1))
      place.run ??= (this.runs.find(({ steps }) => steps.length) ?? this.runs[0])?.run ?? null;
    await this.load();
  }

  async load() {
    this.compare.checked = this.state.compare;
    this.overview.checked = this.state.overview;
    this.panes[1].element.hidden = !this.state.compare;
    await Promise.all(this.panes.slice(0, this.state.compare ? 2 : 1).map((pane) => pane.load()));
  }

  /* The images of the first pane, to choose from. */
  async showImages({ run, step, header }) {
    const key = JSON.stringify([run, header.titles]);
    if (this.images.dataset.key !== key) {
      this.images.dataset.key = key;
      const cells = header.titles.map((title, i) => {
        const canvas = make("canvas", { ariaHidden: "true" });
        this.store.picture(run, step, i + 1).then((picture) => paintPicture(canvas, picture, THUMBNAIL));
        const radio = make("input", { type: "radio", name: "image", onchange: () => this.change({ image: i }) });
        return make("label", { title }, radio, canvas, make("span", { textContent: title }));
      });
      this.images.replaceChildren(...cells);
    }
    this.images.querySelectorAll("input").forEach((radio, i) => (radio.checked = i === this.state.image));
    const shown = `${key} ${this.state.image}`;
    if (shown === this.shown) return;
    this.shown = shown;
    const { offsetTop, offsetHeight } = this.images.children[this.state.image], { scrollTop, clientHeight } = this.images;
    if (offsetTop < scrollTop || offsetTop + offsetHeight > scrollTop + clientHeight) this.images.scrollTop = offsetTop - 5;
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.panes.forEach((pane) => pane.element.hidden || pane.paint()));
  }

  point(place) {
    this.hover = place;
    this.paint();
  }

  pin(place) {
    this.state.pinned = place;
    this.hover = null;
    this.paint();
    this.save();
  }
}

/* ---- one of two ---- */

class Pane {
  constructor(view, number) {
    this.view = view;
    this.number = number;
    this.ticket = 0;
    const select = (name, as) =>
      make("select", { onchange: ({ target }) => this.choose({ [name]: as(target.value) }) });
    [this.run, this.layer, this.head] = [select("run", String), select("layer", Number), select("head", asHead)];
    const slide = () => this.choose({ step: this.data?.steps[this.step.value] ?? null });
    this.step = make("input", { type: "range", min: 0, oninput: slide });
    this.at = make("strong");
    this.message = make("p", { class: "message", role: "alert", hidden: true });
    this.picture = make("canvas", { ariaHidden: "true" });
    this.grey = make("canvas", { class: "grey", ariaHidden: "true" });
    this.heat = make("canvas", { class: "heat", ariaHidden: "true" });
    this.cursors = [0, 1].map(() => make("span", { class: "cursor" }));
    this.frames = [[this.picture], [this.grey, this.heat]].map((layers, i) => this.frame(layers, this.cursors[i]));
    this.prefix = make("div", { class: "prefix" });
    this.peak = make("span");
    const zero = make("span", { textContent: "0" });
    this.bar = make("div", { class: "bar", ariaHidden: "true" }, this.peak, make("i"), zero);
    const stops = Array.from({ length: 17 }, (_, i) => `rgb(${colour(i / 16).join(" ")})`);
    this.bar.style.setProperty("--colours", `linear-gradient(to top, ${stops})`);
    const pictures = make("div", { class: "pictures" }, ...this.frames, this.bar);
    this.stage = make("div", { class: "stage", tabIndex: 0, role: "application" }, this.prefix, pictures);
    this.stage.onkeydown = (event) => this.key(event);
    this.caption = make("p", { class: "caption", role: "status", ariaLive: "polite" });
    this.found = make("p", { class: "found" });
    this.cells = make("div", { class: "cells", role: "group", onkeydown: (event) => this.cellKey(event) });
    this.cells.ariaLabel = "All layers and heads: arrow keys move, Enter opens";
    this.body = make("div", { class: "body", hidden: true }, make("div", {}, this.stage, this.caption, this.found), this.cells);
    const controls = make("div", { class: "controls" }, labelled("Run", this.run), labelled("Layer", this.layer));
    const step = labelled("Step", this.step);
    step.firstChild.append(" ", this.at);
    controls.append(labelled("Head", this.head), step);
    const ariaLabel = number ? "Second map" : "First map";
    this.element = make("section", { class: "pane", ariaLabel }, controls, this.message, this.body);
  }

  frame(layers, cursor) {
    const frame = make("div", { class: "frame" }, ...layers, cursor);
    return this.pointable(frame, (event) => {
      const box = frame.getBoundingClientRect(), { grid } = this.data.header;
      const row = Math.floor(((event.clientY - box.top) / box.height) * grid[0]);
      const column = Math.floor(((event.clientX - box.left) / box.width) * grid[1]);
      return { row: clamp(row, 0, grid[0] - 1), column: clamp(column, 0, grid[1] - 1), grid };
    });
  }

  pointable(element, placeOf) {
    element.onpointermove = (event) => this.view.point(placeOf(event));
    element.onpointerleave = () => this.view.point(null);
    element.onclick = (event) => {
      const place = placeOf(event), again = this.token(this.view.state.pinned) === this.token(place);
      this.view.pin(again ? null : place);
    };
    return element;
  }

  get place() {
    return this.view.state.places[this.number];
  }

  choose(part) {
    Object.assign(this.place, part);
    this.load();
    this.view.save();
  }

  complain(text) {
    this.message.textContent = text;
    this.message.hidden = !text;
    this.body.hidden = Boolean(text);
    if (text) [this.layer, this.head, this.step].forEach((control) => (control.disabled = true));
  }

  async load() {
    const ticket = ++this.ticket;
    const nameOf = ({ run, steps }) => [run, (run || ".") + (steps.length ? "" : " (no maps)")];
    fill(this.run, this.view.runs.map(nameOf), this.place.run);
    let text = "";
    try {
      const data = await this.read();
      if (ticket !== this.ticket) return;
      this.data = data;
      this.show();
    } catch (error) {
      text = error.message;
    }
    if (ticket === this.ticket) this.complain(text);
  }

  async read() {
    const { store, runs, state } = this.view;
    const place = { ...this.place }, { run } = place;
    if (!runs.length) throw new Error("There is no run here yet. Maps come with the first step of a training.");
    const steps = runs.find((one) => one.run === run)?.steps;
    if (!steps) throw new Error(`There is no run ${run} here.`);
    if (!steps.length) throw new Error(`The run ${run} has no attention maps${WHY}.`);
    const step = place.step === null ? steps.at(-1) : nearest(steps, place.step);
    const header = await store.header(run, step);
    const b = state.image, images = header.titles.length, T = header.readout[0].length;
    if (b >= images) throw new Error(`The run ${run} holds maps of ${images} images only: choose another image.`);
    const layer = clamp(place.layer, 1, header.layers);
    const joined = joinedIn(header).includes(place.head) ? place.head : "mean";
    const head = Number.isInteger(place.head) ? clamp(place.head, 1, header.heads) : joined;
    const wanted = (l) => state.overview || head === "rollout" || (l === layer - 1 && head !== "relevance");
    const [picture, relevance, ...layers] = await Promise.all([
      store.picture(run, step, 1 + b),
      header.relevance_scales && store.matrices(run, step, 1 + images + header.layers, T),
      ...header.scales.map((_, l) => wanted(l) && store.matrices(run, step, 1 + images + l, T)),
    ]);
    return { run, steps, step, header, b, layer, head, picture, relevance, layers, overview: state.overview };
  }

  show() {
    const { header, steps, step, layer, head, b, picture, overview } = this.data;
    fill(this.layer, upTo(header.layers).map((name) => [name, name]), layer);
    this.layer.disabled = ["rollout", "relevance"].includes(head);
    fill(this.head, [...joinedIn(header), ...upTo(header.heads)].map((name) => [name, LABELS[name] ?? name]), head);
    this.head.disabled = false;
    this.step.max = steps.length - 1;
    this.step.value = steps.indexOf(step);
    this.step.disabled = steps.length < 2;
    this.step.ariaValueText = `step ${step.toLocaleString("en")}`;
    this.at.textContent = step.toLocaleString("en");
    for (const canvas of [this.picture, this.grey]) paintPicture(canvas, picture);
    for (const frame of this.frames) frame.style.aspectRatio = `${picture.width} / ${picture.height}`;
    this.stage.ariaLabel = `Patches of ${header.titles[b]}: arrow keys move from patch to patch, Escape leaves them`;
    const likeliest = header.found[b].map(([name, share]) => `${name} ${Math.round(100 * share)} %`);
    this.found.replaceChildren(make("strong", { textContent: "Found: " }), likeliest.join(", "));
    this.found.hidden = !likeliest.length; // a network without classes
    this.showPrefix();
    this.cells.hidden = !overview;
    if (overview) this.showCells();
    if (!this.number) this.view.showImages(this.data);
    this.paint();
  }

  showPrefix() {
    const { prefix, readout } = this.data.header;
    if (this.prefix.children.length !== prefix) {
      const cell = () => make("div", {}, make("i"), make("b"), make("span"));
      const cells = Array.from({ length: prefix }, (_, t) => this.pointable(cell(), () => ({ prefix: t })));
      this.prefix.replaceChildren(...cells);
    }
    let registers = 0; // which no pool reads
    const nameOf = (weight) => (weight > 0 ? "class token" : `register ${++registers}`);
    this.names = readout[this.data.b].slice(0, prefix).map(nameOf);
    [...this.prefix.children].forEach((cell, t) => (cell.lastChild.textContent = this.names[t]));
  }

  showCells() {
    const { layers, heads } = this.data.header;
    if (this.cells.dataset.size !== `${layers},${heads}`) {
      this.cells.dataset.size = `${layers},${heads}`;
      this.cells.style.setProperty("--columns", heads + 1);
      const columns = [...upTo(heads), "mean"];
      const names = ["head", ...columns].map((textContent) => make("span", { textContent }));
      this.buttons = [];
      const rows = upTo(layers).map((layer) => [
        make("span", { textContent: `layer ${layer}` }),
        ...columns.map((head) => {
          const onclick = () => this.choose({ layer, head });
          const button = make("button", { type: "button", onclick }, make("canvas"), make("small"));
          this.buttons.push({ button, layer, head });
          return button;
        }),
      ]);
      this.cells.replaceChildren(...names, ...rows.flat());
    }
    const open = this.buttons.findIndex(({ layer, head }) => layer === this.data.layer && head === this.data.head);
    this.buttons.forEach(({ button }, i) => {
      button.ariaPressed = String(i === open);
      button.tabIndex = i === Math.max(open, 0) ? 0 : -1;
    });
  }

  /* A place in this pane's own grid. */
  within({ prefix, row, column, grid }) {
    const own = this.data.header.grid;
    if (prefix !== undefined) return { prefix };
    const [rows, columns] = grid ?? own;
    const scaled = (at, of, mine) => clamp(Math.floor(((at + 0.5) / of) * mine), 0, mine - 1);
    return { row: scaled(row, rows, own[0]), column: scaled(column, columns, own[1]), grid: own };
  }

  /* The number of the token at a place, or null for the readout. */
  token(place) {
    if (!place) return null;
    const { header } = this.data, { prefix, row, column } = this.within(place);
    if (prefix !== undefined) return prefix < header.prefix ? prefix : null;
    return header.prefix + row * header.grid[1] + column;
  }

  name(token) {
    const { prefix, grid } = this.data.header;
    if (token < prefix) return this.names[token];
    return `row ${Math.floor((token - prefix) / grid[1]) + 1}, column ${((token - prefix) % grid[1]) + 1}`;
  }

  paint() {
    if (!this.data) return;
    const { header, b, layer, head, overview } = this.data, { prefix, grid } = header;
    const pointed = this.token(this.view.hover ?? this.view.state.pinned);
    const weightOf = (weight, t) => (pointed === null ? weight : Number(t === pointed));
    const weights = Float64Array.from(header.readout[b], weightOf);
    const values = received(this.data, weights, layer, head), patches = values.subarray(prefix);
    const peak = Math.max(...patches);
    paintHeat(this.heat, patches, peak, grid);
    this.peak.textContent = short(peak);
    [...this.prefix.children].forEach((cell, t) => {
      cell.firstChild.style.background = `rgb(${colour(values[t] / peak).join(" ")})`;
      cell.children[1].textContent = short(values[t]);
      cell.classList.toggle("pointed", t === pointed);
    });
    for (const { style } of this.cursors) {
      style.display = pointed === null || pointed < prefix ? "none" : "";
      style.height = `${100 / grid[0]}%`;
      style.width = `${100 / grid[1]}%`;
      style.top = `${(100 / grid[0]) * Math.floor((pointed - prefix) / grid[1])}%`;
      style.left = `${(100 / grid[1]) * ((pointed - prefix) % grid[1])}%`;
    }
    const title = header.titles[b];
    const map = this.layer.disabled ? head : describe(layer, head);
    const who = pointed === null ? "the readout" : (pointed < prefix ? "" : "patch ") + this.name(pointed);
    const most = this.name(prefix + patches.indexOf(peak));
    const beside = values.subarray(0, prefix).reduce((sum, value) => sum + value, 0);
    const rest = prefix ? `, and ${short(beside)} to the tokens beside the picture` : "";
    const said = `${map}: ${who} of ${title} attends most to ${most}: ${short(peak)}${rest}.`;
    const text = `${said[0].toUpperCase()}${said.slice(1)}`;
    if (this.caption.textContent !== text) this.caption.textContent = text; // else it would be read out again
    if (overview)
      for (const cell of this.buttons) {
        const own = received(this.data, weights, cell.layer, cell.head).subarray(prefix), highest = Math.max(...own);
        paintHeat(cell.button.firstChild, own, highest, grid);
        cell.button.lastChild.textContent = short(highest);
        cell.button.ariaLabel = `${describe(cell.layer, cell.head)}, maximum ${short(highest)}`;
      }
  }

  key(event) {
    const arrow = ARROWS[event.key];
    if (!this.data || (!arrow && event.key !== "Escape")) return;
    event.preventDefault();
    if (!arrow) return this.view.pin(null);
    const { grid, prefix } = this.data.header, pinned = this.view.state.pinned;
    const now = pinned && this.within(pinned);
    const patch = (row, column) => ({ row: clamp(row, 0, grid[0] - 1), column: clamp(column, 0, grid[1] - 1), grid });
    const beside = (row) => ({ prefix: clamp(row, 0, prefix - 1) });
    let next = patch(grid[0] >> 1, grid[1] >> 1);
    if (now?.prefix >= 0) next = arrow[1] > 0 ? patch(now.prefix, 0) : beside(now.prefix + arrow[0]);
    else if (prefix && now?.column === 0 && arrow[1] < 0) next = beside(now.row);
    else if (now) next = patch(now.row + arrow[0], now.column + arrow[1]);
    this.view.pin(next);
  }

  cellKey(event) {
    const arrow = ARROWS[event.key];
    const at = this.buttons.findIndex(({ button }) => button === document.activeElement);
    if (!arrow || at < 0) return;
    event.preventDefault();
    this.buttons[at + arrow[0] * (this.data.header.heads + 1) + arrow[1]]?.button.focus();
  }
}

/* The colour map inferno, dark to bright, 256 colours of three bytes. */
const INFERNO = Uint8Array.from(atob(`
AAADAAAEAAAGAQAHAQEJAQELAgEOAgIQAwISBAMUBAMWBQQYBgQbBwUdCAYfCQYhCgcjCwcmDQgoDggqDwktEAkvEgoyEwo0FAs2Fgs5Fws7GQs+Gg
tAHAxDHQxFHwxHIAxKIgtMJAtOJgtQJwtSKQtUKwpWLQpYLgpaMApcMgldNAlfNQlgNwlhOQliOwlkPAllPglmQAlmQQlnQwpoRQppRgppSAtqSgtq
SwxrTQxrTw1sUA1sUg5sUw5tVQ9tVw9tWBBtWhFtWxFuXRJuXxJuYBNuYhRuYxRuZRVuZhVuaBZuahduaxdubRhubhhucBluchltcxptdRttdhtteB
xtehxtex1sfR1sfh5sgB9rgR9rgyBrhSBqhiFqiCFqiSJpiyJpjSNpjiRokCRokSVnkyVnlSZmliZmmCdlmShkmyhknCljniljoCpioSthoythpCxg
pixfpy1fqS5eqy5drC9crjBbrzFbsTFasjJZtDNYtTNXtzRWuDVWujZVuzdUvTdTvjhSvzlRwTpQwjtPxDxOxT1Nxz5MyD5LyT9Ky0BJzEFIzUJHz0
RG0EVE0UZD0kdC1EhB1UlA1ko/10s+2U092k4720863FA53VI43lM331Q24FY04lcz41gy5Fox5Vsw5lwu5l4t518s6GEr6WIq6mQo62Un7Gcm7Wgl
7Woj7mwi720h8G8f8HAe8XId8nQc8nUa83cZ83kY9HoW9XwV9X4U9oAS9oER94MQ94UO+IcN+IgM+IoL+YwJ+Y4I+ZAI+pEH+pMG+pUG+pcG+5kG+5
sG+50G+54H+6AH+6II+6QK+6YL+6gN+6oO+6wQ+64S+7AU+7EW+7MY+7Ua+7cc+7ke+rsh+r0j+r8l+sEo+cMq+cUs+ccv+Mkx+Ms0+M03988699E8
9tM/9tVC9ddF9dlI9NtL9NxP895S8+BW8+JZ8uRd8uZg8ehk8elo8ets8e1w8e508fB58fJ98vOB8vSF8/aJ9PeN9fiR9vqV9/uZ+fyd+v2g/P6k
`), (letter) => letter.charCodeAt(0));
