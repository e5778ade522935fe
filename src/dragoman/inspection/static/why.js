/* Why attention: how much each source token moves each output token, and what that does to quality and to speed.

     why           ‖∂ log p(y_t) / ∂ x_j‖ as a map, and its mean by distance, the tokens from x_j to y_t
     by_position   the share of outputs that are right, by the position in the source
     sequential    how many steps must wait for each other, for each architecture */

import { behind, cell, figure, fixed, make, refill, scrolling, table } from "./dom.js";
import { matrixTable, scaleBar, scaleOf } from "./heat.js";
import { lineChart, pointText } from "./chart.js";
import { lookMap } from "./medium.js";

export function drawWhy(root, data) {
  const parts = { why: whyParts, by_position: byPosition, sequential: sequentialSteps }[data.view];
  refill(root, parts(data, root.clientWidth || 640));
}

function whyParts(data, width) {
  const { source, target, norms } = data;
  const scale = scaleOf([norms]);
  const look = { rows: target, columns: source, values: norms, scale, room: width, name: "gradient norm", digits: 3 };
  const map = figure(
    "How much each source token moves each output token",
    "",
    make("p", { class: "note" }, "The norm of the gradient of an output token's log p by a source token's embedding."),
    make("div", { class: "controls" }, scaleBar(scale)),
    lookMap(data.medium, { label: "Gradient norms", ...look }),
    behind(() => matrixTable("Norm of the gradient", target, source, norms, "norm", 3), "the map as a table"),
  );
  return make("div", { class: "beside" }, map, data.by_distance.length > 0 && byDistance(data, width));
}

function byDistance(data, width) {
  const points = data.by_distance.map(([x, y]) => ({ x, y }));
  const chart = lineChart({
    label: `Mean gradient norm by distance, ${points.length} points`,
    across: "tokens between reading and writing",
    up: "mean gradient norm",
    series: [{ name: "mean norm", points }],
    width: Math.min(520, width),
    title: (x) => `distance ${x}`,
    text: ({ y }) => fixed(y, 3),
  });
  const rows = points.map(({ x, y }, index) => [`${x}`, cell("mean_norm", fixed(y, 3), { index })]);
  const build = () => table("Mean norm by distance", ["distance", "mean norm"], rows);
  return figure("By distance", "", chart.element, behind(build, "distances as a table"));
}

function byPosition(data, width) {
  const points = data.points.map(({ position, correct, count }) => ({ x: position, y: correct, count }));
  const chart = lineChart({
    label: `Share of right outputs by source position, ${points.length} points`,
    across: "source position",
    up: "share right",
    series: [{ name: "right", points }],
    width,
    title: (x) => `position ${x}`,
    text: (point) => pointText(point, 2),
  });
  const rows = points.map(({ x, y, count }, index) => [
    `${x}`,
    cell("correct", fixed(y, 2), { index }),
    cell("count", `${count}`, { index }),
  ]);
  const build = () => table("Share of right outputs", ["position", "right", "of"], rows);
  return figure("Quality by source position", "", chart.element, behind(build));
}

function sequentialSteps({ lengths, rows }) {
  const lines = rows.map(({ part, steps, sentence }, index) => [
    part,
    ...steps.map((count, k) => cell("steps", `${count}`, { index, length: lengths[k] })),
    cell("sentence", sentence, { index }),
  ]);
  const headings = ["part", ...lengths.map((length) => `steps for ${length} tokens`), "what was counted"];
  return scrolling("Steps", table("Steps that wait for each other", headings, lines));
}
