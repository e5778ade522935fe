/* How many steps must wait for each other, for each part of a model. */

import { VIEWS, cell, counted, refill, stacked, table } from "./dom.js";

VIEWS.sequential = ["Sequential steps", drawSequential];

function drawSequential(root, { lengths, rows }) {
  const lines = rows.map(({ part, steps, sentence }, index) => [
    part,
    ...steps.map((count, k) => cell("steps", `${count}`, { index, length: lengths[k] })),
    cell("sentence", sentence, { index }),
  ]);
  const headings = ["part", ...lengths.map((length) => `steps for ${counted(length, "token")}`), "what was counted"];
  refill(root, stacked("Steps", table("Steps that wait for each other", headings, lines)));
}
