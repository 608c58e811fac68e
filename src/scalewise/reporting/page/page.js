"use strict";
// Fill the sections of the page, which are in the document already, and connect the switch of the theme.

const WORKLOADS = unique(CELLS.map((cell) => cell.workload));
const MOST_CARDS = 4;  // charts beside each other when all workloads are shown

/** Fill a section, or remove it with its link if there is nothing to show. */
function section(name, fill) {
  const place = document.getElementById(name);
  const content = place && fill();
  if (!place) return;
  if (!content) {
    place.remove();
    document.querySelector(`nav a[href="#${name}"]`)?.parentElement.remove();
    return;
  }
  place.querySelector(".body").append(...[content].flat().filter(known));
}

/** A chart per workload; only those of the chosen workload are drawn. */
function perWorkload(make, usable) {
  const workloads = WORKLOADS.filter((workload) => CELLS.some((cell) => cell.workload === workload && usable(cell)));
  const cards = element("div", { class: "cards" }), made = new Map();
  function draw() {
    const shown = state.workload === null ? workloads.slice(0, MOST_CARDS) : workloads.filter((workload) => workload === state.workload);
    cards.replaceChildren(...shown.map((workload) => { if (!made.has(workload)) made.set(workload, make(workload)); return made.get(workload); }),
      ...(state.workload === null && workloads.length > MOST_CARDS ? [element("p", { class: "note", text: `${MOST_CARDS} of ${workloads.length} workloads; choose another one above.` })] : []),
      ...(shown.length ? [] : [element("p", { class: "empty", text: "No such cells of this workload." })]));
  }
  onChange(draw, ["workload"]);
  draw();
  return workloads.length ? cards : null;
}

function speedupSection() {
  const strong = CELLS.some((cell) => cell.devices > 1 && (known(cell.speedup) || known(cell.predicted_speedup)));
  const weak = CELLS.some((cell) => cell.devices > 1 && known(cell.weak_batch) && (known(cell.weak) || known(cell.predicted_weak)));
  if (!strong && !weak) return null;
  const perDevice = unique(CELLS.map((cell) => cell.weak_batch)).length === 1 && unique(CELLS.map((cell) => cell.batch)).length > 1;
  state.scaling = !strong || (perDevice && weak) ? "weak" : "strong";
  const several = WORKLOADS.some((workload) => unique(CELLS.filter((cell) => cell.workload === workload && hasRatio(cell)).map((cell) => cell.strategy)).length > 1);
  const controls = element("div", { class: "controls" });
  if (strong && weak) controls.append(segmented("Scaling", [["strong", "Strong scaling"], ["weak", "Weak scaling"]], state.scaling, (scaling) => change({ scaling })));
  const batches = unique(CELLS.map((cell) => cell.batch)).sort(ascending);
  if (several && batches.length > 1) controls.append(choice("Batch", batches, "batch"));
  return [controls, perWorkload(speedupCard, (cell) => cell.devices > 1 && ["speedup", "weak", "predicted_speedup", "predicted_weak"].some((name) => known(cell[name])))];
}

function epochSection() {
  const name = timeName(), strategies = unique(CELLS.filter((cell) => cell.devices > 1).map((cell) => cell.strategy));
  const cards = perWorkload(epochCard, (cell) => known(cell[name]) || known(cell[`predicted_${name}`]));
  if (!cards) return null;
  if (name === "step") document.querySelector("#epochs h2").textContent = "Step time over batch size";
  return [element("div", { class: "controls" }, strategies.length > 1 ? choice("Strategy", strategies, "strategy") : null), cards];
}

/** Controls of bars: batch and devices. */
function barControls() {
  const controls = element("div", { class: "controls" });
  const batches = unique(CELLS.map((cell) => cell.batch)).sort(ascending), counts = unique(CELLS.map((cell) => cell.devices)).sort(ascending).filter((n) => n > 1);
  if (batches.length > 1 && unique(CELLS.map((cell) => cell.weak_batch)).length !== 1) controls.append(choice("Batch", batches, "batch"));
  if (counts.length > 1) controls.append(choice("Devices", counts, "devices", (n) => `1 and ${n}`, "all"));
  return controls;
}

function start() {
  const theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paint = (name) => {
    document.documentElement.dataset.theme = name;
    theme.textContent = name === "dark" ? "Light theme" : "Dark theme";
    theme.setAttribute("aria-pressed", String(name === "dark"));
  };
  let chosen = false;
  paint(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => { if (!chosen) paint(dark.matches ? "dark" : "light"); });
  theme.hidden = false;
  theme.addEventListener("click", () => { chosen = true; paint(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); });

  const batches = unique(CELLS.map((cell) => cell.batch)).sort(ascending);
  state.batch = DOCUMENT.best?.batch ?? (batches.length ? batches[Math.floor(batches.length / 2)] : null);
  if (DOCUMENT.best && DOCUMENT.best.devices > 1) state.devices = DOCUMENT.best.devices;
  else if (CELLS.length && unique(CELLS.map((cell) => cell.strategy)).length > 3) state.devices = Math.max(...CELLS.map((cell) => cell.devices)) > 1 ? Math.max(...CELLS.map((cell) => cell.devices)) : null;
  const strategies = unique(CELLS.filter((cell) => cell.devices > 1).map((cell) => cell.strategy));
  state.strategy = strategies.includes(DOCUMENT.best?.strategy) ? DOCUMENT.best.strategy : strategies[0] ?? null;
  if (WORKLOADS.length > MOST_CARDS) [state.workload] = WORKLOADS;
  state.selected = firstSelected()?.number ?? null;
  const filter = document.getElementById("filter");
  if (filter && WORKLOADS.length > 1) filter.append(choice("Workload", WORKLOADS, "workload", String, "all"));

  section("comparison", () => DOCUMENT.comparison && comparisonBody());
  section("tuning", () => DOCUMENT.tuning && tuningBody());
  section("speedup", speedupSection);
  section("epochs", epochSection);
  section("phases", () => CELLS.some((cell) => cell.phases || cell.predicted_phases) && [barControls(), phasesBody()]);
  section("timeline", () => CELLS.some(hasStep) && [element("div", { class: "controls" }, stepPicker()), timelineBody()]);
  section("topology", () => DOCUMENT.details?.length > 0 && topologyBody());
  section("memory", () => CELLS.some((cell) => known(cell.memory) || known(cell.predicted_memory)) && [barControls(), memoryBody()]);
  section("cells", () => CELLS.length > 0 && tableBody());
  document.documentElement.dataset.ready = "yes";
}
start();
