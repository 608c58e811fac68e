"use strict";
// Horizontal bars: phases of a step, memory per device, comparison of clusters, trials of tuning.

const MOST_BARS = 18;
const phaseColour = (name) => `var(--${name})`;

/** Grid of named rows. `rows`: [{name, note, parts: [{kind, content, value}], cell}]. */
function barGrid(label, rows) {
  const grid = element("div", { class: "bars", role: "list", "aria-label": label });
  rows.forEach((row, position) => {
    if (position) grid.append(element("div", { class: "separate", role: "presentation" }));
    row.parts.forEach((part, number) => {
      const openable = number === 0 && row.cell && hasStep(row.cell);
      const name = element(openable ? "button" : "div", {
        class: "name", type: openable ? "button" : null, onclick: openable ? () => select(row.cell.number, true) : null,
      }, ...(number === 0 ? [row.name, row.note ? element("small", { text: row.note }) : null].filter(known) : []));
      const value = element("div", { class: "value" }, part.value, part.kind ? element("small", { text: part.kind }) : null);
      grid.append(element("div", { class: "row", role: "listitem" }, name, part.content, value));
    });
  });
  return grid;
}
function track(most, ...children) { return element("div", { class: "track" }, ...children.filter(known)); }
const width = (value, most) => ({ width: `${Math.max(0, Math.min(100, 100 * value / most))}%` });
function whisker(low, high, most) {
  if (!known(low) || !known(high)) return null;
  return element("span", { class: "whisker", style: { left: `${100 * low / most}%`, width: `${Math.max(0, Math.min(100, 100 * high / most) - 100 * low / most)}%` } });
}

/** Cells of the bars: at the chosen workload, batch and number of devices, as many as can be read. */
function barCells(usable) {
  let cells = shownCells().filter(usable);
  const batches = unique(cells.map((cell) => cell.batch)).sort(ascending);
  const weak = unique(cells.map((cell) => cell.weak_batch)).length === 1 && batches.length > 1;
  const batch = batches.includes(state.batch) ? state.batch : batches[Math.floor(batches.length / 2)];
  if (!weak) cells = cells.filter((cell) => cell.batch === batch);
  if (state.devices !== null) cells = cells.filter((cell) => cell.devices === state.devices || cell.devices === 1);
  return cells;
}
function barNames(cell) {
  const workload = state.workload === null && unique(CELLS.map((c) => c.workload)).length > 1 ? `${cell.workload}, ` : "";
  return { name: `${workload}${cell.strategy}`, note: `${count(cell.devices, "device")}, batch ${cell.batch}${cell.hosts > 1 ? `, ${cell.hosts} hosts` : ""}` };
}
function limited(container, rows, draw) {
  const all = container.dataset.all === "yes";
  const shown = all ? rows : rows.slice(0, MOST_BARS);
  const more = rows.length > shown.length
    ? element("button", { type: "button", text: `Show all ${rows.length} rows`, onclick: () => { container.dataset.all = "yes"; draw(); } }) : null;
  return [shown, more ? element("div", { class: "tools" }, more) : null];
}

function phasesBody() {
  const body = element("div", { class: "card", "data-chart": "phases" });
  const usable = (cell) => cell.phases || cell.predicted_phases;
  function draw() {
    const cells = barCells(usable).sort((a, b) => total(a) - total(b));
    const [shown, more] = limited(body, cells, draw);
    const used = DOCUMENT.phases.filter((_, at) => shown.some((cell) => (cell.phases?.[at] || cell.predicted_phases?.[at])));
    const legend = element("div", { class: "legend", "aria-label": "Phases" }, ...used.map((phase) =>
      element("span", { class: "key" }, element("span", { class: "swatch", style: { "--of": phaseColour(phase) } }), phase)));
    // Every workload has its own scale: a step of one may take a hundred times as long as that of another.
    const grids = [...d3.group(shown, (cell) => cell.workload)].map(([workload, group]) => {
      const most = Math.max(...group.flatMap((cell) => [cell.phases, cell.predicted_phases].filter(known).map((p) => d3.sum(p))), 1e-12);
      const rows = group.map((cell) => ({ ...barNames(cell), cell, parts: [["measured", cell.phases], ["predicted", cell.predicted_phases]].filter(([, p]) => p).map(([kind, p]) => ({
        kind, value: seconds(d3.sum(p)), content: track(most, stack(p, most, kind)),
      })) }));
      return barGrid(`Time of one step of ${workload} by phase`, rows);
    });
    body.replaceChildren(legend, ...(grids.length > 1 ? [element("p", { class: "note", text: "Every workload has its own scale." })] : []), ...grids, ...(more ? [more] : []),
      numbersOf("Seconds per step by phase", ["cell", "", ...used, "step"], () => shown.flatMap((cell) => [["measured", cell.phases], ["predicted", cell.predicted_phases]]
        .filter(([, p]) => p).map(([kind, p]) => [cellName(cell), kind, ...used.map((phase) => seconds(p[DOCUMENT.phases.indexOf(phase)])), seconds(d3.sum(p))]))));
  }
  const total = (cell) => d3.sum(cell.phases ?? cell.predicted_phases);
  onChange(draw, ["workload", "batch", "devices"]);
  draw();
  return body;
}
function stack(phases, most, kind) {
  const whole = d3.sum(phases);
  return element("div", { class: `stack ${kind}`, style: width(whole, most) }, ...phases.map((value, at) => (value > 0 ? element("span", {
    style: { width: `${100 * value / whole}%`, background: phaseColour(DOCUMENT.phases[at]) }, "data-tip": `${DOCUMENT.phases[at]}, ${kind}: ${seconds(value)} (${percent(value / whole)} of the step)`,
  }) : null)));
}

function memoryBody() {
  const body = element("div", { class: "card", "data-chart": "memory" });
  const usable = (cell) => known(cell.memory) || known(cell.predicted_memory);
  function draw() {
    const cells = barCells(usable).sort((a, b) => (b.memory ?? b.predicted_memory) - (a.memory ?? a.predicted_memory));
    const [shown, more] = limited(body, cells, draw);
    const largest = Math.max(...shown.flatMap((cell) => [cell.memory, cell.predicted_memory]).filter(known), 1);
    const capacity = Math.max(...shown.map((cell) => cell.capacity).filter(known), 0);
    const most = capacity && capacity < 25 * largest ? Math.max(capacity, largest) * 1.04 : largest * 1.04;
    const limitAt = (cell) => (known(cell.capacity) && cell.capacity <= most ? element("span", { class: "limit", style: { left: `${100 * cell.capacity / most}%` }, "data-tip": `capacity of a device: ${bytes(cell.capacity)}` }) : null);
    const rows = shown.map((cell) => ({ ...barNames(cell), cell, parts: [["measured", cell.memory, true], ["predicted", cell.predicted_memory, cell.fits !== false]].filter(([, v]) => known(v)).map(([kind, value, fits]) => ({
      kind: fits ? kind : `${kind}: does not fit`, value: bytes(value),
      content: track(most, element("div", { class: `fill ${kind}-fill`, style: { ...width(value, most), "--of": fits ? "var(--c0)" : "var(--bad)" }, "data-tip": `${kind}: ${bytes(value)}${known(cell.capacity) ? ` of ${bytes(cell.capacity)} (${percent(value / cell.capacity)})` : ""}` }), limitAt(cell)),
    })) }));
    const note = capacity ? `Capacity of a device: ${bytes(capacity)}${capacity > most ? ", far more than is used" : " (dashed line)"}.` : "The capacity of the devices is not known.";
    body.replaceChildren(element("p", { class: "note", text: note }), barGrid("Peak memory per device", rows), ...(more ? [more] : []),
      numbersOf("Peak memory per device", ["cell", "measured", "predicted", "capacity"], () => shown.map((cell) => [cellName(cell), bytes(cell.memory), bytes(cell.predicted_memory), bytes(cell.capacity)])));
  }
  onChange(draw, ["workload", "batch", "devices"]);
  draw();
  return body;
}

/** Clusters with time, cost and intervals: bars, cost over time, and a table. */
function comparisonBody() {
  const entries = DOCUMENT.comparison, finishes = entries.every((entry) => entry.finishes);
  const period = finishes ? "to finish" : "per million samples";
  const most = Math.max(...entries.flatMap((entry) => [entry.time, entry.time_high]).filter(known), 1e-12) * 1.02;
  const recommended = (entry) => entry.cluster === DOCUMENT.recommended;
  const rows = entries.map((entry) => ({
    name: entry.cluster, note: known(entry.time) ? `${entry.best.strategy}, ${count(entry.best.devices, "device")}, batch ${entry.best.batch}` : "does not fit in memory",
    parts: [{
      kind: known(entry.cost) ? dollars(entry.cost) : "no price", value: seconds(entry.time),
      content: track(most, element("div", { class: "fill", style: { ...width(entry.time ?? 0, most), "--of": recommended(entry) ? "var(--good)" : "var(--c0)" } }), whisker(entry.time_low, entry.time_high, most)),
    }],
  }));
  const columns = [
    ["strategy", (entry) => entry.best.strategy], ["devices", (entry) => entry.best.devices, true], ["batch", (entry) => entry.best.batch, true],
    [`time ${period}`, (entry) => seconds(entry.time), true, (entry) => between(entry.time_low, entry.time_high, seconds)],
    ["cost", (entry) => (known(entry.cost) ? dollars(entry.cost) : "no price"), true, (entry) => between(entry.cost_low, entry.cost_high, dollars)],
    ["energy", (entry) => (known(entry.energy_kWh) ? `${three(entry.energy_kWh)} kWh` : null), true], ["flops used", (entry) => (known(entry.utilisation) ? percent(entry.utilisation) : null), true],
    ["would fit with", (entry) => entry.would_fit], ["price from", (entry) => entry.price_source], ["prediction from", (entry) => entry.quality],
  ].filter(([, text]) => entries.some((entry) => known(text(entry)) && text(entry) !== ""));
  const heading = ([text, , number]) => element("th", { scope: "col", class: number ? "number" : null, text });
  const table = element("table", { "data-table": "comparison" },
    element("caption", { text: "Fastest strategy on every cluster, with 90% intervals below the numbers" }),
    element("thead", {}, element("tr", {}, element("th", { scope: "col", text: "cluster" }), ...columns.map(heading))),
    element("tbody", {}, ...entries.map((entry) => element("tr", { class: recommended(entry) ? "recommended" : null },
      element("th", { scope: "row" }, entry.cluster, recommended(entry) ? element("span", { class: "badge good", text: "recommended" }) : null),
      ...columns.map(([, text, number, interval]) => element("td", { class: number ? "number" : null }, text(entry) ?? "–", interval?.(entry) ? element("small", { text: interval(entry) }) : null))))));
  const priced = entries.filter((entry) => known(entry.time) && known(entry.cost));
  return element("div", { class: "cards" },
    element("figure", { class: "card filled" }, element("figcaption", {}, element("h3", { text: `Time ${period}` }), element("p", { text: "Fastest strategy on every cluster; whiskers: 90% interval" })), barGrid(`Time ${period} by cluster`, rows)),
    ...(priced.length > 1 ? [tradeoffCard(priced, period, recommended)] : []),
    element("div", { class: "card wide" }, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Comparison of clusters" }, table)));
}
function tradeoffCard(priced, period, recommended) {
  const plot = element("div", { class: "plot" });
  const longest = d3.max(priced, (entry) => entry.time_high ?? entry.time), unit = unitOf(longest), part = (entry) => entry.time / longest;
  const name = { 1: "seconds", 60: "minutes", 3600: "hours", 86400: "days" }[unit];
  const label = (textAnchor, dx, filter) => Plot.text(priced, { x: (entry) => entry.time / unit, y: "cost", text: "cluster", dy: -13, dx, fill: "var(--ink)", fontSize: 12, textAnchor, filter });
  const draw = () => {
    const svg = Plot.plot({
      width: Math.max(260, plot.clientWidth || 480), height: 260, marginLeft: 52, marginRight: 24, marginBottom: 40, marginTop: 24, insetTop: 22, ariaLabel: "Cost over time, a point per cluster", style: { background: "none", overflow: "visible" },
      x: { label: `${name} ${period}`, zero: true, grid: true, nice: true }, y: { label: "cost", zero: true, grid: true, nice: true, ticks: 5, tickFormat: (d) => `$${three(d)}` }, color: { type: "identity" },
      marks: [
        Plot.ruleY(priced, { x1: (entry) => (entry.time_low ?? entry.time) / unit, x2: (entry) => (entry.time_high ?? entry.time) / unit, y: "cost", stroke: "var(--soft)", strokeWidth: 1.5 }),
        Plot.ruleX(priced, { x: (entry) => entry.time / unit, y1: (entry) => entry.cost_low ?? entry.cost, y2: (entry) => entry.cost_high ?? entry.cost, stroke: "var(--soft)", strokeWidth: 1.5 }),
        Plot.dot(priced, { x: (entry) => entry.time / unit, y: "cost", r: 6, fill: (entry) => (recommended(entry) ? "var(--good)" : "var(--c0)"), stroke: "var(--card)" }),
        label("start", 8, (entry) => part(entry) < 0.3), label("middle", 0, (entry) => part(entry) >= 0.3 && part(entry) <= 0.7), label("end", -8, (entry) => part(entry) > 0.7),
      ],
    });
    asImage(svg);
    plot.replaceChildren(svg);
  };
  let last = 0;
  new ResizeObserver(() => { if (Math.abs(plot.clientWidth - last) > 8) { last = plot.clientWidth; draw(); } }).observe(plot);
  return element("figure", { class: "card" }, element("figcaption", {}, element("h3", { text: "Cost over time" }), element("p", { text: "Towards the lower left: faster and cheaper; bars: 90% intervals" })), plot);
}

/** Trials of tuning one device. The first is plain eager mode. */
function tuningBody() {
  const { trials, best, roofline_seconds: roofline, device, workload, batch, command, batches, offers } = DOCUMENT.tuning;
  const timed = trials.filter((trial) => trial.step_seconds);
  const most = Math.max(...timed.map((trial) => trial.step_seconds.high ?? trial.step_seconds.median), roofline ?? 0, 1e-12) * 1.02;
  const first = trials[0]?.step_seconds?.median;
  const gain = (trial) => trial.speedup ?? (first ? first / trial.step_seconds.median : null);
  const mathematics = (trial) => (trial.same_mathematics === false ? "changes the training result" : null);
  const rows = timed.map((trial) => {
    const number = trials.indexOf(trial), { median, low, high } = trial.step_seconds;
    const limit = known(roofline) ? element("span", { class: "limit", style: { left: `${100 * roofline / most}%` }, "data-tip": `roofline of the device: ${seconds(roofline)}` }) : null;
    const colour = number === best ? "var(--good)" : number === 0 ? "var(--c9)" : mathematics(trial) ? "var(--c4)" : "var(--c0)";
    return {
      name: trial.label, note: [number === best ? "recommended" : null, mathematics(trial)].filter(known).join(", ") || null,
      parts: [{ kind: ratio(gain(trial)), value: seconds(median), content: track(most, element("div", { class: "fill", style: { ...width(median, most), "--of": colour } }), whisker(low, high, most), limit) }],
    };
  });
  const deviation = (value) => (value && typeof value === "object" ? value.gradients : value);
  const columns = ["options", "step", "95% interval", "over eager", "peak memory", "deviation of gradients", "compilation", "same mathematics", ...(trials.some((trial) => trial.skipped) ? ["skipped"] : [])];
  const cells = trials.map((trial) => [
    trial.label, seconds(trial.step_seconds?.median), between(trial.step_seconds?.low, trial.step_seconds?.high, seconds) || "–", trial.step_seconds ? ratio(gain(trial)) : "–",
    bytes(trial.peak_memory_bytes), deviation(trial.deviation) ? deviation(trial.deviation).toExponential(0) : deviation(trial.deviation) === 0 ? "0" : "–", trial.skipped ? "–" : seconds(trial.compile_seconds),
    trial.skipped ? "–" : mathematics(trial) ? "no" : "yes", trial.skipped || "",
  ].slice(0, columns.length));
  const about = `${workload}${known(batch) ? `, batch ${batch}` : ""}, on ${device}. Whiskers: 95% interval.${known(roofline) ? ` Dashed line: roofline of the device for the operations of plain eager mode, ${seconds(roofline)}.` : ""}`;
  return [element("div", { class: "card" },
    element("p", { class: "note", text: about }), barGrid("Step time by options", rows),
    offers?.length ? element("p", { class: "note", text: `A lower precision is faster, but changes the training result: ${offers.map((offer) => `${offer.label} (${ratio(offer.speedup)})`).join(", ")}.` }) : null,
    command ? element("p", {}, "Train with: ", element("code", { text: command })) : null,
    batches?.trials?.length ? batchSearch(batches) : null,
    element("details", { open: true }, element("summary", { text: "All trials" }), element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Trials" }, plainTable("Trials in the order in which they ran", columns, cells))))];
}
function batchSearch(batches) {
  const timed = batches.trials.filter((trial) => known(trial.samples_per_second)), most = Math.max(...timed.map((trial) => trial.samples_per_second), 1e-12);
  const rows = batches.trials.map((trial) => ({
    name: `batch ${trial.batch}`, note: [trial.batch === batches.saturating ? "saturates the device" : null, trial.batch === batches.largest ? "largest that ran" : null, trial.skipped].filter(known).join(", ") || null,
    parts: [{ kind: bytes(trial.peak_memory_bytes), value: known(trial.samples_per_second) ? `${three(trial.samples_per_second)}/s` : "–", content: track(most, element("div", { class: "fill", style: width(trial.samples_per_second ?? 0, most) })) }],
  }));
  return element("div", {}, element("h3", { text: "Samples per second by batch" }), barGrid("Samples per second by batch", rows));
}
