// The worker: Python and Oncebridge, out of parts that came with the page. What it asks for is answered from memory.
"use strict";

const NOWHERE = "http://parts.invalid/"; // the name of a folder that is never looked up
let python = null;
let isMounted = false;

async function unpacked(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function tell(is, said) {
  postMessage({ is, ...said });
}

function fail(error) {
  const text = String((error && (error.message || error.name)) || error);
  tell("failed", {
    // A message of Python's may quote the capture: only its class is passed on.
    text: error && error.type ? error.type : text.slice(0, 300),
    isMemory: (error && error.type === "MemoryError") || /memory|allocation/i.test(text),
    isOld: error instanceof WebAssembly.CompileError,
  });
}

async function start({ wasm, stdlib, wheels, python: code }) {
  const held = {
    "pyodide.asm.wasm": [await unpacked(wasm), "application/wasm"],
    "python_stdlib.zip": [await unpacked(stdlib), "application/zip"],
  };
  self.fetch = async (address) => {
    const found = held[String(address).replace(NOWHERE, "")];
    if (!found) throw new TypeError("this page asks for nothing outside");
    return new Response(found[0], { headers: { "content-type": found[1] } });
  };
  // It would only warn, and wait for ever.
  const instantiate = WebAssembly.instantiateStreaming;
  WebAssembly.instantiateStreaming = (...given) =>
    instantiate.apply(WebAssembly, given).catch((error) => {
      fail(error);
      throw error;
    });
  python = await loadPyodide({
    indexURL: NOWHERE,
    packageBaseUrl: NOWHERE,
    createPyodideModule: _createPyodideModule,
    lockFileContents: LOCK,
    stdin: () => null,
    stdout: () => {},
    stderr: () => {},
  });
  python.unpackArchive(await unpacked(wheels), "zip", { extractDir: "/packages" });
  python.runPython(code, { filename: "in_page.py" });
  tell("ready", {});
}

function mount(files) {
  const { FS } = python;
  FS.chdir("/");
  if (isMounted) FS.unmount("/capture");
  FS.mkdirTree("/capture");
  // Read as it is needed, so a capture may be larger than memory.
  FS.mount(FS.filesystems.WORKERFS, { blobs: files }, "/capture");
  isMounted = true;
  FS.chdir("/capture");
}

function call(name, ...given) {
  const found = python.globals.get(name);
  try {
    return JSON.parse(found(...given));
  } finally {
    found.destroy();
  }
}

// The same name twice, of files from different folders, is told apart.
function named(files) {
  const seen = new Set();
  return files.map(({ name, data }) => {
    let free = name;
    for (let number = 2; seen.has(free); number += 1) free = name.replace(/(\.[^/]*)?$/, ` (${number})$1`);
    seen.add(free);
    return { name: free, data };
  });
}

let asked = null; // of the last capture, for explaining it

function diagnose(paths, options) {
  let bytes = 0;
  const began = performance.now();
  asked = [JSON.stringify(paths), JSON.stringify(options)];
  const onRead = (number) => tell("read", { bytes: (bytes += number) });
  const onPart = (done, total) => tell("compared", { done, total });
  const { html, about, trouble, refused } = call("diagnosed", ...asked, onRead, onPart);
  if (refused) return tell("refused", { text: refused });
  const seconds = (performance.now() - began) / 1000;
  const memory = python._module.HEAP8.length;
  tell("report", { html, about: `${about}, in ${seconds.toFixed(seconds < 10 ? 1 : 0)} s`, trouble, memory });
}

const ASKED = {
  start: ({ parts }) => start(parts),
  diagnose({ files, options }) {
    const mounted = named(files);
    mount(mounted);
    diagnose([...new Set(mounted.map(({ name }) => name.split("/")[0]))], options);
  },
  simulate({ options }) {
    const { path, bytes } = call("simulated");
    tell("reading", { bytes });
    diagnose([path], options);
  },
  explain({ first, count }) {
    tell("explained", call("explained", ...asked, first, count));
  },
};

self.onmessage = async ({ data }) => {
  try {
    await ASKED[data.ask](data);
  } catch (error) {
    fail(error);
  }
};
