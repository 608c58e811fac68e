"use strict";
// The table of all cells: sortable, filtered, a page at a time, and downloaded as CSV.

const PAGE_SIZES = [25, 100, 500];
const TABLE_COLUMNS = [
  ["workload", "workload"], ["cluster", "cluster"], ["strategy", "strategy"], ["devices", "devices"], ["hosts", "hosts"], ["batch", "batch"], ["batch_per_device", "batch/device"],
  ["precision", "precision"], ["status", "status"], ["step", "step", seconds], ["epoch", "epoch", seconds], ["predicted_epoch", "predicted epoch", seconds],
  ["error", "error"], ["predicted_step", "predicted step", seconds], ["speedup", "speed-up", ratio], ["predicted_speedup", "predicted speed-up", ratio],
  ["weak", "weak scaling", ratio], ["predicted_weak", "predicted weak scaling", ratio], ["memory", "memory", bytes], ["predicted_memory", "predicted memory", bytes], ["bottleneck", "bottleneck"],
  ["cost", "cost", dollars], ["flags", "flags"], ["reason", "reason"],
];

function tableBody() {
  for (const cell of CELLS) cell.error = known(cell.epoch) && known(cell.predicted_epoch) ? cell.predicted_epoch / cell.epoch - 1 : null;
  const varies = (name) => unique(CELLS.map((cell) => cell[name] ?? null)).length > 1;
  const always = ["workload", "strategy", "devices", "batch", "batch_per_device"];
  const columns = TABLE_COLUMNS.filter(([name]) => always.includes(name) || (CELLS.some((cell) => known(cell[name])) && (!["hosts", "precision", "cluster", "status"].includes(name) || varies(name))))
    .map(([name, title, text]) => ({ name, title, text: text ?? (name === "error" ? (value) => (known(value) ? `${value >= 0 ? "+" : "−"}${percent(Math.abs(value), 1)}` : "–") : (value) => (known(value) ? String(value) : "–")), number: CELLS.some((cell) => typeof cell[name] === "number") }));
  let sorted = null, descending = false, page = 0, size = PAGE_SIZES[0], words = "";
  const body = element("tbody"), summary = element("span", { role: "status", "aria-live": "polite" });
  const headings = columns.map((column) => {
    const button = element("button", { type: "button", "data-sort": column.name }, column.title, element("span", { "aria-hidden": "true" }));
    const heading = element("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": "none" }, button);
    button.addEventListener("click", () => { descending = sorted === column.name ? !descending : false; sorted = column.name; page = 0; draw(); });
    return heading;
  });
  const anyStep = CELLS.some(hasStep);
  const table = element("table", { class: "cells", "data-table": "cells" }, element("caption", { class: "visually-hidden", text: "All cells. The headings are buttons that sort the table." }),
    element("thead", {}, element("tr", {}, ...headings, anyStep ? element("th", { scope: "col" }, element("span", { class: "visually-hidden", text: "timeline" })) : null)), body);
  const filter = element("input", { type: "search", placeholder: "strategy, batch …", "aria-label": "Show only rows that contain these words" });
  filter.addEventListener("input", () => { words = filter.value.toLowerCase(); page = 0; draw(); });
  const sizes = element("select", { "aria-label": "Rows per page" }, ...PAGE_SIZES.map((value) => element("option", { value, text: `${value} rows` })));
  sizes.addEventListener("change", () => { size = Number(sizes.value); page = 0; draw(); });
  const back = element("button", { type: "button", text: "Previous", onclick: () => { page -= 1; draw(); } }), on = element("button", { type: "button", text: "Next", onclick: () => { page += 1; draw(); } });
  const save = element("button", { type: "button", text: "Download CSV", "data-download": "csv", onclick: () => download("cells.csv", csv(), "text/csv") });

  function rows() {
    const wanted = words.split(/\s+/).filter(Boolean);
    const kept = shownCells().filter((cell) => !wanted.length || wanted.every((word) => columns.some((column) => column.text(cell[column.name]).toLowerCase().includes(word))));
    if (!sorted) return kept;
    const value = (cell) => cell[sorted];
    const order = (a, b) => (typeof value(a) === "number" && typeof value(b) === "number" ? value(a) - value(b) : String(value(a)).localeCompare(String(value(b)), undefined, { numeric: true }));
    // Cells without a value are last in either direction.
    return [...kept].sort((a, b) => (known(value(a)) && known(value(b)) ? (descending ? -1 : 1) * order(a, b) : known(value(b)) - known(value(a))));
  }
  function draw() {
    const all = rows(), pages = Math.max(1, Math.ceil(all.length / size));
    page = Math.min(page, pages - 1);
    const shown = all.slice(page * size, (page + 1) * size);
    body.replaceChildren(...shown.map((cell) => element("tr", { class: cell.number === state.selected ? "selected" : null, "data-cell": cell.number },
      ...columns.map((column) => element("td", { text: column.text(cell[column.name]), class: column.number ? "number" : column.name === "reason" ? "words" : null })),
      anyStep ? element("td", {}, hasStep(cell) ? element("button", { type: "button", text: "timeline", "aria-label": `Timeline of ${cellName(cell)}`, onclick: () => select(cell.number, true) }) : null) : null)));
    headings.forEach((heading, at) => {
      const active = columns[at].name === sorted;
      heading.setAttribute("aria-sort", active ? (descending ? "descending" : "ascending") : "none");
      heading.querySelector("span").textContent = active ? (descending ? " ▼" : " ▲") : "";
    });
    summary.textContent = all.length ? `${(page * size + 1).toLocaleString("en-US")} to ${Math.min(all.length, (page + 1) * size).toLocaleString("en-US")} of ${count(all.length, "cell")}` : "No cell matches.";
    back.disabled = page === 0;
    on.disabled = page >= pages - 1;
  }
  function csv() {
    const names = [...DOCUMENT.cells.columns.filter((name) => name !== "detail" && name !== "recorded" && name !== "phases" && name !== "predicted_phases"),
      ...["phases", "predicted_phases"].filter((name) => DOCUMENT.cells.columns.includes(name)).flatMap((name) => DOCUMENT.phases.map((phase) => [name, phase]))];
    const value = (cell, name) => (Array.isArray(name) ? cell[name[0]]?.[DOCUMENT.phases.indexOf(name[1])] : cell[name]);
    const title = (name) => (Array.isArray(name) ? `${name[0] === "phases" ? "" : "predicted_"}${name[1]}_seconds` : name);
    return [names.map(title), ...rows().map((cell) => names.map((name) => value(cell, name) ?? ""))].map((row) => row.map(csvText).join(",")).join("\r\n") + "\r\n";
  }
  onChange(() => { page = 0; draw(); }, ["workload"]);
  onChange(draw, ["selected"]);
  draw();
  return element("div", { class: "card" }, element("div", { class: "controls" }, element("label", {}, element("span", { text: "Filter" }), filter), sizes, save),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All cells" }, table), element("div", { class: "pager" }, back, on, summary));
}
/** Quote a value; a text that a spreadsheet would take for a formula starts with an apostrophe. */
function csvText(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
