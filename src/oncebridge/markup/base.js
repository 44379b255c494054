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
    heads.forEach((head, at) => {
      const button = make("button", { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const numbers = head.classList.contains("number");
        const down = before === null ? numbers : before === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const sorted = rows().map((row) => [value(row, at), row]);
        sorted.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
        table.tBodies[0].append(...sorted.map(([, row]) => row));
      });
    });
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

  document.querySelectorAll(".box table").forEach(addSorting);
  document.querySelectorAll("table[data-filter]").forEach(addFilter);
  document.querySelectorAll("[data-copy]").forEach(addCopying);
})();
