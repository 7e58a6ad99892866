/* Stands below view.js in one script: the view in a page of its own, whose data vit/inspection/explorer.py put into it. */
const record = JSON.parse(document.getElementById("data").textContent);

mount(document.getElementById("attention"), {
  runs: async () => [{ run: record.run, steps: [record.step] }],
  header: async () => record.header,
  blob: async (run, step, index) => {
    const letters = atob(record.blobs[index - 1]), bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    return bytes.buffer;
  },
});
