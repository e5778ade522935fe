/* Embedding space: each source is a point, its encoder summary projected to two axes.

   The pointer, the arrow keys or the list choose a sentence; its neighbors, by cosine of the full summaries, are
   joined to it and listed. */

import { VIEWS, behind, cell, cut, drawing, fixed, hideTip, lettering, make, passage, picture } from "./dom.js";
import { refill, reveal, shape, showTip, table } from "./dom.js";

const SPACE_HIGH = 420;
const SPACE_METHODS = { pca: "principal components", tsne: "t-SNE", umap: "UMAP" };
const spaceChoices = new WeakMap();

VIEWS.embedding_space = ["Sentence space", drawSpace];

function drawSpace(root, data) {
  const list = make("div", { class: "near", "aria-live": "polite" });
  const width = Math.max(300, Math.min(root.clientWidth || 640, 640));
  const cloud = cloudOf(data, width, (index) => {
    spaceChoices.set(root, index);
    list.replaceChildren(...nearList(data, index, cloud.choose));
  });
  const map = make("figure", {}, cloud.element, behind(() => spaceTable(data), "the map as a table"));
  refill(root, make("p", { class: "note" }, spaceNote(data)), make("div", { class: "beside" }, map, list));
  if (data.points.length) cloud.choose(Math.min(spaceChoices.get(root) ?? 0, data.points.length - 1), false);
}

function spaceNote({ points, method, explained_variance: explained }) {
  const shares = explained?.map((share) => fixed(share, 2)).join(" and ");
  const held = shares ? `, which hold ${shares} of the variance` : "";
  return `${points.length} sentences on two axes by ${SPACE_METHODS[method] ?? method}${held}.`;
}

function spaceTable(data) {
  const rows = data.points.map((point, index) => [
    `${index + 1}`,
    cell("text", passage(point.text), { index }),
    cell("x", fixed(point.x, 2), { index }),
    cell("y", fixed(point.y, 2), { index }),
    cell("neighbors", point.neighbors.map((other) => other + 1).join(", "), { index }),
  ]);
  return table("Sentences on the map", ["", "sentence", "x", "y", "nearest"], rows);
}

function nearList({ points }, index, choose) {
  const items = points[index].neighbors.map((other) => {
    const press = { type: "button", class: "plain", "data-index": other, click: () => choose(other) };
    return make("li", {}, make("button", press, passage(points[other].text)));
  });
  const chosen = make("p", {}, passage(points[index].text, "chosen", { index }));
  return [make("h3", {}, "Chosen"), chosen, make("h3", {}, "Nearest to it"), make("ol", {}, items)];
}

/** The points of a map, and `choose(index)` that marks one and its neighbors. */
function cloudOf({ points }, width, chosen) {
  const pixels = toPixels(points, width);
  const dots = pixels.map(({ x, y }, i) => shape("circle", { cx: x, cy: y, r: 5, "data-point": i }));
  const [joins, names] = [shape("g"), shape("g")];
  const frame = shape("rect", { class: "frame", x: 0.5, y: 0.5, width: width - 1, height: SPACE_HIGH - 1, rx: 6 });
  const svg = drawing("cloud", width, SPACE_HIGH, frame, joins, dots, names);
  const element = picture(`Map of ${points.length} sentences`, svg);
  let at = 0;

  function choose(index, tip = true) {
    at = index;
    const { neighbors: near, text, x, y } = points[index];
    dots.forEach((dot, i) => dot.setAttribute("class", i === index ? "chosen" : near.includes(i) ? "near" : ""));
    joins.replaceChildren(...near.map((other) => joinOf(pixels[index], pixels[other])));
    const numbers = near.map((other, rank) => pointName("", `${rank + 1}`, pixels[other], width));
    names.replaceChildren(...numbers, pointName("lit", cut(text, 200), pixels[index], width));
    chosen(index);
    if (tip) showTip(element, dots[index], text, [["x", fixed(x, 2)], ["y", fixed(y, 2)]]);
  }

  followDots(element, svg, choose, (key) => {
    const next = inDirection(pixels, at, key);
    reveal(element, pixels[next].x - 60, pixels[next].x + 60);
    choose(next);
  });
  return { element, choose };
}

function followDots(element, svg, choose, move) {
  const hide = () => hideTip(element);
  svg.addEventListener("pointerover", (event) => {
    const { point } = event.target.dataset;
    if (point) choose(Number(point));
    else hide();
  });
  svg.addEventListener("pointerleave", hide);
  element.addEventListener("blur", hide);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    move(event.key);
  });
}

function joinOf(from, to) {
  return shape("path", { class: "join", d: `M${from.x} ${from.y}L${to.x} ${to.y}` });
}

/** The chosen sentence by its beginning, its neighbors by their number in the list. */
function pointName(style, text, { x, y }, width) {
  return x < width / 2 ? lettering(style, x + 11, y, text) : lettering(`${style} at-end`, x - 11, y, text);
}

/** One unit is as long on both axes: distances on the map are those of the projection. */
function toPixels(points, width) {
  const [xs, ys] = [points.map(({ x }) => x), points.map(({ y }) => y)];
  const middle = (all) => (Math.min(...all) + Math.max(...all)) / 2;
  const span = (all) => Math.max(...all) - Math.min(...all) || 1e-9;
  const unit = Math.min((width - 48) / span(xs), (SPACE_HIGH - 48) / span(ys));
  const [left, down] = [middle(xs), middle(ys)];
  return points.map(({ x, y }) => ({ x: width / 2 + (x - left) * unit, y: SPACE_HIGH / 2 - (y - down) * unit }));
}

/** The nearest point in the quarter that an arrow key points to, or the same point. */
function inDirection(pixels, at, key) {
  const [ahead, aside] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  let [best, least] = [at, Infinity];
  pixels.forEach(({ x, y }, i) => {
    const [dx, dy] = [x - pixels[at].x, y - pixels[at].y];
    const along = dx * ahead + dy * aside;
    const off = Math.abs(dx * aside + dy * ahead);
    if (i !== at && along > 0 && off <= along && along + off < least) [best, least] = [i, along + off];
  });
  return best;
}
