// The checker of the specification, in the page: unpacked when it is asked for, run in a worker, so that it can be stopped.
(() => {
  const form = document.getElementById("check");
  const out = document.getElementById("checked");
  const stop = document.getElementById("stop");
  const ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
  let worker = null;
  let parts = null;

  function bytesOf(text) {
    const value = Object.fromEntries([...ALPHABET].map((letter, at) => [letter, at]));
    const found = new Uint8Array(Math.floor((text.length * 4) / 5));
    for (let at = 0, to = 0; at < text.length; at += 5) {
      let number = 0;
      for (let n = 0; n < 5; n += 1) number = number * 85 + (value[text[at + n]] ?? 84);
      for (let n = 3; n >= 0 && to < found.length; n -= 1) found[to++] = Math.floor(number / 256 ** n) % 256;
    }
    return found;
  }

  function unpacked() {
    const bytes = bytesOf(document.getElementById("packed").textContent.replace(/\s/g, ""));
    const whole = unlzma(bytes.subarray(4), new DataView(bytes.buffer).getUint32(0));
    const end = whole.indexOf(10);
    const text = (from, to) => new TextDecoder().decode(whole.subarray(from, to));
    const [script, source] = JSON.parse(text(0, end));
    return {
      script: text(end + 1, end + 1 + script),
      source: text(end + 1 + script, end + 1 + script + source),
      wasm: whole.slice(end + 1 + script + source),
    };
  }

  function say(className, ...nodes) {
    out.className = className;
    out.replaceChildren(...nodes);
  }

  function line(name, text, className = "") {
    const made = document.createElement(name);
    made.textContent = text;
    made.className = className;
    return made;
  }

  function ended() {
    worker?.terminate();
    worker = null;
    stop.hidden = true;
    form.elements.go.disabled = false;
  }

  function show({ found, error, seconds }, leftOut) {
    ended();
    const without = leftOut.length ? ` without: ${leftOut.join(", ")}` : "";
    if (error) return say("bad", line("p", `It could not be checked: ${error}`));
    const states = found.states.toLocaleString("en");
    if (found.held) {
      const said = `Held${without}. ${states} states, every promise kept in each, no deadlock; ${seconds} s in this page.`;
      return say("", line("p", said, "claim held"));
    }
    const steps = document.createElement("ol");
    steps.append(...found.steps.map((step) => line("li", step)));
    const said = `Broken${without}. ${found.promise} (${found.broken}), after ${found.steps.length} steps:`;
    return say("", line("p", said, "claim broken"), steps, line("p", `${states} states, ${seconds} s in this page.`, "quiet"));
  }

  function start() {
    const leftOut = [...form.querySelectorAll("input[name=rule]:checked")].map((one) => one.value);
    const constants = form.elements.world.selectedOptions[0].dataset.constants;
    form.elements.go.disabled = true;
    stop.hidden = false;
    say("quiet", line("p", "Looking at every state; on a usual machine this takes seconds, in the larger worlds minutes."));
    try {
      parts ??= unpacked();
      const url = URL.createObjectURL(new Blob([parts.script], { type: "text/javascript" }));
      worker = new Worker(url);
      URL.revokeObjectURL(url);
      worker.onmessage = ({ data }) => show(data, leftOut);
      worker.onerror = (event) => show({ error: event.message }, leftOut);
      worker.postMessage({ wasm: parts.wasm, source: parts.source, constants, leftOut });
    } catch (error) {
      show({ error: String(error) }, leftOut);
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    start();
  });
  stop.addEventListener("click", () => {
    ended();
    say("quiet", line("p", "Stopped."));
  });
  // A rule is missed in a world of its own: that one is chosen with it.
  form.addEventListener("change", ({ target }) => {
    if (target.name === "rule" && target.checked) form.elements.world.value = target.dataset.world;
  });
  document.getElementById("source").addEventListener("toggle", ({ target }) => {
    parts ??= unpacked();
    target.querySelector("pre").textContent = parts.source;
  });
  form.hidden = false;
})();
