// Keeps a page up to date while somebody looks at it. A tab that is hidden asks for nothing.
(() => {
  "use strict";
  const field = document.getElementById("find");
  if (field) {
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        field.form.requestSubmit();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
        event.preventDefault();
        field.focus();
      }
    });
  }

  const every = Number(document.body.dataset.live) * 1000;
  if (!every) return;
  let timer, asking = false, failures = 0;

  // Somebody who chooses, writes or reads something opened is not disturbed.
  const WRITING = "main input:not([type=checkbox]), main select, main textarea";
  const busy = () =>
    document.querySelector("main input:checked, main details[open]") !== null ||
    document.activeElement?.matches(WRITING) ||
    String(getSelection()).length > 0;

  const say = (text) => {
    const state = document.getElementById("state");
    if (state && state.textContent !== text) state.textContent = text; // said again, it would be heard again
  };

  // A row stays the same element while others come and go: the focus must not end on another letter.
  function nameRows(page) {
    const seen = new Map();
    for (const row of page.querySelectorAll("main tbody tr")) {
      const links = [...row.querySelectorAll("a[href], time")].map((one) => one.getAttribute("href") ?? one.dateTime);
      const name = [row.closest("section")?.id, row.cells[0].textContent, ...links].join(" ");
      seen.set(name, (seen.get(name) ?? 0) + 1);
      row.id = `row ${name} ${seen.get(name)}`;
    }
  }

  function show(page) {
    const focused = document.activeElement;
    [document, page].forEach(nameRows);
    for (const part of ["main", "footer"]) {
      const before = document.querySelector(part), after = page.querySelector(part);
      if (before && after) Idiomorph.morph(before, after, { ignoreActiveValue: true });
    }
    document.dispatchEvent(new CustomEvent("oncebridge:updated"));
    if (focused.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  }

  async function update() {
    asking = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual", cache: "no-store" });
      if (answer.type === "opaqueredirect") {
        say("Not up to date: your session has ended. Load the page again to log in.");
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      failures = 0;
      if (busy()) {
        say("News wait until nothing is ticked, selected or being written.");
      } else {
        show(page);
        if (!page.body.dataset.live) return; // it has come to its end
      }
    } catch {
      failures += 1;
      say("Not up to date: the console does not answer. It is asked again.");
    } finally {
      asking = false;
    }
    plan();
  }

  function plan() {
    clearTimeout(timer);
    if (!document.hidden && !asking) timer = setTimeout(update, every * Math.min(12, 1 + failures));
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : asking || update()));
  plan();
})();
