/* Gradient saliency: ‖∂ log p(y_t) / ∂ x_j‖ as a map, and its mean by distance, the tokens from x_j to y_t. */

import { VIEWS, behind, cell, counted, figure, fixed, make, refill, table } from "./dom.js";
import { matrixTable, scaleBar, scaleOf } from "./heat.js";
import { lineChart } from "./chart.js";
import { sourceMap } from "./media_preview.js";

VIEWS.saliency = ["Saliency", drawSaliency];

function drawSaliency(root, data) {
  const width = root.clientWidth || 640;
  const { source, target, norms } = data;
  const scale = scaleOf([norms]);
  const options = { rows: target, columns: source, values: norms, scale, maxWidth: width, name: "gradient norm", digits: 3 };
  const map = figure(
    "How much each source token moves each output token",
    "",
    make("p", { class: "note" }, "The norm of the gradient of an output token's log p by a source token's embedding."),
    make("div", { class: "controls" }, scaleBar(scale)),
    sourceMap(data.media_preview, { label: "Gradient norms", ...options }),
    behind(() => matrixTable("Norm of the gradient", target, source, norms, "norm", 3), "the map as a table"),
  );
  refill(root, make("div", { class: "beside" }, map, data.by_distance.length > 0 && byDistance(data, width)));
}

function byDistance(data, width) {
  const points = data.by_distance.map(([x, y]) => ({ x, y }));
  const chart = lineChart({
    label: `Mean gradient norm by distance, ${counted(points.length, "point")}`,
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
