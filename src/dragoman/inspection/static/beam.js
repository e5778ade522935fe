/* The search tree: a column for each step, in it the best extensions from the highest score down.

     <s> ── kept (solid) ── finished (a bar at its end)          thick line: the path of the output
        └── dropped (dashed)                                     dotted line and ◆: the path of the reference

   The pointer or the arrow keys choose a node: ← parent, → best child, ↑ ↓ the others of its step. */

import { VIEWS, behind, cell, counted, cut, drawing, figure, fixed, hideTip, lettering, make, passage, percent } from "./dom.js";
import { picture, refill, reveal, shape, showTip, stacked, table, texts, tick, token, visible } from "./dom.js";

const NODE = { wide: 166, high: 24, across: 200, down: 32, top: 30, left: 74 };
const beamChoices = new WeakMap();

VIEWS.beam = ["Beam", drawBeam];

function drawBeam(root, data, actions = {}) {
  const hidden = beamChoices.get(root) ?? false;
  const hide = (checked) => {
    beamChoices.set(root, checked);
    drawBeam(root, data, actions);
  };
  const { reference, verdict } = data;
  refill(
    root,
    texts(
      ["source", passage(data.source_text, "source_text")],
      reference && ["reference", passage(reference.text, "reference_text")],
    ),
    verdict && make("p", { class: "verdict", "data-kind": verdict.kind, "data-field": "verdict" }, verdict.sentence),
    stacked("Results", resultsTable(data)),
    figure(
      `What a beam of ${data.beam} kept and dropped`,
      "",
      make("div", { class: "controls" }, tick("hide dropped", hidden, hide), beamLegend(data)),
      treePicture(data, hidden),
      behind(() => nodesTable(data), "the tree as a table"),
    ),
  );
}

function resultsTable({ results, reference, rule }) {
  const line = (name, one, index, remark) => [
    name,
    cell("text", passage(one.text), { index }),
    cell("score", fixed(one.score, 3), { index }),
    cell("log_prob", fixed(one.log_prob, 3), { index }),
    cell("probability", percent(one.log_prob), { index }),
    remark,
  ];
  const rows = results.map((result, i) => line(`${i + 1}`, result, i, result.finish_reason === "eos" ? "" : "cut off before </s>"));
  if (reference) rows.push(line("reference", reference, "reference", `in the beam for ${counted(reference.kept_until, "step")}`));
  return table(`Results, scored by the length rule '${rule}'`, ["", "text", "score", "log p", "p", ""], rows);
}

function nodesTable(data) {
  const rows = data.nodes.map((node) => {
    const of = { node: node.id };
    const paths = [node.best && "output", node.reference && "reference"].filter(Boolean);
    return [
      `${node.id}`,
      cell("step", `${node.step}`, of),
      cell("parent", `${node.parent ?? ""}`, of),
      cell("token", visible(node.token), of),
      ...["log_prob", "total", "score"].map((name) => cell(name, fixed(node[name], 3), of)),
      ...["log_prob", "total"].map((name) => cell(`${name}_percent`, percent(node[name]), of)),
      cell("fate", node.fate, of),
      cell("reason", node.reason, of),
      cell("path", paths.join(", "), of),
    ];
  });
  const headings = ["node", "step (from 0)", "parent", "token", "log p", "total", "score", "p", "p of all", "fate", "reason", "path of"];
  return table("Every hypothesis", headings, rows);
}

function beamLegend(data) {
  const names = { kept: "kept", finished: "finished", dropped: "dropped", best: "the output" };
  if (data.reference) names.reference = "the reference";
  const items = Object.entries(names).map(([style, name]) => {
    const node = { fate: style, reference: style === "reference" };
    const sample = shape("g", { class: `node ${style}`, transform: "translate(5 2)" }, nodeBox(node, 26, 14));
    return make("li", {}, drawing("tree", 36, 18, sample), name);
  });
  return make("ul", { class: "legend" }, items);
}

// -- the picture ------------------------------------------------------------------------------------------------------

/** Nodes with their positions, by id and by column. */
function beamLayout(data, hidden) {
  const byId = new Map();
  const steps = [...new Set(data.nodes.map(({ step }) => step))].sort((a, b) => a - b);
  const shown = data.nodes.filter((node) => !hidden || node.fate !== "dropped" || node.reference);
  const columns = steps.map((step) => shown.filter((node) => node.step === step).sort((a, b) => b.score - a.score));
  columns.forEach((nodes, column) =>
    nodes.forEach((node, row) => {
      const [x, y] = [NODE.left + NODE.across * column, NODE.top + NODE.down * row];
      byId.set(node.id, { node, column, row, x, y });
    }),
  );
  return { byId, steps, columns, rows: Math.max(1, ...columns.map((nodes) => nodes.length)) };
}

function treePicture(data, hidden) {
  const layout = beamLayout(data, hidden);
  const { steps } = layout;
  const entries = [...layout.byId.values()];
  const center = NODE.left + NODE.wide / 2;
  const svg = drawing(
    "tree",
    NODE.left + NODE.across * steps.length,
    NODE.top + NODE.down * layout.rows + 6,
    steps.map((step, i) => lettering("faint at-middle", center + NODE.across * i, 10, `step ${step + 1}`)),
    // Later is on top: the paths that matter are drawn over the others.
    ["plain", "reference", "best"].map((path) => entries.flatMap((entry) => edgeOf(layout, entry, path))),
    lettering("at-end", NODE.left - 42, NODE.top + NODE.high / 2, "<s>"),
    entries.map(nodeOf),
  );
  const box = picture(`Search tree of ${counted(steps.length, "step")} with ${counted(data.nodes.length, "hypothesis", "hypotheses")}`, svg);
  followNodes(box, svg, layout);
  return box;
}

/** The line from a node's parent, if it belongs to this path. */
function edgeOf(layout, { node, x, y }, path) {
  const own = [node.best && "best", node.reference && "reference"].filter(Boolean);
  if (!(own.length ? own : ["plain"]).includes(path)) return [];
  const parent = layout.byId.get(node.parent);
  const [fromX, fromY] = parent ? [parent.x + NODE.wide, parent.y] : [NODE.left - 36, NODE.top];
  const [a, b, middle] = [fromY + NODE.high / 2, y + NODE.high / 2, (fromX + x) / 2];
  const style = path === "plain" ? node.fate : path;
  return [shape("path", { class: `edge ${style}`, d: `M${fromX} ${a}C${middle} ${a} ${middle} ${b} ${x} ${b}` })];
}

function nodeOf({ node, x, y }) {
  const looks = ["node", node.fate, node.best && "best", node.reference && "reference"].filter(Boolean);
  return shape(
    "g",
    { class: looks.join(" "), "data-node": node.id, transform: `translate(${x} ${y})` },
    nodeBox(node, NODE.wide, NODE.high),
    lettering("", 9, NODE.high / 2, cut(visible(node.token), NODE.wide - 118)),
    lettering("faint at-end", NODE.wide - 66, NODE.high / 2, fixed(node.log_prob, 3)),
    lettering("faint at-end", NODE.wide - 9, NODE.high / 2, percent(node.log_prob)),
  );
}

/** Fates and paths differ by line and mark, not by color alone. */
function nodeBox(node, wide, high) {
  const diamond = { class: "diamond", d: "M0-5L5 0L0 5L-5 0z", transform: `translate(0 ${high / 2})` };
  return [
    shape("rect", { width: wide, height: high, rx: 5 }),
    node.fate === "finished" && shape("path", { class: "stop", d: `M${wide} 4v${high - 8}` }),
    node.reference && shape("path", diamond),
  ];
}

function followNodes(box, svg, layout) {
  let at = null;

  function moveTo(entry) {
    svg.querySelector(".chosen")?.classList.remove("chosen");
    at = entry;
    if (!at) return hideTip(box);
    const group = svg.querySelector(`[data-node="${at.node.id}"]`);
    group.classList.add("chosen");
    showTip(box, group, token(at.node.token), nodePairs(at.node));
  }

  svg.addEventListener("pointerover", (event) => {
    const group = event.target.closest("[data-node]");
    moveTo(group ? layout.byId.get(Number(group.dataset.node)) : null);
  });
  svg.addEventListener("pointerleave", () => moveTo(null));
  box.addEventListener("blur", () => moveTo(null));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") moveTo(null);
    if (!event.key.startsWith("Arrow") || !layout.byId.size) return;
    event.preventDefault();
    const next = at ? neighborOf(layout, at, event.key) : layout.byId.get(layout.columns[0][0]?.id);
    if (!next) return;
    reveal(box, next.x - 40, next.x + NODE.across);
    moveTo(next);
  });
}

function neighborOf({ byId, columns }, { node, column, row }, key) {
  if (key === "ArrowLeft") return byId.get(node.parent);
  const neighbor = {
    ArrowUp: columns[column][row - 1],
    ArrowDown: columns[column][row + 1],
    ArrowRight: columns[column + 1]?.find(({ parent }) => parent === node.id),
  }[key];
  return neighbor && byId.get(neighbor.id);
}

function nodePairs(node) {
  const names = { log_prob: "log p", total: "total", score: "score" };
  const pairs = Object.entries(names).map(([key, name]) => [name, fixed(node[key], 3)]);
  pairs.push([node.fate, node.reason || (node.best ? "on the way to the output" : "")]);
  if (node.reference) pairs.push(["reference", "begins this way"]);
  pairs.push(["p", `${percent(node.log_prob)}, of all so far ${percent(node.total)}`]);
  return pairs;
}
