"use strict";
// Sorts and filters tables, and copies; the page says the same without it.
(() => {
  const make = (name, properties) => Object.assign(document.createElement(name), properties);

  function addSorting(table) {
    const rows = () => [...table.tBodies[0].rows];
    const heads = [...table.tHead.rows[0].cells];
    const value = (row, at) => {
      const cell = row.cells[at];
      return cell.dataset.n === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.n);
    };
    const sort = (at, down) => {
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
      const sorted = rows().map((row) => [value(row, at), row]);
      sorted.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      table.tBodies[0].append(...sorted.map(([, row]) => row));
      table.sorted = [at, down];
    };
    heads.forEach((head, at) => {
      if (head.querySelector("button, .unseen")) return;
      const button = make("button", { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        sort(at, before === null ? head.classList.contains("number") : before === "ascending");
      });
    });
    if (table.sorted) sort(...table.sorted);
  }

  function addFilter(table) {
    const field = make("input", { type: "search", autocomplete: "off", spellcheck: false });
    const label = make("label", { className: "filter", textContent: table.dataset.filter + " " });
    const said = make("output", { className: "quiet" });
    label.append(field);
    const bar = make("div", { className: "filter-bar" });
    bar.append(label, said);
    table.closest(".box").before(bar);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = [...table.tBodies[0].rows];
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      const shown = rows.filter((row) => !row.hidden).length;
      said.textContent = words.length ? `${shown} of ${rows.length}` : "";
    });
  }

  async function copy(from) {
    const selection = getSelection();
    selection.selectAllChildren(from);
    try {
      await navigator.clipboard.writeText(from.textContent);
      return true;
    } catch {
      return document.execCommand("copy"); // where the page is not served from a safe place
    }
  }

  function addCopying(box) {
    if (box.querySelector("button")) return;
    const said = "Copy";
    const button = make("button", { type: "button", textContent: said });
    button.setAttribute("aria-label", `${said}: ${box.dataset.copy}`);
    const told = make("span", { className: "told" });
    told.setAttribute("role", "status");
    button.addEventListener("click", async () => {
      const done = await copy(box.querySelector("code"));
      told.textContent = done ? "Copied" : "Selected: copy it with the keyboard";
      setTimeout(() => { told.textContent = ""; }, 2500);
    });
    box.append(button, told);
  }

  function addAll() {
    document.querySelectorAll(".box table").forEach(addSorting);
    document.querySelectorAll("[data-copy]").forEach(addCopying);
  }

  addAll();
  document.querySelectorAll("table[data-filter]").forEach(addFilter);
  document.addEventListener("oncebridge:updated", addAll); // the console's pages change while they are looked at
})();
