/* A matrix as a heat map: a row for each row, a column for each column, labels on top (turned) and at the left.

     values (T, S) ─ scale → shades ─→ a canvas of S × T pixels, enlarged ─→ labels and a cursor over it

   One pixel for each cell, so that the 172,800 cells of 6 × 8 heads at 60 × 60 are 48 small images. */

import { cell, counted, cut, drawing, fixed, hideTip, lettering, make, picture, reveal } from "./dom.js";
import { shape, showTip, table, textWidth, token, visible } from "./dom.js";

// Equal steps of perceived lightness in one hue, those of the terminal's heat map; weight 0 is the ground.
const SHADES = {
  light: "#f4f7fa #d9eeff #acdbff #83c6ff #5bb1f6 #359ce7 #0486d3 #0071ba #005d9c #004a7b #00345c",
  dark: "#22262b #293c4d #004a7b #005d9c #0071ba #0486d3 #359ce7 #5bb1f6 #83c6ff #acdbff #d9eeff",
};
// Values with a sign: orange below zero, blue above it, the ground between them.
const SIGNED = {
  light: "#8f3d00 #d55e00 #f2b48a #f4f7fa #83c6ff #0071ba #00345c",
  dark: "#ffcfa8 #e0833d #7a4016 #22262b #005d9c #359ce7 #c4e5ff",
};
const LOST = { light: [242, 213, 213], dark: [110, 60, 60] }; // where there is no number
const LONGEST_LABEL = 132; // pixels; the whole token is in the tip and in the table

/** The least and most that the shades stand for. Where all weights are small, a scale up to 1 would show nothing. */
export function scaleOf(matrices) {
  let low = 0;
  let high = 0;
  for (const matrix of matrices)
    for (const row of matrix)
      for (const x of row) {
        if (x < low) low = x;
        if (x > high) high = x;
      }
  if (low < 0) return { low: -Math.max(-low, high), high: Math.max(-low, high), signed: true };
  return { low: 0, high: high > 1 || (high > 0 && high < 0.5) ? high : 1, signed: false };
}

/** The matrix as a bare image. */
export function heat(values, scale) {
  const canvas = make("canvas", { class: "heat", "aria-hidden": "true" });
  [canvas.width, canvas.height] = [values[0]?.length ?? 0, values.length];
  canvas.repaint = () => paintHeat(canvas, values, scale);
  canvas.repaint();
  return canvas;
}

/** What the shades mean. */
export function scaleBar(scale) {
  const steps = Array.from({ length: 64 }, (_, i) => scale.low + ((scale.high - scale.low) * i) / 63);
  return make("div", { class: "scale" }, fixed(scale.low, 2), heat([steps], scale), fixed(scale.high, 2));
}

/** The numbers of a heat map. */
export function matrixTable(caption, rows, columns, values, field = "weight", digits = 2) {
  const lines = values.map((row, i) => [
    visible(rows[i]),
    ...row.map((x, j) => cell(field, fixed(x, digits), { row: i, column: j })),
  ]);
  return table(caption, ["", ...columns.map(visible)], lines);
}

/** The whole map, in `maxWidth` pixels if it can be. `beside`: columns of text right of it, {title, texts}; a tip says the
    row, the column and the value under its `name`. */
export function heatMap({ label, rows, columns, values, scale, maxWidth, side, beside = [], name = "weight", digits = 2 }) {
  const plan = planOf(rows.map(visible), columns.map(visible), beside, maxWidth, side);
  const image = heat(values, scale);
  const labels = labelsOf(plan);
  const describe = (i, j) => {
    const title = [token(columns[j]), " → ", token(rows[i])]; // each in its own direction
    showTip(box, cursorOf(labels), title, [[name, fixed(values[i][j], digits)]]);
  };
  const inner = make("div", { class: "map" }, image, labels);
  const box = picture(`${label}: ${counted(rows.length, "row")}, ${counted(columns.length, "column")}`, inner);
  for (const [name, size] of [["left", plan.left], ["top", plan.top], ["width", plan.wide], ["height", plan.high]])
    image.style.setProperty(name, `${size}px`);
  followCursor(box, inner, labels, plan, describe);
  return box;
}

// -- shades -----------------------------------------------------------------------------------------------------------

const ramps = new Map();

/** 256 colors between the stops of a list. */
function rampOf(stops) {
  if (!ramps.has(stops)) {
    const colors = stops.split(" ").map((color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)));
    const mixed = Array.from({ length: 256 }, (_, i) => {
      const position = (i / 255) * (colors.length - 1);
      const from = Math.min(Math.floor(position), colors.length - 2);
      return colors[from].map((x, channel) => Math.round(x + (position - from) * (colors[from + 1][channel] - x)));
    });
    ramps.set(stops, mixed);
  }
  return ramps.get(stops);
}

function themeNow() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function paintHeat(canvas, values, scale) {
  if (!canvas.width || !canvas.height) return;
  const theme = themeNow();
  const ramp = rampOf((scale.signed ? SIGNED : SHADES)[theme] ?? SHADES.light);
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  let at = 0;
  for (const row of values)
    for (const x of row) {
      const level = Math.round((255 * (x - scale.low)) / (scale.high - scale.low));
      const [red, green, blue] = x == null ? (LOST[theme] ?? LOST.light) : ramp[Math.min(255, Math.max(0, level))];
      image.data.set([red, green, blue, 255], at);
      at += 4;
    }
  context.putImageData(image, 0, 0);
}

// CSS cannot color a canvas: when the theme changes, the images on the page are painted anew.
function repaintAll() {
  for (const canvas of document.querySelectorAll("canvas.heat")) canvas.repaint?.();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaintAll);
new MutationObserver(repaintAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });

// -- the plan: where everything stands --------------------------------------------------------------------------------

/** The side of a cell: large for few cells, less where a page is narrow, and never too small for a label. */
function sideOf(rows, columns, maxWidth) {
  const most = Math.max(rows, columns);
  const wished = most <= 12 ? 30 : most <= 24 ? 24 : most <= 40 ? 18 : 14;
  return Math.max(14, Math.min(wished, Math.floor(maxWidth / columns)));
}

function planOf(rows, columns, beside, maxWidth, fixedSide) {
  const left = Math.ceil(Math.max(0, ...rows.map((row) => Math.min(LONGEST_LABEL, textWidth(row))))) + 10;
  const headings = [...columns, ...beside.map(({ title }) => title)].map((heading) => cut(heading, LONGEST_LABEL));
  const widest = Math.max(0, ...headings.map(textWidth));
  const widths = beside.map(({ texts }) => Math.max(0, ...texts.map(textWidth)) + 14);
  const taken = widths.reduce((sum, width) => sum + width, left + 14);
  const side = fixedSide ?? sideOf(rows.length, columns.length, maxWidth - taken);
  const turn = widest <= side - 2 && !beside.length ? 0 : side >= 22 ? -45 : -90;
  const slant = Math.sin((-turn * Math.PI) / 180);
  const top = Math.ceil(turn ? widest * slant + 18 : 24);
  const wide = side * columns.length;
  const ends = widths.map((_, i) => left + wide + widths.slice(0, i + 1).reduce((sum, x) => sum + x, 0));
  const centers = [...columns.map((_, j) => left + side * (j + 0.5)), ...ends.map((end, i) => end - widths[i] / 2 + 7)];
  const spills = headings.map((heading, j) => centers[j] + (turn === -45 ? textWidth(heading) * slant + 10 : 0));
  const width = Math.max(left + wide + 2, ...spills, ...ends.map((end) => end + 4));
  const high = side * rows.length;
  return { rows, headings, beside, side, left, top, wide, high, ends, centers, turn, width, height: top + high + 2 };
}

function labelsOf(plan) {
  const svg = drawing("labels", plan.width, plan.height, gridOf(plan));
  const every = plan.side < 12 ? Math.ceil(26 / plan.side) : 1; // labels of small cells would touch
  const kept = (label, i) => (i % every ? "" : label);
  plan.headings.forEach((heading, j) => {
    const x = plan.centers[j] - (plan.turn === -45 ? 3 : 0);
    const style = `heading${plan.turn ? "" : " at-middle"}${j < plan.wide / plan.side ? "" : " faint"}`;
    const text = lettering(style, 0, 0, kept(heading, j));
    text.setAttribute("transform", `translate(${x} ${plan.top - (plan.turn ? 7 : 11)}) rotate(${plan.turn})`);
    svg.append(text);
  });
  plan.rows.forEach((row, i) => {
    const y = plan.top + plan.side * (i + 0.5);
    svg.append(lettering("row at-end", plan.left - 8, y, kept(cut(row, LONGEST_LABEL), i)));
    plan.beside.forEach(({ texts }, k) => svg.append(lettering("faint at-end", plan.ends[k], y, texts[i])));
  });
  svg.append(shape("rect", { class: "cursor", width: plan.side, height: plan.side, visibility: "hidden" }));
  return svg;
}

/** Thin lines between cells, where cells are large enough to have any. */
function gridOf({ left, top, wide, high, side, rows }) {
  if (side < 12) return shape("path", {});
  const across = rows.slice(1).map((_, i) => `M${left} ${top + side * (i + 1)}h${wide}`);
  const inner = Array.from({ length: Math.max(0, wide / side - 1) }, (_, j) => left + side * (j + 1));
  const down = inner.map((x) => `M${x} ${top}v${high}`);
  return shape("path", { class: "grid", d: [...across, ...down].join("") });
}

// -- the cursor: pointer and arrow keys -------------------------------------------------------------------------------

function cursorOf(labels) {
  return labels.querySelector(".cursor");
}

function followCursor(box, inner, labels, plan, describe) {
  const cursor = cursorOf(labels);
  const [rowLabels, headings] = [labels.querySelectorAll(".row"), labels.querySelectorAll(".heading")];
  let at = null;

  function moveTo(next) {
    if (at) for (const label of [rowLabels[at.i], headings[at.j]]) label.classList.remove("lit");
    at = next;
    cursor.setAttribute("visibility", at ? "visible" : "hidden");
    if (!at) return hideTip(box);
    for (const label of [rowLabels[at.i], headings[at.j]]) label.classList.add("lit");
    cursor.setAttribute("x", plan.left + plan.side * at.j);
    cursor.setAttribute("y", plan.top + plan.side * at.i);
    describe(at.i, at.j);
  }

  inner.addEventListener("pointermove", (event) => {
    const edges = inner.getBoundingClientRect();
    const j = Math.floor((event.clientX - edges.left - plan.left) / plan.side);
    const i = Math.floor((event.clientY - edges.top - plan.top) / plan.side);
    const inside = i >= 0 && j >= 0 && i < plan.rows.length && j < plan.wide / plan.side;
    if (!inside || !at || at.i !== i || at.j !== j) moveTo(inside ? { i, j } : null);
  });
  inner.addEventListener("pointerleave", () => moveTo(null));
  box.addEventListener("blur", () => moveTo(null));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") moveTo(null);
    if (!step || !plan.rows.length || !plan.wide) return;
    event.preventDefault();
    const i = Math.min(plan.rows.length - 1, Math.max(0, at ? at.i + step[0] : 0));
    const j = Math.min(plan.wide / plan.side - 1, Math.max(0, at ? at.j + step[1] : 0));
    reveal(box, j ? plan.left + plan.side * (j - 1) : 0, plan.left + plan.side * (j + 2));
    moveTo({ i, j });
  });
}
