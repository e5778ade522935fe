/* The share of correct next tokens by the position in the source. */

import { VIEWS, behind, cell, counted, figure, fixed, refill, table } from "./dom.js";
import { lineChart, pointText } from "./chart.js";

VIEWS.accuracy_by_position = ["By position", drawAccuracy];

function drawAccuracy(root, data) {
  const points = data.points.map(({ position, correct, count }) => ({ x: position, y: correct, count }));
  const chart = lineChart({
    label: `Share of right outputs by source position, ${counted(points.length, "point")}`,
    across: "source position",
    up: "share right",
    series: [{ name: "right", points }],
    width: root.clientWidth || 640,
    title: (x) => `position ${x}`,
    text: (point) => pointText(point, 2),
  });
  const rows = points.map(({ x, y, count }, index) => [
    `${x}`,
    cell("correct", fixed(y, 2), { index }),
    cell("count", `${count}`, { index }),
  ]);
  const build = () => table("Share of right outputs", ["position", "right", "of"], rows);
  refill(root, figure("Quality by source position", "", chart.element, behind(build)));
}
