/* How similar positions are to each other under a position scheme: a row and a column for each position. */

import { VIEWS, behind, make, refill } from "./dom.js";
import { heatMap, matrixTable, scaleBar, scaleOf } from "./heat.js";

VIEWS.positions = ["Positions", drawPositions];

function drawPositions(root, { scheme, side, trained, description, matrix }) {
  const scale = scaleOf([matrix]);
  const numbers = matrix.map((_, i) => `${i}`);
  const width = Math.min(600, root.clientWidth || 600) - 36;
  const map = heatMap({
    label: "Similarity of positions",
    rows: numbers,
    columns: numbers,
    values: matrix,
    scale,
    side: Math.max(5, Math.min(20, Math.floor(width / numbers.length))),
    name: "similarity",
  });
  refill(
    root,
    make("h3", {}, `${scheme}, ${side}, ${trained ? "trained" : "not trained"}`),
    make("p", { class: "note", "data-field": "description" }, description),
    make("div", { class: "controls" }, scaleBar(scale)),
    map,
    behind(() => matrixTable("Similarity of positions", numbers, numbers, matrix, "similarity")),
  );
}
