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
  const busy = () =>
    document.querySelector("main input:checked, main details[open]") !== null ||
    document.activeElement?.closest("main form") !== null && document.activeElement?.closest("main form") !== undefined ||
    String(getSelection()).length > 0;

  const say = (text) => {
    const state = document.getElementById("state");
    if (state) state.textContent = text;
  };

  async function update() {
    asking = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error", cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!busy()) {
        for (const part of ["main", "footer"]) {
          const before = document.querySelector(part), after = page.querySelector(part);
          if (before && after) Idiomorph.morph(before, after, { ignoreActiveValue: true });
        }
        document.dispatchEvent(new CustomEvent("oncebridge:updated"));
        if (!page.body.dataset.live) return; // it has come to its end
      }
      failures = 0;
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
