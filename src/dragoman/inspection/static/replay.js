/* Training replay: a slider over checkpoints; output and alignment of each probe sentence at that step, and the curves.

   It may be drawn again while the run trains: a reader on the last frame stays on the last, others where they are. */

import { VIEWS, behind, cell, counted, figure, fixed, make, passage, percent, refill, table, texts, value } from "./dom.js";
import { heatMap, matrixTable, scaleOf } from "./heat.js";
import { legend, lineChart } from "./chart.js";

const CURVE_NAMES = { loss: "Training loss", valid: "Validation loss", rate: "Learning rate", gradient_norm: "Gradient norm", perplexity: "Perplexity" };
const replayChoices = new WeakMap();

VIEWS.replay = ["Replay", drawReplay];

function drawReplay(root, { run, finished, frames, curves }) {
  const last = frames.length - 1;
  const chosen = replayChoices.get(root);
  const start = chosen == null || chosen.atEnd ? last : Math.min(chosen.index, last);
  const charts = replayCharts(curves, root.clientWidth || 540);
  const frame = make("div", { class: "frame" });
  const step = make("output", { "data-field": "step" });
  const slider = make("input", { type: "range", max: last, "aria-label": "Checkpoint", "data-key": "frame" });
  const show = (index) => {
    replayChoices.set(root, { index, atEnd: index === last });
    step.textContent = `step ${frames[index].step}`;
    slider.setAttribute("aria-valuetext", step.textContent);
    refill(frame, frames[index].sources.map((probe, i) => probeOf(probe, i, root.clientWidth)));
    for (const { moveCursor } of charts) moveCursor(frames[index].step);
  };
  slider.value = start;
  slider.addEventListener("input", () => show(Number(slider.value)));
  const state = `: ${finished ? "finished" : "still training"}, ${counted(frames.length, "checkpoint")}.`;
  refill(
    root,
    make("p", { class: "note" }, make("bdi", { "data-field": "run" }, run), state),
    last >= 0 && make("div", { class: "slider" }, slider, step),
    frame,
    make("div", { class: "beside" }, charts.map((chart) => chart.element)),
  );
  if (last >= 0) show(start);
}

function probeOf({ source, output, log_prob, source_tokens, tokens, attention }, index, maxWidth) {
  const options = { rows: tokens, columns: source_tokens, values: attention, maxWidth };
  const build = () => matrixTable("Alignment", tokens, source_tokens, attention);
  return make(
    "figure",
    { "data-index": index },
    texts(
      ["source", passage(source)],
      ["output", passage(output, "output", { index })],
      ["log p", [value("log_prob", fixed(log_prob, 3), { index }), ` · ${percent(log_prob)}`]],
    ),
    attention && heatMap({ label: `Alignment of probe ${index + 1}`, scale: scaleOf([attention]), ...options }),
    attention && behind(build, `probe ${index + 1} as a table`),
  );
}

/** Training and validation loss share a chart; every other curve has its own. */
function replayCharts(curves, width) {
  const names = Object.keys(curves).filter((name) => curves[name].length);
  const losses = names.filter((name) => name === "loss" || name === "valid");
  const groups = [losses, ...names.filter((name) => !losses.includes(name)).map((name) => [name])];
  return groups.filter((group) => group.length).map((group) => curveFigure(curves, group, Math.min(540, width)));
}

function curveFigure(curves, group, width) {
  const title = group.length > 1 ? "Loss" : (CURVE_NAMES[group[0]] ?? group[0]);
  const names = group.map((name) => CURVE_NAMES[name] ?? name);
  const series = group.map((name, i) => ({ name: names[i], points: curves[name].map(([x, y]) => ({ x, y })) }));
  const number = (y) => (y == null || y === 0 || Math.abs(y) >= 0.01 ? fixed(y, 3) : y.toExponential(3));
  const options = { across: "step", up: "", marks: false, title: (x) => `step ${x}`, text: ({ y }) => number(y) };
  const chart = lineChart({ label: `${title} by step`, series, width, ...options });
  const rows = group.flatMap((name) =>
    curves[name].map(([step, y], index) => [`${step}`, name, cell(name, number(y), { index })]),
  );
  const build = () => table(title, ["step", "curve", "value"], rows);
  const key = group.length > 1 && legend(names);
  const element = figure(title, "", key, chart.element, behind(build, `${title} as a table`));
  return { element, moveCursor: chart.moveCursor };
}
