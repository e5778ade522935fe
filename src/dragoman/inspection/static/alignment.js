/* Which source tokens each target token attends to.

     soft alignment, or one head enlarged (T × S, with log p beside each target token)     |     layer × head, small

   A click on a small map enlarges it. Where the page can ask the model again (actions.head), each head has a switch. */

import { VIEWS, behind, cell, choice, fixed, make, passage, percent, refill, table, texts, tick, value, visible } from "./dom.js";
import { heat, matrixTable, scaleBar, scaleOf } from "./heat.js";
import { sourceMap } from "./media_preview.js";

const MAP_KINDS = { cross: "target to source", encoder: "within the source", second_source: "within the second source", decoder: "target to what was read before" };
const alignmentChoices = new WeakMap(); // what the reader chose outlives a redraw with new data

VIEWS.alignment = ["Alignment", drawAlignment];

function drawAlignment(root, data, actions = {}) {
  const chosen = { words: false, head: null, kind: data.maps[0]?.kind, ...alignmentChoices.get(root) };
  if (!data.maps.some(({ kind }) => kind === chosen.kind)) chosen.kind = data.maps[0]?.kind;
  const choose = (change) => {
    alignmentChoices.set(root, { ...chosen, ...change });
    drawAlignment(root, data, actions);
  };
  const shown = alignmentShown(data, chosen);
  refill(
    root,
    alignmentTexts(data),
    make(
      "div",
      { class: "beside" },
      shown && largeMap(data, shown, chosen, choose, root.clientWidth),
      data.maps.length > 0 && headGrid(data, shown, chosen, choose, actions),
    ),
  );
}

/** What was read and written, and how probable that is. */
function alignmentTexts(data) {
  const written = data.has_user_target ? "given target" : "output";
  return texts(
    ["source", passage(data.source_text, "source_text")],
    [written, passage(data.target_text, "target_text")],
    ["log p", [value("log_prob", fixed(data.log_prob, 3)), ` · ${percent(data.log_prob)}`, ablatedText(data)]],
  );
}

function ablatedText(data) {
  if (!data.ablated.length || data.log_prob_ablated == null) return null;
  const change = data.log_prob_ablated - data.log_prob;
  return make(
    "span",
    { class: "off" },
    " → ",
    value("log_prob_ablated", fixed(data.log_prob_ablated, 3)),
    ` · ${percent(data.log_prob_ablated)} without `,
    data.ablated.join(", "),
    ": a change of ",
    value("change", (change < 0 ? "" : "+") + fixed(change, 3)),
  );
}

/** The map that is drawn large: {title, rows, columns, weights}, whether log p stands beside it, a head's name. */
function alignmentShown(data, chosen) {
  for (const map of data.maps) {
    const index = map.heads.findIndex(({ name }) => name === chosen.head);
    if (index >= 0) return headShown(data, map, index);
  }
  const { words, soft, target, source } = data;
  if (soft && words && chosen.words)
    return { title: "Soft alignment, by words", rows: words.target, columns: words.source, weights: words.soft, across: true };
  if (soft) return { title: "Soft alignment", rows: target, columns: source, weights: soft, log_probs: true, across: true };
  return data.maps.length ? headShown(data, data.maps[0], 0) : null;
}

function headShown(data, map, index) {
  const { name, weights, entropy } = map.heads[index];
  const within = map.kind === "encoder" || map.kind === "second_source";
  const own = map.tokens ?? data.source; // a map within one of two sources
  const columns = map.kind === "decoder" ? (map.tokens ?? data.inputs) : own; // of one sequence, with the source
  const rows = within ? own : data.target;
  const across = map.kind === "cross";
  return { title: headTitle(map, index), name, entropy, rows, columns, weights, log_probs: !within, across };
}

function headTitle({ kind, layer }, index) {
  return `${kind[0].toUpperCase()}${kind.slice(1)} attention, layer ${layer}, head ${index + 1}`;
}

function largeMap(data, shown, chosen, choose, maxWidth) {
  const { title, rows, columns, weights, entropy } = shown;
  const scale = scaleOf([weights]);
  const columnsOf = (name, numbers) => [
    { title: name, texts: numbers.map((x) => fixed(x, 3)) },
    { title: "", texts: numbers.map(percent) },
  ];
  const beside = shown.log_probs ? columnsOf("log p", data.log_probs) : [];
  if (shown.log_probs && data.log_probs_ablated) beside.push(...columnsOf("heads off", data.log_probs_ablated));
  const mean = entropy != null && ["mean entropy of a row ", value("entropy", fixed(entropy, 2)), " nats"];
  const preview = shown.across && data.media_preview;
  const map = sourceMap(preview, {
    label: title,
    rows,
    columns,
    values: weights,
    scale,
    beside,
    maxWidth,
  });
  return make(
    "figure",
    { class: "large", "data-shown": shown.name ?? "soft" },
    make("h3", {}, title),
    make("div", { class: "controls" }, largeControls(data, shown, chosen, choose), !preview && scaleBar(scale)),
    map,
    mean && make("p", { class: "note" }, mean),
    behind(() => matrixTable(title, rows, columns, weights), "the map as a table"),
    behind(() => tokensTable(data), "log-probabilities as a table"),
  );
}

function largeControls(data, shown, chosen, choose) {
  const back = { type: "button", "data-key": "soft", click: () => choose({ head: null }) };
  if (shown.name) return data.soft && make("button", back, "← soft alignment");
  const units = ["subwords", "words"];
  const change = (unit) => choose({ words: unit === "words" });
  return data.words && choice("Unit", units, units[Number(chosen.words)], change);
}

function tokensTable(data) {
  const ablated = data.log_probs_ablated;
  const rows = data.target.map((piece, i) => [
    visible(piece),
    cell("token_log_prob", fixed(data.log_probs[i], 3), { index: i }),
    cell("token_probability", percent(data.log_probs[i]), { index: i }),
    ablated && cell("token_log_prob_ablated", fixed(ablated[i], 3), { index: i }),
  ]);
  return table("Log-probability of each target token", ["token", "log p", "p", ablated && "heads off"], rows);
}

// -- layer × head -----------------------------------------------------------------------------------------------------

function headGrid(data, shown, chosen, choose, actions) {
  const kinds = [...new Set(data.maps.map(({ kind }) => kind))];
  const layers = data.maps.filter(({ kind }) => kind === chosen.kind);
  const scale = scaleOf(layers.flatMap(({ heads }) => heads.map(({ weights }) => weights)));
  const widest = Math.max(...layers.map(({ heads }) => heads.length));
  const grid = make("div", { class: "heads", "data-kind": chosen.kind });
  grid.style.setProperty("--heads", widest);
  grid.append(make("span", {}), ...Array.from({ length: widest }, (_, i) => make("span", { class: "faint" }, i + 1)));
  for (const map of layers) {
    grid.append(make("span", { class: "faint layer" }, map.layer));
    map.heads.forEach((head, i) => grid.append(smallMap(data, map, head, i, scale, shown, choose, actions)));
    for (let i = map.heads.length; i < widest; i++) grid.append(make("span", {}));
  }
  const among = kinds.length > 1 && choice("Attention", kinds, chosen.kind, (kind) => choose({ kind }));
  const omitted = (data.left_out ?? []).map((kind) => `; ${MAP_KINDS[kind]}: too large to show`).join("");
  const order = "a row for each layer, a column for each head, the mean entropy of its rows in nats below it";
  return make(
    "figure",
    { class: "small" },
    make("h3", {}, "Layers and heads"),
    make("div", { class: "controls" }, among, scaleBar(scale)),
    make("p", { class: "note" }, `Attention ${MAP_KINDS[chosen.kind]}: ${order}${omitted}.`),
    make("div", { class: "scroll" }, grid),
    behind(() => entropyTable(data), "entropies as a table"),
  );
}

function smallMap(data, map, head, index, scale, shown, choose, actions) {
  const name = headTitle(map, index);
  const entropy = fixed(head.entropy, 2);
  const button = make(
    "button",
    {
      type: "button",
      class: "head",
      "data-head": head.name,
      "data-key": head.name,
      "aria-pressed": String(head.name === shown?.name),
      "aria-label": `${name}, entropy ${entropy}: show it large`,
      click: () => choose({ head: head.name }),
    },
    heat(head.weights, scale),
  );
  const off = data.ablated.includes(head.name);
  const turn = actions.head && tick("off", off, (checked) => actions.head(head.name, checked), `off: ${name}`);
  const below = make("span", { class: "faint" }, entropy);
  return make("div", { class: off ? "headbox is-off" : "headbox" }, button, below, turn);
}

function entropyTable(data) {
  const rows = data.maps.flatMap(({ kind, layer, heads }) =>
    heads.map(({ name, entropy }) => [name, kind, `${layer}`, cell("head_entropy", fixed(entropy, 2), { head: name })]),
  );
  return table("Mean entropy of the rows of each head, in nats", ["head", "attention", "layer", "entropy"], rows);
}
