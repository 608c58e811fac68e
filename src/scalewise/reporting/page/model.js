"use strict";
// The document of the page, the state that its controls change, and texts of numbers.

const DOCUMENT = JSON.parse(document.getElementById("data").textContent);
const CELLS = revive(DOCUMENT.cells);
const COLOURS = 10;

/** Turn the table of cells into objects, each with its number. */
function revive(table) {
  if (!table) return [];
  return table.rows.map((row, number) => {
    const cell = { number };
    table.columns.forEach((name, column) => { cell[name] = row[column]; });
    return cell;
  });
}

const unique = (values) => [...new Set(values)];
const known = (value) => value !== null && value !== undefined;
const ascending = (a, b) => a - b;

// State: what the controls chose. A change draws every part that listens again.
const state = {
  workload: null,  // null: all
  strategy: null,  // of the epoch chart
  batch: null,     // of charts at one batch
  devices: null,   // of the bars; null: all
  scaling: "strong",
  selected: null,  // number of the cell whose step is shown
};
const listeners = [];
function onChange(draw, names) { listeners.push([draw, names]); }
function change(changes) {
  Object.assign(state, changes);
  for (const [draw, names] of listeners) if (!names || names.some((name) => name in changes)) draw();
}

// Texts.
function three(value) {
  if (value >= 999.5) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}
function seconds(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  if (value < 0.9995e-3) return `${three(value * 1e6)} µs`;
  if (value < 0.9995) return `${three(value * 1e3)} ms`;
  if (value < 119.5) return `${three(value)} s`;
  if (value < 7200) return `${three(value / 60)} min`;
  return value < 172800 ? `${three(value / 3600)} h` : `${three(value / 86400)} days`;
}
const ratio = (value) => (known(value) ? `${value < 9.995 ? value.toFixed(2) : three(value)}x` : "–");
function bytes(value) {
  if (!known(value)) return "–";
  if (value < 1e6) return `${three(value / 1e3)} KB`;
  return value < 1e9 ? `${three(value / 1e6)} MB` : `${three(value / 1e9)} GB`;
}
const dollars = (value) => (known(value) ? `$${value < 99.5 ? value.toFixed(2) : three(value)}` : "–");
const percent = (value, digits = 0) => (known(value) ? `${(100 * value).toFixed(digits)}%` : "–");
/** Interval in words; a unit of time that both ends have is written once: '60.8 to 71.7 ms'. */
function between(low, high, text) {
  if (!known(low) || !known(high)) return "";
  const [from, to] = [text(low), text(high)], [unit] = / (µs|ms|s|min|h|days)$/.exec(to) ?? [""];
  return `${unit && from.endsWith(unit) ? from.slice(0, -unit.length) : from} to ${to}`;
}
const count = (number, noun) => `${number < 1000 ? number : number.toLocaleString("en-US")} ${noun}${number === 1 ? "" : "s"}`;

function cellName(cell) {
  const where = cell.hosts > 1 ? ` on ${cell.hosts} hosts${cell.link ? ` at ${cell.link}` : ""}` : "";
  return `${cell.workload}, ${cell.strategy}, ${count(cell.devices, "device")}${where}, batch ${cell.batch}`;
}

/** Create an element. Text is always set through textContent, so that no name can become markup. */
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (!known(value) || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter(known));
  return node;
}
function svgElement(tag, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (known(value)) node.setAttribute(name, value);
  if (known(text)) node.textContent = text;
  return node;
}

/** Offer a text as a file; nothing is sent anywhere. */
function download(name, text, type) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Text beside the pointer for HTML and SVG parts with a `data-tip`. */
const tip = element("div", { class: "tip", hidden: true, "aria-hidden": "true" });
document.body.append(tip);
function showTip(event) {
  const target = event.target.closest?.("[data-tip]");
  tip.hidden = !target;
  if (!target) return;
  tip.textContent = target.getAttribute("data-tip");
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 14 : event.clientX + 14;
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.min(innerHeight - box.height - 4, event.clientY + 14)}px`;
}
document.addEventListener("pointermove", showTip);

// Controls.
function choice(label, values, name, texts = String, none = null) {
  const select = element("select", { "data-control": name });
  if (none) select.append(element("option", { value: "", text: none }));
  values.forEach((value) => select.append(element("option", { value: JSON.stringify(value), text: texts(value) })));
  const show = () => { select.value = state[name] === null ? "" : JSON.stringify(state[name]); };
  select.addEventListener("change", () => change({ [name]: select.value ? JSON.parse(select.value) : null }));
  onChange(show, [name]);
  show();
  return element("label", {}, element("span", { text: label }), select);
}
function segmented(label, options, current, pick) {
  const buttons = options.map(([value, text]) => element("button", { type: "button", text, "data-value": value }));
  const mark = (value) => buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.value === value)));
  buttons.forEach((button) => button.addEventListener("click", () => { mark(button.dataset.value); pick(button.dataset.value); }));
  mark(current);
  return element("div", { class: "segmented", role: "group", "aria-label": label }, ...buttons);
}

/** Table of the numbers of a chart, for readers who cannot see it. It is filled when it is opened. */
function numbersOf(title, columns, rows) {
  const details = element("details", {}, element("summary", { text: "Show these numbers as a table" }));
  details.addEventListener("toggle", () => {
    details.querySelector(".scroll")?.remove();
    if (details.open) details.append(element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, plainTable(title, columns, rows())));
  });
  return details;
}
function plainTable(title, columns, rows) {
  const isNumber = columns.map((_, at) => rows.length > 0 && rows.every((row) => /^[–$]?[\d.,]|^–$/.test(String(row[at]))));
  const head = columns.map((text, at) => element("th", { scope: "col", text, class: isNumber[at] ? "number" : null }));
  const body = rows.map((row) => element("tr", {}, ...row.map((text, at) => element("td", { text, class: isNumber[at] ? "number" : null }))));
  return element("table", {}, element("caption", { text: title }), element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}
