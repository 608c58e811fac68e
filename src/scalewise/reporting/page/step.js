"use strict";
// The step of one cell: its timeline, measured above predicted, and the devices and links that it uses.

const hasStep = (cell) => known(cell.detail) || Boolean(cell.phases);
const detailOf = (cell) => (cell && known(cell.detail) ? DOCUMENT.details[cell.detail] : null);

/** Show the step of a cell, and go to it if `scroll`. */
function select(number, scroll = false) {
  change({ selected: number });
  if (scroll) {
    const section = document.getElementById("timeline");
    section?.scrollIntoView();
    section?.querySelector("h2")?.focus({ preventScroll: true });
  }
}

/** The cell that is shown at first: the advised one, or the fastest on several devices. */
function firstSelected() {
  const cells = CELLS.filter(hasStep);
  const { best } = DOCUMENT;
  const advised = best && cells.find((cell) => cell.strategy === best.strategy && cell.devices === best.devices && cell.batch === best.batch);
  const gain = (cell) => cell.speedup ?? cell.predicted_speedup ?? 0;
  const several = cells.filter((cell) => cell.devices > 1);
  return advised ?? d3.greatest(several, gain) ?? cells[0] ?? null;
}

const MOST_CHOICES = 600;  // of more cells, those of the shown workload and batch; the table has a button for each
function stepPicker() {
  const picker = element("select", { "data-control": "step" });
  const fill = () => {
    const all = CELLS.filter(hasStep), shown = CELLS[state.selected];
    const cells = all.length <= MOST_CHOICES ? all : all.filter((cell) => cell.workload === shown.workload && cell.batch === shown.batch);
    const groups = unique(cells.map((cell) => cell.workload)).map((workload) => element("optgroup", { label: workload },
      ...cells.filter((cell) => cell.workload === workload).map((cell) => element("option", { value: cell.number, text: cellName(cell).replace(`${workload}, `, "") }))));
    picker.replaceChildren(...(groups.length > 1 ? groups : groups[0]?.children ?? []));
  };
  picker.addEventListener("change", () => change({ selected: Number(picker.value) }));
  const show = () => {
    if (!picker.querySelector(`option[value="${state.selected}"]`)) fill();
    picker.value = String(state.selected);
  };
  onChange(show, ["selected"]);
  show();
  return element("label", {}, element("span", { text: "Cell" }), picker);
}

const LANE = 22, GAP = 6, LABELS = 150;

function timelineBody() {
  const plot = element("div", { class: "plot", tabindex: "0", role: "group", "aria-label": "Timeline. Arrow keys move, plus and minus zoom." });
  const title = element("h3"), subtitle = element("p"), legend = element("div", { class: "legend", "aria-label": "Phases" });
  const numbers = element("div");
  let transform = d3.zoomIdentity, zoom = null, last = 0;
  const by = (factor) => zoom && d3.select(plot).select("svg").call(zoom.scaleBy, factor);
  const shift = (part) => zoom && d3.select(plot).select("svg").call(zoom.translateBy, part * (plot.clientWidth - LABELS) / transform.k, 0);
  const tools = element("div", { class: "tools" },
    element("button", { type: "button", text: "Zoom in", onclick: () => by(2) }), element("button", { type: "button", text: "Zoom out", onclick: () => by(0.5) }),
    element("button", { type: "button", text: "Reset zoom", onclick: () => zoom && d3.select(plot).select("svg").call(zoom.transform, d3.zoomIdentity) }));
  plot.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => shift(0.2), ArrowRight: () => shift(-0.2), "+": () => by(1.5), "=": () => by(1.5), "-": () => by(1 / 1.5) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  function draw() {
    const cell = CELLS[state.selected];
    if (!cell) { plot.replaceChildren(element("p", { class: "empty", text: "No cell has a step to show." })); return; }
    const groups = lanesOf(cell), length = Math.max(...groups.map((group) => group.seconds), 1e-12);
    title.textContent = cellName(cell);
    const times = [known(cell.step) ? `Measured step: ${seconds(cell.step)}` : null, known(cell.predicted_step) ? `${known(cell.step) ? "predicted" : "Predicted step"}: ${seconds(cell.predicted_step)}${known(cell.predicted_step_low) ? ` (90% interval ${between(cell.predicted_step_low, cell.predicted_step_high, seconds)})` : ""}` : null].filter(known);
    subtitle.textContent = `${times.join("; ")}.${known(cell.recorded) ? " One measured step is shown; a transfer lasts until its call returns, so it includes waiting for other devices." : cell.phases ? " Measured are the phases of the slowest device, shown in their usual order." : ""}`;
    const used = unique(groups.flatMap((group) => group.lanes.flatMap((lane) => lane.spans.map((span) => span.phase))));
    legend.replaceChildren(...DOCUMENT.phases.filter((phase) => used.includes(phase)).map((phase) => element("span", { class: "key" }, element("span", { class: "swatch", style: { "--of": phaseColour(phase) } }), phase)));
    drawLanes(groups, length, cell);
    numbers.replaceChildren(numbersOf("Seconds per step by phase", ["phase", ...groups.filter((g) => g.phases).map((g) => g.title)], () =>
      DOCUMENT.phases.map((phase, at) => [phase, ...groups.filter((g) => g.phases).map((g) => seconds(g.phases[at]))]).filter((row) => row.slice(1).some((text) => !/^(0|–)$/.test(text)))));
  }

  function drawLanes(groups, length, cell) {
    const wide = Math.max(300, plot.clientWidth || 800), labels = wide < 520 ? 96 : LABELS, right = 12;
    const rows = groups.flatMap((group) => [{ heading: group.title }, ...group.lanes]);
    const high = rows.reduce((y, row) => y + (row.heading ? 26 : LANE + GAP), 0);
    const svg = svgElement("svg", { width: wide, height: high + 34, viewBox: `0 0 ${wide} ${high + 34}`, role: "img", "aria-label": `Timeline of ${cellName(cell)}: ${groups.map((g) => `${g.title}, ${seconds(g.seconds)}`).join("; ")}` });
    const clip = svgElement("clipPath", { id: "lanes" });
    clip.append(svgElement("rect", { x: labels, y: 0, width: wide - labels - right, height: high }));
    const area = svgElement("g", { "clip-path": "url(#lanes)" }), names = svgElement("g"), axis = svgElement("g", { transform: `translate(0,${high + 4})` });
    svg.append(clip, area, names, axis);
    let y = 0;
    const placed = [];
    for (const row of rows) {
      if (row.heading) {
        names.append(svgElement("text", { x: 0, y: y + 17, "font-weight": 650, fill: "currentColor" }, row.heading));
        y += 26;
        continue;
      }
      names.append(svgElement("text", { x: 8, y: y + 15, "font-size": 11.5, fill: "var(--soft)" }, wide < 520 ? row.name.replace("device ", "dev ").replace(", transfers", ", link") : row.name));
      area.append(svgElement("rect", { x: labels, y, width: wide - labels - right, height: LANE, fill: "var(--wash)", rx: 3 }));
      for (const span of row.spans) {
        const rect = svgElement("rect", { y: row.kind === "link" ? y + 5 : y, height: row.kind === "link" ? LANE - 10 : LANE, fill: phaseColour(span.phase), "data-phase": span.phase, "data-tip": `${row.name}: ${span.phase}\nfrom ${seconds(span.start)} for ${seconds(span.length)}` });
        area.append(rect);
        placed.push([rect, span]);
      }
      y += LANE + GAP;
    }
    const scale = d3.scaleLinear([0, length], [labels, wide - right]);
    const place = () => {
      const now = transform.rescaleX(scale);
      for (const [rect, span] of placed) {
        const from = now(span.start);
        rect.setAttribute("x", from);
        rect.setAttribute("width", Math.max(0.6, now(span.start + span.length) - from));
      }
      d3.select(axis).call(d3.axisBottom(now).ticks(Math.max(3, (wide - labels) / 110)).tickFormat(seconds).tickSizeOuter(0)).call((g) => g.selectAll("text").attr("font-size", 11).attr("font-family", "inherit"));
    };
    const extent = [[labels, 0], [wide - right, high]];
    zoom = d3.zoom().scaleExtent([1, 200]).translateExtent(extent).extent(extent).filter((event) => (event.type === "wheel" ? event.ctrlKey || event.metaKey : !event.button))
      .on("zoom", (event) => { transform = event.transform; place(); });
    d3.select(svg).call(zoom).on("dblclick.zoom", () => d3.select(svg).call(zoom.transform, d3.zoomIdentity));
    transform = d3.zoomIdentity;
    place();
    plot.replaceChildren(svg);
  }

  onChange(draw, ["selected"]);
  new ResizeObserver(() => { if (Math.abs(plot.clientWidth - last) > 8) { last = plot.clientWidth; draw(); } }).observe(plot);
  return element("figure", { class: "card", "data-chart": "timeline" }, element("figcaption", {}, title, subtitle), legend, plot, tools, numbers);
}

/** Lanes of a compact timeline, whose times are ten-thousandths of its length. */
function unpacked({ seconds: length, lanes, spans }) {
  const unit = length / 10000;
  return lanes.map(([name, kind, number]) => {
    const flat = spans[number];
    return { name, kind, spans: d3.range(0, flat.length, 3).map((at) => ({ phase: DOCUMENT.phases[flat[at]], start: flat[at + 1] * unit, length: flat[at + 2] * unit })) };
  });
}

/** Lanes of the measured step, as far as it is recorded, and of the predicted step. */
function lanesOf(cell) {
  const groups = [];
  if (known(cell.recorded)) {
    const step = DOCUMENT.recorded[cell.recorded];
    groups.push({ title: "Measured", seconds: step.seconds, phases: cell.phases, lanes: unpacked(step) });
  } else if (cell.phases) {
    let start = 0;
    const spans = DOCUMENT.phases.map((phase, at) => ({ phase, length: cell.phases[at] })).filter((span) => span.length > 0).map((span) => { const placed = { ...span, start }; start += span.length; return placed; });
    groups.push({ title: "Measured", seconds: start, phases: cell.phases, lanes: [{ name: "slowest device", kind: "device", spans }] });
  }
  const detail = detailOf(cell);
  if (detail) {
    const { seconds: length, hidden_devices: more } = detail.timeline;
    const title = more ? `Predicted (${count(more, "further device")} do the same)` : "Predicted";
    groups.push({ title, seconds: length, phases: cell.predicted_phases, lanes: unpacked(detail.timeline) });
  }
  return groups;
}

// The cluster: devices, hosts and links. A link is drawn as a bar that joins its devices, coloured by its use.

const USES = [[0.02, "under 2%"], [0.25, "2 to 25%"], [0.5, "25 to 50%"], [0.8, "50 to 80%"], [Infinity, "80% or more"]];
const useColour = (use) => (known(use) ? `var(--use${USES.findIndex(([limit]) => use < limit)})` : "var(--use0)");

function topologyBody() {
  const plot = element("div", { class: "plot" }), title = element("h3"), subtitle = element("p"), numbers = element("div");
  const legend = element("div", { class: "legend", "aria-label": "Use of a link" }, element("span", { class: "key", text: "busy during the step:" }), ...USES.map(([, text], at) => element("span", { class: "key" }, element("span", { class: "swatch", style: { "--of": `var(--use${at})` } }), text)));
  let last = 0;
  function draw() {
    const cell = CELLS[state.selected], detail = detailOf(cell);
    if (!detail) {
      title.textContent = cell ? cellName(cell) : "";
      subtitle.textContent = "";
      plot.replaceChildren(element("p", { class: "empty", text: "This cell has no prediction, so the use of its links is not known." }));
      return;
    }
    const shape = DOCUMENT.topologies[detail.topology], use = (slot) => (known(slot) ? detail.use[slot] / 1000 : null);
    title.textContent = `${shape.cluster}: ${cellName(cell)}`;
    subtitle.textContent = "Predicted. Colour: part of the step in which a link carries data; the percentage in a device: part in which it computes.";
    plot.replaceChildren(drawCluster(shape, use, Math.max(280, plot.clientWidth || 800)));
    numbers.replaceChildren(numbersOf("Use of devices and links during the step", ["part", "kind", "GB/s", "in use"], () => partsOf(shape, use)));
  }
  onChange(draw, ["selected"]);
  new ResizeObserver(() => { if (Math.abs(plot.clientWidth - last) > 8) { last = plot.clientWidth; draw(); } }).observe(plot);
  return element("figure", { class: "card", "data-chart": "topology" }, element("figcaption", {}, title, subtitle), legend, plot, numbers);
}

function partsOf(shape, use) {
  return shape.hosts.flatMap((host, number) => [
    ...host.devices.map((device) => [`device ${device.rank}`, device.name, "–", percent(use(device.slot))]),
    ...host.links.flatMap((link) => link.groups.map((group) => [`${link.between === "host-device" ? "host memory" : "devices"} of host ${number}: ${group.join(", ")}`, link.kind, three(link.GBps), percent(d3.max(group, (rank) => use(link.ends[rank - host.devices[0].rank])))])),
    ...(known(host.uplink) ? [[`host ${number} to the network`, shape.network.kind, three(shape.network.GBps), percent(use(host.uplink))]] : []),
  ]).concat(shape.pairs.map((pair) => [`host ${pair.hosts[0]} to host ${pair.hosts[1]}`, shape.network.kind, three(shape.network.GBps), percent(use(pair.slot))]));
}

const BOX = { width: 104, widest: 168, height: 52, gap: 14, pad: 16, bar: 20, drop: 26 };  // sizes of the picture of a host

/** Draw hosts beside each other as far as they fit; every link of a host is a bar below its devices. */
function drawCluster(shape, use, wide) {
  const most = Math.max(...shape.hosts.map((host) => host.devices.length));
  const perRow = Math.max(1, Math.min(most, Math.floor((wide - 2 * BOX.pad + BOX.gap) / (BOX.width + BOX.gap))));
  const beside = Math.min(shape.hosts.length, Math.max(1, Math.floor((wide + 18) / (2 * BOX.pad + perRow * (BOX.width + BOX.gap) - BOX.gap + 18))));
  const room = (wide - 18 * (beside - 1)) / beside - 2 * BOX.pad;
  const boxWidth = Math.max(BOX.width, Math.min(BOX.widest, (room + BOX.gap) / perRow - BOX.gap));
  const hostWidth = 2 * BOX.pad + Math.max(perRow * (boxWidth + BOX.gap) - BOX.gap, Math.min(room, 240));
  const across = Math.max(1, Math.floor((wide + 18) / (hostWidth + 18)));
  const network = shape.network ? 46 : 0;
  const heights = shape.hosts.map((host) => hostHeight(host, perRow));
  const rowHeight = Math.max(...heights) + 22, rows = Math.ceil(shape.hosts.length / across);
  const high = network + rows * rowHeight + (shape.hidden_hosts ? 24 : 0);
  const svg = svgElement("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `Devices and links of ${shape.cluster}. ${partsOf(shape, use).map(([part, kind, , busy]) => `${part}, ${kind}: ${busy}`).join("; ")}`.slice(0, 1500) });
  const spots = shape.hosts.map((_, number) => [(number % across) * (hostWidth + 18), network + Math.floor(number / across) * rowHeight]);
  if (shape.network) {
    const span = Math.min(wide, Math.min(across, shape.hosts.length) * (hostWidth + 18) - 18), middle = Math.max(...shape.hosts.map((host) => use(host.uplink) ?? 0), ...shape.pairs.map((pair) => use(pair.slot)));
    bar(svg, 0, 4, span, `${shape.network.kind}, ${three(shape.network.GBps)} GB/s`, middle, `network between hosts: ${shape.network.kind}`);
    spots.forEach(([x, y], number) => {
      const busy = use(shape.hosts[number].uplink) ?? d3.max(shape.pairs.filter((pair) => pair.hosts.includes(number)), (pair) => use(pair.slot)) ?? null;
      wire(svg, x + hostWidth / 2, 4 + BOX.bar, y, busy, `host ${number} to the network`);
    });
  }
  shape.hosts.forEach((host, number) => drawHost(svg, shape, host, number, spots[number], hostWidth, heights[number], perRow, boxWidth, use));
  if (shape.hidden_hosts) svg.append(svgElement("text", { x: 0, y: high - 6, fill: "var(--soft)" }, `and ${count(shape.hidden_hosts, "further host")} like these`));
  return svg;
}
const hostHeight = (host, perRow) => 30 + Math.ceil(host.devices.length / perRow) * (BOX.height + 12) + host.links.length * (BOX.bar + BOX.drop) + 8;

function drawHost(svg, shape, host, number, [x, y], wide, high, perRow, boxWidth, use) {
  svg.append(svgElement("rect", { x: x + 0.5, y: y + 0.5, width: wide - 1, height: high - 1, rx: 10, fill: "none", stroke: "var(--rule)", "stroke-width": 1.5 }));
  svg.append(svgElement("text", { x: x + BOX.pad, y: y + 20, fill: "var(--soft)", "font-size": 12 }, shape.hosts.length > 1 || shape.hidden_hosts ? `host ${number}` : "one host"));
  const first = host.devices[0].rank, rows = Math.ceil(host.devices.length / perRow);
  const at = (rank) => { const place = rank - first; return [x + BOX.pad + (place % perRow) * (boxWidth + BOX.gap), y + 30 + Math.floor(place / perRow) * (BOX.height + 12)]; };
  let level = y + 30 + rows * (BOX.height + 12) - 12;
  // Wires first, so that bars and boxes cover them; every link has its own place on the edge of a box.
  const bars = [];
  host.links.forEach((link, order) => {
    level += BOX.drop;
    link.groups.forEach((group) => {
      const busy = d3.max(group, (rank) => use(link.ends[rank - first])), ends = group.map((rank) => at(rank)[0] + boxWidth * (order + 1) / (host.links.length + 1));
      group.forEach((rank, position) => wire(svg, ends[position], at(rank)[1] + BOX.height, level, use(link.ends[rank - first]), `device ${rank}, ${link.kind}`));
      const from = Math.min(...group.map((rank) => at(rank)[0])), to = Math.max(...group.map((rank) => at(rank)[0])) + boxWidth;
      const memory = link.between === "host-device";
      bars.push([from, level, to - from, `${memory ? "host memory, " : ""}${link.kind === "memory" ? "" : `${link.kind}, `}${three(link.GBps)} GB/s${link.shared ? ", shared" : ""}`, busy, `${link.kind}${link.shared ? ", shared by" : " of"} ${group.length > 1 ? "devices" : "device"} ${group.join(", ")}${link.source ? `\n${link.source}` : ""}`]);
    });
    level += BOX.bar;
  });
  bars.forEach((one) => bar(svg, ...one));
  host.devices.forEach((device) => {
    const [left, top] = at(device.rank), busy = use(device.slot);
    const box = svgElement("g", { "data-tip": `device ${device.rank}: ${device.name}\ncomputes ${percent(busy)} of the step` });
    box.append(svgElement("rect", { x: left, y: top, width: boxWidth, height: BOX.height, rx: 7, fill: "var(--card)", stroke: "var(--c0)", "stroke-width": 1.5 }));
    if (known(busy)) box.append(svgElement("rect", { x: left + 1, y: top + BOX.height - 5, width: (boxWidth - 2) * busy, height: 4, rx: 2, fill: "var(--c0)" }));
    box.append(svgElement("text", { x: left + boxWidth / 2, y: top + 20, "text-anchor": "middle", "font-weight": 650, fill: "currentColor" }, `device ${device.rank}${known(busy) ? ` · ${percent(busy)}` : ""}`));
    box.append(svgElement("text", { x: left + boxWidth / 2, y: top + 37, "text-anchor": "middle", "font-size": 11, fill: "var(--soft)" }, shortened(device.name, Math.floor((boxWidth - 8) / 6.2))));
    svg.append(box);
  });
}
function shortened(text, most) { return text.length > most ? `${text.slice(0, most - 1).trim()}…` : text; }

function wire(svg, x, from, to, busy, name) {
  const attributes = { x1: x, x2: x, y1: from, y2: to };
  svg.append(svgElement("line", { ...attributes, stroke: useColour(busy), "stroke-width": known(busy) ? 2.5 + 5 * busy : 2.5, "data-use": known(busy) ? busy : null, "data-tip": `${name}: busy ${percent(busy)} of the step` }));
}
function bar(svg, x, y, wide, text, busy, name) {
  const group = svgElement("g", { "data-tip": `${name}\nbusy ${percent(busy, busy < 0.1 ? 1 : 0)} of the step` });
  group.append(svgElement("rect", { x, y, width: wide, height: BOX.bar, rx: 5, fill: useColour(busy) }));
  const part = busy < 0.0005 ? "not used" : `busy ${percent(busy, busy < 0.1 ? 1 : 0)}`;
  const room = Math.floor((wide - 8) / 6.4), label = `${text}${known(busy) ? ` · ${part}` : ""}`;
  const dark = known(busy) && busy >= 0.8;
  group.append(svgElement("text", { x: x + wide / 2, y: y + 14, "text-anchor": "middle", "font-size": 11, "font-weight": 600, fill: dark ? "#fff" : "#14202b" }, shortened(label, room)));
  svg.append(group);
}
