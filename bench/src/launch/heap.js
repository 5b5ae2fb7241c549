// A Node.js program at its start: it loads what the runtime brings, and fills its heap.
const modules = ["assert", "child_process", "cluster", "crypto", "dgram", "dns", "events",
  "fs", "http", "http2", "https", "net", "os", "path", "perf_hooks", "querystring",
  "readline", "stream", "string_decoder", "tls", "tty", "url", "util", "v8", "vm",
  "worker_threads", "zlib"].map((name) => require(name));
// An entry is 220 bytes or so: an object, its strings and its place in the table.
const entries = Math.floor(Number(process.argv[1]) * (1 << 20) / 220);
const heap = new Map();
let state = 12345;
const step = () => (state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff);
for (let n = 0; n < entries; n++) {
  const word = step().toString(16).padStart(8, "0");
  heap.set(n, { name: Buffer.from(word + word + word).toString("latin1"), value: state, list: [n, n + 1, state] });
}
let check = modules.length;
for (let n = 0; n < entries / 64; n++) {
  const entry = heap.get(step() % entries);
  check = (check * 31 + entry.value + entry.name.length + entry.list[1]) % 1000000007;
}
process.stdout.write("ready " + check + "\n");
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
process.stdin.on("data", () => process.exit(0));
