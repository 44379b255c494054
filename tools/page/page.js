// The page: takes files, gives them to a worker that runs Oncebridge in Python, and shows what comes back.
"use strict";
(() => {
  const EXPLAINED_AT_ONCE = 10;
  const at = (id) => document.getElementById(id);
  const part = (name) => at(`part-${name}`).textContent;
  const PARTS = ["wasm", "stdlib", "wheels", "python"];

  let worker = null;
  let workerAddress = null; // of its script, unpacked once
  let isReady = false;
  let waiting = null; // what to ask as soon as the worker is ready
  let report = "";
  let earlier = ""; // the text of another report
  let total = 0; // bytes to read
  let next = 1; // the delivery to be explained next

  // --- what is seen -------------------------------------------------------------------------------------------------

  function show(name) {
    for (const id of ["start", "working", "result"]) at(id).hidden = id !== name;
    document.querySelector(`#${name} h1`).focus();
    window.scrollTo(0, 0);
  }

  function say(text) {
    at("state").textContent = text;
  }

  // Everything from outside becomes text, never markup.
  function element(name, text, className) {
    const made = document.createElement(name);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function complain(...sentences) {
    at("trouble").replaceChildren(...sentences.filter(Boolean).map((text) => element("p", text)));
    show("start");
  }

  const number = (value) => value.toLocaleString("en");

  function size(bytes) {
    const units = ["bytes", "kB", "MB", "GB"];
    let power = 0;
    while (bytes >= 1000 && power < units.length - 1) {
      bytes /= 1000;
      power += 1;
    }
    return `${power ? bytes.toFixed(bytes < 10 ? 1 : 0) : bytes} ${units[power]}`;
  }

  // --- the worker ---------------------------------------------------------------------------------------------------

  async function unpacked(text) {
    const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).blob();
  }

  async function start() {
    isReady = false;
    say("Getting ready…");
    if (!workerAddress) {
      // From a file, browsers load workers from one script only, and no modules.
      const script = new Blob([await unpacked(part("pyodide")), part("worker")], { type: "text/javascript" });
      workerAddress = URL.createObjectURL(script);
    }
    worker = new Worker(workerAddress);
    worker.onmessage = (event) => HEARD[event.data.is](event.data);
    worker.onerror = (event) => {
      event.preventDefault();
      HEARD.failed({ text: event.message || "the worker ended", isMemory: /memory/i.test(event.message) });
    };
    worker.postMessage({ ask: "start", parts: Object.fromEntries(PARTS.map((name) => [name, part(name)])) });
  }

  function ask(question) {
    if (isReady) worker.postMessage(question);
    else waiting = question;
  }

  function restart() {
    worker.terminate(); // the only way to stop it, and whatever it holds is freed
    waiting = null;
    start();
  }

  const HEARD = {
    ready() {
      isReady = true;
      say("Ready.");
      if (waiting) worker.postMessage(waiting);
      waiting = null;
    },
    reading({ bytes }) {
      total = bytes;
    },
    read({ bytes }) {
      const done = Math.min(bytes, total);
      at("progress").value = total ? done / total : 0;
      at("progress-text").textContent =
        done < total ? `${size(done)} of ${size(total)} read` : `${size(total)} read`;
    },
    compared({ done, total: parts }) {
      at("progress").value = done / parts;
      at("progress-text").textContent = `Comparing, ${Math.round((100 * done) / parts)} %`;
    },
    report({ html, about, trouble, memory }) {
      report = html;
      at("report").srcdoc = html;
      at("about").textContent = about;
      at("about").dataset.memory = memory;
      at("in-part").textContent = trouble;
      at("explanations").replaceChildren();
      at("explain-state").textContent = "";
      at("more").hidden = true;
      at("first").value = next = 1;
      choose(at("tab-report"));
      show("result");
    },
    explained({ explanations, last }) {
      const list = at("explanations");
      list.append(...explanations.map(explanation));
      next += explanations.length;
      at("more").hidden = last;
      const shown = list.children.length;
      at("explain-state").textContent = shown ? `${number(shown)} explained.` : "The capture has no delivery there.";
    },
    refused({ text }) {
      complain(...text.split("\n"));
    },
    failed({ text, isMemory, isOld }) {
      const sentences = isMemory
        ? [
            "This is too large for the memory of a browser.",
            "Try a part of it, or use the command, which needs no more than 1 GB: oncebridge diagnose FILE",
          ]
        : isOld
          ? ["This browser cannot run the page: it needs one of 2023 or later.", text]
          : ["Something went wrong here that should not. Nothing of your capture is in this message:", text];
      complain(...sentences);
      if (isOld) {
        worker.terminate();
        say("");
      } else restart();
    },
  };

  // --- taking files -------------------------------------------------------------------------------------------------

  function diagnose(files) {
    at("trouble").replaceChildren();
    if (!files.length) return complain("There was no file in that.");
    total = files.reduce((sum, { data }) => sum + data.size, 0);
    begin(files.length === 1 ? files[0].name : `${number(files.length)} files`, total);
    ask({ ask: "diagnose", files, options: options() });
  }

  const options = () => ({ settings: at("settings").value, keys: at("keys").value, earlier });

  function begin(what, bytes) {
    at("reading").textContent = bytes ? `${what}, ${size(bytes)}` : what;
    at("progress").removeAttribute("value");
    at("progress-text").textContent = isReady ? "" : "Getting ready…";
    show("working");
  }

  const chosen = (input) => {
    const files = Array.from(input.files, (data) => ({ name: data.webkitRelativePath || data.name, data }));
    input.value = ""; // the same file can be chosen again
    return files;
  };

  // A page from disk gets a dropped file, but not the entry of the older interface: it reads folders by their handles.
  async function dropped(transfer) {
    // All of this has to be taken before anything is waited for.
    const found = Array.from(transfer.items, (item) => ({
      data: item.getAsFile(),
      entry: item.webkitGetAsEntry ? item.webkitGetAsEntry() : null,
      handle: item.getAsFileSystemHandle ? item.getAsFileSystemHandle() : null,
    }));
    const files = found.map(async ({ data, entry, handle }) => {
      if (!entry || entry.isFile) return data ? [{ name: data.name, data }] : [];
      return handle ? inHandle(await handle, "") : inEntry(entry);
    });
    return (await Promise.all(files)).flat();
  }

  async function inHandle(handle, folder) {
    if (handle.kind === "file") return [{ name: folder + handle.name, data: await handle.getFile() }];
    const found = [];
    for await (const one of handle.values()) found.push(...(await inHandle(one, `${folder}${handle.name}/`)));
    return found;
  }

  async function inEntry(entry) {
    const name = entry.fullPath.replace(/^\//, "");
    if (entry.isFile) return [{ name, data: await new Promise((good, bad) => entry.file(good, bad)) }];
    const reader = entry.createReader();
    const found = [];
    for (;;) {
      const some = await new Promise((good, bad) => reader.readEntries(good, bad)); // a hundred at a time
      if (!some.length) return found;
      for (const one of some) found.push(...(await inEntry(one)));
    }
  }

  // --- explaining ---------------------------------------------------------------------------------------------------

  function explain(first) {
    next = first;
    at("explain-state").textContent = "Reading…";
    ask({ ask: "explain", first, count: EXPLAINED_AT_ONCE });
  }

  function explanation({ n, title, lines }) {
    const item = document.createElement("li");
    const head = document.createElement("h2");
    head.append(element("span", number(n), "n"), ` ${title}`);
    const list = document.createElement("dl");
    for (const [name, value, isCode] of lines) {
      list.append(element("dt", name), element("dd", value, isCode ? "code" : ""));
    }
    item.append(head, list);
    return item;
  }

  function choose(tab) {
    for (const one of document.querySelectorAll('[role="tab"]')) {
      const isChosen = one === tab;
      one.setAttribute("aria-selected", String(isChosen));
      one.tabIndex = isChosen ? 0 : -1;
      at(one.getAttribute("aria-controls")).hidden = !isChosen;
    }
    const isFirst = tab.id === "tab-explain" && !at("explanations").children.length;
    if (isFirst) explain(1);
  }

  // --- beginning ----------------------------------------------------------------------------------------------------

  function listen() {
    for (const id of ["files", "folder"]) at(id).addEventListener("change", (event) => diagnose(chosen(event.target)));
    at("simulated").addEventListener("click", () => {
      at("trouble").replaceChildren();
      begin("made-up traffic", 0);
      ask({ ask: "simulate", options: options() });
    });
    at("settings-file").addEventListener("change", async (event) => {
      const [file] = event.target.files;
      if (file) at("settings").value = await file.text();
      event.target.value = "";
    });
    at("earlier").addEventListener("change", async (event) => {
      const [file] = event.target.files;
      earlier = file ? await file.text() : "";
      at("earlier-name").textContent = file ? file.name : "none";
    });
    at("stop").addEventListener("click", () => {
      restart();
      show("start");
    });
    at("again").addEventListener("click", () => {
      at("report").removeAttribute("srcdoc");
      show("start");
    });
    at("save").addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([report], { type: "text/html" }));
      link.download = "oncebridge-report.html";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    });
    at("which").addEventListener("submit", (event) => {
      event.preventDefault();
      at("explanations").replaceChildren();
      explain(at("first").valueAsNumber);
    });
    at("more").addEventListener("click", () => explain(next));
    const tabs = Array.from(document.querySelectorAll('[role="tab"]'));
    for (const tab of tabs) {
      tab.addEventListener("click", () => choose(tab));
      tab.addEventListener("keydown", (event) => {
        if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
        const other = tabs.find((one) => one !== tab);
        choose(other);
        other.focus();
      });
    }
    listenForDrops();
  }

  function listenForDrops() {
    // Anywhere on the page: a file that misses would take its place.
    addEventListener("dragover", (event) => {
      event.preventDefault();
      document.body.classList.add("over");
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.body.classList.remove("over");
    });
    addEventListener("drop", async (event) => {
      event.preventDefault();
      document.body.classList.remove("over");
      if (at("start").hidden) return;
      try {
        diagnose(await dropped(event.dataTransfer));
      } catch {
        complain("What was dropped cannot be read here. Use the buttons to choose files, or a folder.");
      }
    });
  }

  const needed = { WebAssembly: "WebAssembly", Worker: "workers", DecompressionStream: "decompression" };
  const missing = Object.keys(needed).filter((name) => !(name in window));
  if (missing.length) {
    say(`This browser is too old for this page: it lacks ${missing.map((name) => needed[name]).join(" and ")}.`);
    for (const control of document.querySelectorAll("button, input")) control.disabled = true;
    return;
  }
  listen();
  start().catch((error) => complain("The page could not be started.", String(error)));
})();
