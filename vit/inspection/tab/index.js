/* The view inside TensorBoard: where its data comes from, whose address and theme it follows. */
import { mount } from "./view.js";

const LOOK_AGAIN = 5_000; // milliseconds, for a run may still be being written
const KEY = "p.attention."; // TensorBoard's own form for what plugins keep in its address

async function get(route, query = {}) {
  const answer = await fetch(`${route}?${new URLSearchParams(query)}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

const source = {
  runs: async () => (await get("runs")).json(),
  header: async (run, step) => (await get("header", { run, step })).json(),
  blob: async (run, step, index) => (await get("blob", { run, step, index })).arrayBuffer(),
};

const ours = () => /^#attention(&|$)/.test(parent.location.hash);
const address = {
  read() {
    const pairs = ours() ? [...new URLSearchParams(parent.location.hash.slice(1))] : [];
    return new URLSearchParams(pairs.filter(([k]) => k.startsWith(KEY)).map(([k, v]) => [k.slice(KEY.length), v]));
  },
  write(values) {
    const [page] = parent.location.href.split("#"); // a bare "#…" would be read from the base of this page
    const state = ["attention", ...[...values].map(encoded)].join("&");
    if (ours()) parent.history.replaceState(null, "", `${page}#${state}`);
  },
  listen: (changed) => parent.addEventListener("hashchange", () => address.read().size && changed()),
};
const encoded = ([name, value]) => `${KEY}${name}=${encodeURIComponent(value)}`;

export function render() {
  const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "tab.css" });
  document.head.append(style);
  const host = parent.document.body;
  const dress = () => {
    document.documentElement.style.colorScheme = host.classList.contains("dark-mode") ? "dark" : "light";
  };
  new MutationObserver(dress).observe(host, { attributeFilter: ["class"] });
  dress();
  style.onload = () => {
    const refresh = mount(document.body, source, address);
    setInterval(() => innerWidth && refresh(), LOOK_AGAIN); // no width: another tab is in front
  };
}
