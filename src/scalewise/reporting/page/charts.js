"use strict";
// Line charts: speed-up over devices, epoch time over batch size. Measured solid, predicted dashed, intervals shaded.

const MOST_LINES = 5;  // lines that are visible at first
const colourOf = (position) => `var(--c${position % COLOURS})`;
/** Colour of a value in an ordered list, from the first colour of the sequence to the last. */
const orderedColour = (position, number) => `var(--s${number < 2 ? 0 : Math.round(11 * position / (number - 1))})`;

/**
 * A card with a chart of lines, buttons that show and hide them, zoom, and a table of the numbers.
 * `lines()` returns [{key, title, colour, points: [{x, value, low, high, predicted, predicted_low, predicted_high, cell}]}].
 */
function lineCard(title, options) {
  const hidden = new Set(), seen = new Set();
  let zoom = null, lines = [];
  const subtitle = element("p");
  const legend = element("div", { class: "legend", role: "group", "aria-label": `Lines of ${title}` });
  const plot = element("div", { class: "plot" });
  const reset = element("button", { type: "button", text: "Reset zoom", onclick: () => { zoom = null; draw(); } });
  const tools = element("div", { class: "tools" },
    element("button", { type: "button", text: "Zoom in", onclick: () => { zoom = narrowed(0.6); draw(); } }),
    reset,
    element("button", { type: "button", text: "Save SVG", onclick: () => saveSvg(plot.querySelector("svg"), title) }));
  const numbers = numbersOf(title, [...options.columns, "line", "measured", "interval", "predicted", "90% interval"], () =>
    lines.flatMap((line) => line.points.filter((p) => p.cell).map((p) => [
      p.x, line.title, options.text(p.value), between(p.low, p.high, options.text),
      options.text(p.predicted), between(p.predicted_low, p.predicted_high, options.text)])));
  const card = element("figure", { class: "card", "data-chart": options.name },
    element("figcaption", {}, element("h3", { text: title }), subtitle), legend, plot, tools, numbers);
  let drawn = null;

  function narrowed(part) {
    if (!drawn) return null;
    return Object.fromEntries(["x", "y"].map((axis) => {
      const scale = drawn.scale(axis), [from, to] = scale.range;
      const middle = (from + to) / 2, half = (to - from) / 2 * part;
      return [axis, [middle - half, middle + half].map((place) => scale.invert(place))];
    }));
  }

  function draw() {
    lines = options.lines();
    lines.forEach((line, position) => {
      if (!seen.has(line.key)) { seen.add(line.key); if (line.off ?? position >= MOST_LINES) hidden.add(line.key); }
    });
    const shown = lines.filter((line) => !hidden.has(line.key));
    drawLegend();
    reset.hidden = !zoom;
    const points = shown.flatMap((line) => line.points);
    subtitle.textContent = options.subtitle(shown, lines);
    if (!points.length) {
      drawn = null;
      plot.replaceChildren(element("p", { class: "empty", text: lines.length ? "All lines are switched off." : options.empty }));
      return;
    }
    const rough = points.some((p) => known(p.low) && p.high > 1.15 * p.low);  // whiskers would cover each other
    const width = Math.max(260, plot.clientWidth || 480), x = options.x(points), y = options.y(points);
    drawn = Plot.plot({
      width, height: Math.min(400, Math.max(250, width * 0.62)), marginLeft: 56, marginRight: 18, marginBottom: 40, marginTop: 22, insetTop: 8,
      style: { background: "none", overflow: zoom ? "hidden" : "visible" }, clip: Boolean(zoom),
      ariaLabel: `${title}. ${subtitle.textContent}`,
      x: { ...x, ticks: undefined, tickFormat: undefined, axis: null, ...(zoom ? { domain: zoom.x } : {}) },
      y: { ...y, ticks: undefined, tickFormat: undefined, axis: null, grid: false, ...(zoom ? { domain: zoom.y, zero: false } : {}) },
      marks: [...axesOf(x, y, zoom), ...options.under(points), ...shown.flatMap((line, position) => marksOf(line, shown.length > 3 ? 0.1 : 0.16, rough ? 4 * (position - (shown.length - 1) / 2) : 0)), pointerOf(shown)],
    });
    asImage(drawn);
    drawn.addEventListener("click", () => { if (drawn.value?.cell) select(drawn.value.cell.number); });
    plot.replaceChildren(drawn);
  }

  function drawLegend() {
    const keys = lines.map((line) => element("button", {
      type: "button", "aria-pressed": String(!hidden.has(line.key)), "data-line": line.key,
      onclick: () => { if (!hidden.delete(line.key)) hidden.add(line.key); draw(); legend.querySelector(`[data-line="${CSS.escape(line.key)}"]`)?.focus(); },
    }, element("span", { class: "swatch", style: { "--of": line.colour } }), line.title));
    const all = lines.flatMap((line) => line.points);
    const kinds = [["measured", "line", (p) => known(p.value)], ["predicted", "line dashed", (p) => known(p.predicted)], ["interval", "band", (p) => known(p.predicted_low)]]
      .filter(([, , has]) => all.some((p) => p.cell && has(p)))
      .map(([text, kind]) => element("span", { class: "key" }, element("span", { class: `swatch ${kind}` }), text));
    legend.replaceChildren(...keys, ...kinds);
  }

  function pointerOf(shown) {
    const flat = shown.flatMap((line) => line.points.filter((p) => p.cell).map((p) => ({ ...p, y: known(p.value) ? p.value : p.predicted, line })));
    const words = (p) => [
      `${p.line.title} · ${options.at(p)}`,
      known(p.value) ? `measured ${options.text(p.value)}${known(p.low) ? ` (${between(p.low, p.high, options.text)})` : ""}` : null,
      known(p.predicted) ? `predicted ${options.text(p.predicted)}${known(p.predicted_low) ? ` (${between(p.predicted_low, p.predicted_high, options.text)})` : ""}` : null,
      known(p.cell.detail) || p.cell.phases ? "click: see its step" : null,
    ].filter(known).join("\n");
    return Plot.tip(flat, Plot.pointer({ x: "x", y: "y", title: words, stroke: "var(--rule)", fill: "var(--card)", fontSize: 12, lineHeight: 1.25, lineWidth: 30 }));
  }

  brushOf(plot, () => drawn, (area) => { zoom = area; draw(); }, () => { zoom = null; draw(); });
  let lastWidth = 0;
  new ResizeObserver(() => { if (Math.abs(plot.clientWidth - lastWidth) > 8) { lastWidth = plot.clientWidth; draw(); } }).observe(plot);
  onChange(() => { zoom = null; draw(); }, options.listens);
  return card;
}

/** Axes with the ticks and texts of the scales; of a part that was zoomed into, ticks are chosen by Plot. */
function axesOf(x, y, zoom) {
  const ticks = (scale) => ({ ...(zoom || !scale.ticks ? {} : { ticks: scale.ticks }), ...(scale.tickFormat ? { text: scale.tickFormat } : {}), label: scale.label });
  const values = (scale) => (zoom || !scale.ticks ? [] : [scale.ticks]);
  const { ticks: someX, ...restX } = ticks(x), { ticks: someY, ...restY } = ticks(y);
  return [
    someY ? Plot.gridY(someY, { stroke: "var(--grid)", strokeOpacity: 1 }) : Plot.gridY({ stroke: "var(--grid)", strokeOpacity: 1, ticks: 6 }),
    someX ? Plot.axisX(...values(x), { ...restX, tickSize: 4 }) : Plot.axisX({ ...labelled(x), tickSize: 4, ticks: 6 }),
    someY ? Plot.axisY(...values(y), { ...restY, tickSize: 0 }) : Plot.axisY({ ...labelled(y), tickSize: 0, ticks: 6 }),
  ];
}
const labelled = ({ label, tickFormat }) => ({ label, ...(tickFormat ? { tickFormat } : {}) });

/** Marks of one line: measured solid with dots and whiskers, which are moved by `dx`, predicted dashed in its interval. */
function marksOf(line, shade, dx) {
  const stroke = line.colour;
  const measured = line.points.filter((p) => known(p.value)).sort((a, b) => a.x - b.x);
  const predicted = line.points.filter((p) => known(p.predicted)).sort((a, b) => a.x - b.x);
  const band = predicted.filter((p) => known(p.predicted_low));
  const wide = measured.filter((p) => known(p.low));
  return [
    band.length > 1 ? Plot.areaY(band, { x: "x", y1: "predicted_low", y2: "predicted_high", fill: stroke, fillOpacity: shade })
      : Plot.ruleX(band, { x: "x", y1: "predicted_low", y2: "predicted_high", stroke, strokeOpacity: 0.3, strokeWidth: 7 }),
    Plot.line(predicted, { x: "x", y: "predicted", stroke, strokeDasharray: "5 4", strokeWidth: 1.75 }),
    measured.length ? null : Plot.dot(predicted.filter((p) => p.cell), { x: "x", y: "predicted", stroke, fill: "var(--card)", r: 3.2 }),
    Plot.ruleX(wide, { x: "x", y1: "low", y2: "high", stroke, strokeWidth: 1.5, dx }),
    Plot.line(measured, { x: "x", y: "value", stroke, strokeWidth: 2.25 }),
    Plot.dot(measured.filter((p) => p.cell), { x: "x", y: "value", fill: stroke, stroke: "var(--card)", r: 4, dx }),
  ];
}

/** Zoom into the rectangle that is dragged over a chart; a double click shows everything again. */
function brushOf(plot, chart, zoomTo, zoomOut) {
  let from = null;
  const box = element("div", { class: "brush", hidden: true });
  const place = (event) => { const area = plot.getBoundingClientRect(); return [event.clientX - area.left, event.clientY - area.top]; };
  plot.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0 && chart()) from = place(event); }, true);  // before Plot keeps it
  addEventListener("pointermove", (event) => {
    if (!from) return;
    const [x, y] = place(event);
    box.hidden = Math.abs(x - from[0]) < 8;
    if (!box.isConnected) plot.append(box);
    Object.assign(box.style, { left: `${Math.min(x, from[0])}px`, top: `${Math.min(y, from[1])}px`, width: `${Math.abs(x - from[0])}px`, height: `${Math.abs(y - from[1])}px` });
  });
  addEventListener("pointerup", (event) => {
    if (!from) return;
    const [x, y] = place(event), [startX, startY] = from;
    from = null;
    box.hidden = true;
    if (Math.abs(x - startX) < 8 || Math.abs(y - startY) < 8) return;
    const scales = ["x", "y"].map((axis) => chart().scale(axis));
    zoomTo({ x: [startX, x].sort(ascending).map(scales[0].invert), y: [startY, y].sort(ascending).reverse().map(scales[1].invert) });
  });
  plot.addEventListener("dblclick", zoomOut);
}

/** Name a chart as one image; the parts in it are not announced one by one. */
function asImage(svg) {
  svg.setAttribute("role", "img");
  svg.querySelectorAll("g[aria-label]").forEach((group) => { group.dataset.mark = group.getAttribute("aria-label"); group.removeAttribute("aria-label"); });
}

function saveSvg(svg, title) {
  if (!svg) return;
  const probe = element("span");
  document.body.append(probe);
  const resolved = (colour) => { probe.style.color = colour; return d3.color(getComputedStyle(probe).color)?.formatHex() ?? "#808080"; };
  const text = new XMLSerializer().serializeToString(svg).replace(/var\(--[\w-]+\)/g, resolved).replaceAll("currentColor", resolved("var(--ink)"));
  probe.remove();
  download(`${title.replace(/[^\w-]+/g, "-")}.svg`, text, "image/svg+xml");
}

const shownCells = () => (state.workload === null ? CELLS : CELLS.filter((cell) => cell.workload === state.workload));

/** Axis that is logarithmic if its values span more than a factor of `steep`. */
function axis(values, label, steep, more = {}) {
  const least = Math.min(...values), most = Math.max(...values);
  return least > 0 && most > steep * least ? { type: "log", label, grid: true, ...more } : { type: "linear", label, grid: true, ...more };
}

/** Seconds of the unit in which a time is written. */
const unitOf = (value) => (value < 119.5 ? 1 : value < 7200 ? 60 : value < 172800 ? 3600 : 86400);
/** Text of a tick: all ticks of an axis have the same unit, unless it is seconds or less. */
const timeTick = (unit) => (value) => (unit === 1 || value === 0 ? seconds(value) : `${three(value / unit)} ${{ 60: "min", 3600: "h", 86400: "days" }[unit]}`);
/** Ticks 1, 2, 5, 10 ... (fewer over many decades, more within one) in the range of the values. */
function logTicks(values) {
  const [least, most] = d3.extent(values), range = most / least;
  const steps = range > 300 ? [1] : range > 30 ? [1, 3] : range > 10 ? [1, 2, 5] : [1, 2, 3, 4, 6, 8];
  const decades = d3.range(Math.floor(Math.log10(least)), Math.ceil(Math.log10(most)) + 1);
  return decades.flatMap((decade) => steps.map((step) => step * 10 ** decade)).filter((tick) => tick >= least * 0.95 && tick <= most * 1.05);
}
/** Ticks 1, 2, 4, 8 ... of a logarithmic axis; none if the values span less than a factor of 6. */
function doublings(values) {
  const [least, most] = d3.extent(values);
  return most > 6 * least ? { ticks: d3.range(Math.ceil(Math.log2(least)), Math.log2(most) + 0.05).map((power) => 2 ** power) } : {};
}
/** Values whose labels do not overlap on a logarithmic axis: each at least `factor` times the one before. */
function apart(values, factor) {
  const kept = [];
  for (const value of [...values].reverse()) if (!kept.length || kept[0] >= value * factor) kept.unshift(value);
  return kept;
}

// Speed-up over devices.
const isWeak = () => state.scaling === "weak";
const groupOf = (cell) => (isWeak() ? cell.weak_batch : cell.batch);
const hasRatio = (cell) => cell.devices > 1 && known(groupOf(cell)) && (known(cell[ratioName()]) || known(cell[`predicted_${ratioName()}`]));
const ratioName = () => (isWeak() ? "weak" : "speedup");

function ratioPoint(cell) {
  const name = ratioName(), predicted = `predicted_${name}`;
  return {
    x: cell.devices, value: cell[name], low: cell[`${name}_low`], high: cell[`${name}_high`], predicted: cell[predicted],
    predicted_low: cell[`${predicted}_low`], predicted_high: cell[`${predicted}_high`], cell,
  };
}

/** Lines of one workload: a line per strategy at the chosen batch, or, of a single strategy, a line per batch. */
function speedupLines(workload) {
  const cells = CELLS.filter((cell) => cell.workload === workload && hasRatio(cell));
  const strategies = unique(cells.map((cell) => cell.strategy)), groups = unique(cells.map(groupOf)).sort(ascending);
  const byStrategy = strategies.length > 1;
  const batch = groups.includes(state.batch) ? state.batch : groups[Math.floor(groups.length / 2)];
  const chosen = byStrategy ? cells.filter((cell) => groupOf(cell) === batch) : cells;
  const keys = byStrategy ? byBest(strategies, chosen) : groups;
  const start = new Set(byStrategy ? keys.slice(0, MOST_LINES) : spread(groups, 4));
  return keys.map((key, position) => {
    const points = chosen.filter((cell) => (byStrategy ? cell.strategy : groupOf(cell)) === key).map(ratioPoint);
    const one = { x: 1, value: points.some((p) => known(p.value)) ? 1 : null, predicted: points.some((p) => known(p.predicted)) ? 1 : null, predicted_low: 1, predicted_high: 1 };
    const title = byStrategy ? key : `${isWeak() ? "batch/device" : "batch"} ${key}`;
    return { key: `${byStrategy}|${key}`, title, colour: byStrategy ? colourOf(position) : orderedColour(position, keys.length), points: points.length ? [one, ...points] : [], off: !start.has(key) };
  }).filter((line) => line.points.length);
}
function byBest(strategies, cells) {
  const best = (name) => Math.max(...cells.filter((cell) => cell.strategy === name).map((cell) => { const p = ratioPoint(cell); return p.value ?? p.predicted ?? 0; }));
  return [...strategies].sort((a, b) => best(b) - best(a));
}
/** About `number` values, evenly spaced from the first to the last. */
function spread(values, number) {
  if (values.length <= number) return values;
  return unique(Array.from({ length: number }, (_, i) => values[Math.round(i * (values.length - 1) / (number - 1))]));
}

function speedupCard(workload) {
  return lineCard(workload, {
    name: "speedup", listens: ["scaling", "batch"], columns: ["devices"], text: ratio,
    lines: () => speedupLines(workload),
    empty: isWeak() ? "No cells with an equal batch per device." : "No cell on several devices has a cell on one device at the same batch.",
    subtitle: (shown) => {
      const cells = CELLS.filter((cell) => cell.workload === workload && hasRatio(cell)), groups = unique(cells.map(groupOf));
      const several = unique(cells.map((cell) => cell.strategy)).length > 1;
      const at = several ? `${isWeak() ? "batch per device" : "global batch"} ${groups.includes(state.batch) ? state.batch : groups.sort(ascending)[Math.floor(groups.length / 2)]}`
        : unique(cells.map((cell) => cell.strategy)).join("");
      return `${isWeak() ? "Weak scaling: throughput relative to one device" : "Strong scaling: epoch time of one device divided by epoch time"}; ${at}`;
    },
    at: (p) => count(p.x, "device"),
    x: (points) => {
      const most = Math.max(...points.map((p) => p.x)), values = unique(points.map((p) => p.x)).sort(ascending);
      return most > 8 ? { type: "log", base: 2, label: "devices", ticks: values, tickFormat: (d) => String(d) } : { label: "devices", ticks: values, tickFormat: (d) => String(d), domain: [1, Math.max(2, most)] };
    },
    y: (points) => {
      const values = points.flatMap((p) => [p.value, p.predicted]).filter((v) => known(v) && v > 0), most = Math.max(...points.map((p) => p.x));
      return most > 8 ? { ...axis(values, "speed-up", 6), ...doublings(values), tickFormat: (d) => `${d}x` } : { label: "speed-up", grid: true, zero: true, tickFormat: (d) => `${d}x` };
    },
    under: (points) => {
      const most = Math.max(2, ...points.map((p) => p.x)), top = Math.max(...points.flatMap((p) => [p.value, p.predicted, p.predicted_high]).filter(known));
      const end = Math.min(most, Math.max(top, 1.15));
      return [
        Plot.ruleY([1], { stroke: "var(--soft)", strokeWidth: 1 }),
        ...(end < 1.5 ? [] : [Plot.line([[1, 1], [end, end]], { stroke: "var(--soft)", strokeDasharray: "1.5 3.5", strokeOpacity: 0.8 }),
        Plot.text([[end, end]], { text: ["ideal"], dy: -8, textAnchor: "end", fill: "var(--soft)", fontSize: 11 })]),
      ];
    },
  });
}

// Epoch time over batch size.
const timeName = () => (CELLS.some((cell) => known(cell.epoch) || known(cell.predicted_epoch)) ? "epoch" : "step");

function epochLines(workload) {
  const name = timeName(), predicted = `predicted_${name}`;
  const cells = CELLS.filter((cell) => cell.workload === workload && (known(cell[name]) || known(cell[predicted])));
  const strategies = unique(cells.filter((cell) => cell.devices > 1).map((cell) => cell.strategy));
  const strategy = strategies.includes(state.strategy) ? state.strategy : strategies[0];
  const chosen = cells.filter((cell) => cell.devices === 1 || cell.strategy === strategy);
  const counts = unique(chosen.map((cell) => cell.devices)).sort(ascending);
  return counts.map((devices, position) => ({
    key: `devices ${devices}`, title: count(devices, "device"), colour: devices === 1 ? "var(--c9)" : colourOf(position - (counts[0] === 1 ? 1 : 0)), off: position > MOST_LINES,
    points: onePerBatch(chosen.filter((cell) => cell.devices === devices), strategy).map((cell) => ({
      x: cell.batch, value: cell[name], low: cell[`${name}_low`], high: cell[`${name}_high`], predicted: cell[predicted],
      predicted_low: cell[`${predicted}_low`], predicted_high: cell[`${predicted}_high`], cell,
    })),
  }));
}
/** One cell per batch; on one device the baseline, or else the strategy itself. */
function onePerBatch(cells, strategy) {
  const byBatch = new Map();
  for (const cell of cells) {
    const other = byBatch.get(cell.batch);
    if (!other || (other.strategy === strategy && cell.devices === 1)) byBatch.set(cell.batch, cell);
  }
  return [...byBatch.values()];
}

function epochCard(workload) {
  const name = timeName();
  return lineCard(workload, {
    name: "epoch", listens: ["strategy"], columns: ["batch"], text: seconds,
    lines: () => epochLines(workload), empty: "No times to show.",
    subtitle: (shown) => {
      const strategies = unique(shown.flatMap((line) => line.points.map((p) => p.cell)).filter((cell) => cell.devices > 1).map((cell) => cell.strategy));
      return `Time of one ${name}, by global batch${strategies.length ? `; several devices: ${strategies.join(", ")}` : ""}`;
    },
    at: (p) => `batch ${p.x}`,
    x: (points) => {
      const values = unique(points.map((p) => p.x)).sort(ascending);
      const ticks = apart(values, 1.55);
      return values.length < 2 ? { type: "linear", label: "global batch", ticks: values, domain: [values[0] * 0.5, values[0] * 1.5] } : { type: "log", label: "global batch", ticks, tickFormat: (d) => String(d) };
    },
    y: (points) => {
      const ends = (one) => points.flatMap((p) => [p[one], p[`predicted${one === "value" ? "" : `_${one}`}`]]).filter((v) => known(v) && v > 0);
      const middle = ends("value"), values = [...middle, ...ends("low"), ...ends("high")], unit = unitOf(Math.max(...middle));
      const scale = axis(middle, `time per ${name}`, 6, { tickFormat: timeTick(unit) });
      if (scale.type === "log") return { ...scale, ticks: logTicks(values.map((v) => v / unit)).map((v) => v * unit) };
      return { ...scale, zero: true, ticks: d3.ticks(0, Math.max(...values) / unit, 6).map((v) => v * unit) };
    },
    under: () => [],
  });
}
