/* How good models are: scores with intervals, by source length and by the rarest source token, and the worst examples.

   A point is the metric of the pairs in a range of lengths (or counts); the band is its 95 % interval. */

import { VIEWS, behind, cell, counted, choice, figure, fixed, make, passage, refill, stacked, table, texts, value } from "./dom.js";
import { legend, lineChart, pointText } from "./chart.js";

const RARITY_OF = {
  training: "how often training saw the rarest source token",
  "these sources": "how often the rarest token is in these sources",
};

VIEWS.quality = ["Quality", drawQuality];

function drawQuality(root, data, actions = {}) {
  const width = Math.min(540, root.clientWidth || 540);
  refill(
    root,
    stacked("Scores", scoresTable(data)),
    metricChoice(data, actions),
    data.models.length > 1 && legend(data.models.map(({ name }) => name)),
    make(
      "div",
      { class: "beside" },
      qualityFigure(data, data.by_length, "length", `source length in ${data.length_unit}`, width),
      qualityFigure(data, data.by_rarity, "rarity", RARITY_OF[data.rarity_of], width),
    ),
    data.left_out && make("p", { class: "note" }, data.left_out),
    worstList(data, actions),
  );
}

function scoresTable(data) {
  const rows = data.models.map((model) => {
    const of = { model: model.name };
    const scores = data.metrics.map((metric) => {
      const { value: score, low, high } = model.scores[metric] ?? {};
      const interval = low != null && make("span", { class: "faint" }, ` [${fixed(low, 2)}, ${fixed(high, 2)}]`);
      return cell(metric, [make("b", {}, fixed(score, 2)), interval], of);
    });
    const [pairs, perplexity] = [cell("n", `${model.n}`, of), cell("perplexity", fixed(model.perplexity, 2), of)];
    return [make("bdi", {}, model.name), pairs, ...scores, perplexity];
  });
  return table("Scores with their 95 % intervals", ["model", "pairs", ...data.metrics.map((name) => labelOf(data, name)), "perplexity"], rows);
}

/** What a metric is called. */
function labelOf({ labels }, name) {
  return labels?.[name] ?? name;
}

/** Which metric the figures and the worst examples are of, where the page can ask again. */
function metricChoice(data, actions) {
  if (!actions.metric || data.metrics.length < 2) return null;
  const labels = data.metrics.map((name) => labelOf(data, name));
  const change = (label) => actions.metric(data.metrics[labels.indexOf(label)]);
  return make("div", { class: "controls" }, choice("Metric", labels, labelOf(data, data.metric), change));
}

function rangeText({ low, high }) {
  if (high == null) return `${low}+`;
  return low === high ? `${low}` : `${low}–${high}`;
}

/** Ranges stand at equal distances: lengths and counts grow by factors, and most pairs are in the first few. */
function qualityFigure(data, lines, field, across, width) {
  const ranges = new Map(lines.flatMap(({ points }) => points.map((point) => [rangeText(point), point])));
  const order = [...ranges.keys()].sort((a, b) => ranges.get(a).low - ranges.get(b).low);
  if (!order.length) return null;
  const rangeIndex = (point) => order.indexOf(rangeText(point));
  const series = lines.map(({ model, points }) => ({
    name: model,
    points: points.map((point) => ({ ...point, x: rangeIndex(point), y: point.score, low: point.lower, high: point.upper })),
  }));
  const chart = lineChart({
    label: `${data.metric} by ${field}: ${counted(series.length, "line")} over ${counted(order.length, "range")}`,
    across,
    up: `${labelOf(data, data.metric)}, ${data.higher_is_better ? "higher" : "lower"} is better`,
    series,
    ticks: order.map((label, x) => ({ x, label })),
    counts: true,
    width,
    title: (x) => `${field} ${order[x]}`,
    text: (point) => pointText(point, 2),
  });
  return figure(`By ${field}`, "", chart.element, behind(() => pointsTable(lines, field), `by ${field} as a table`));
}

function pointsTable(lines, field) {
  const rows = lines.flatMap(({ model, points }) =>
    points.map((point, index) => {
      const of = { model, index };
      const numbers = ["score", "lower", "upper"].map((name) => cell(`${field}_${name}`, fixed(point[name], 2), of));
      return [make("bdi", {}, model), rangeText(point), cell(`${field}_count`, `${point.count}`, of), ...numbers];
    }),
  );
  return table(`Scores by ${field}`, ["model", field, "pairs", "score", "from", "to"], rows);
}

function worstList(data, actions) {
  if (!data.worst.length) return null;
  const items = data.worst.map((example, index) => {
    const line = (name) => [name, passage(example[name], name, { index })];
    const score = value("worst_score", fixed(example.score, 2), { index });
    const model = data.models.length > 1 ? ` · ${example.model}` : "";
    return make(
      "li",
      {},
      make("p", { class: "faint" }, `pair ${example.index + 1} · ${labelOf(data, data.metric)} `, score, model),
      texts(line("source"), line("reference"), line("output")),
      actions.open && openButtons(example, actions),
    );
  });
  return make("section", {}, make("h3", {}, items.length > 1 ? `The worst ${items.length}` : "The worst one"), make("ol", { class: "worst" }, items));
}

function openButtons({ model, source, reference }, actions) {
  const requests = { alignment: {}, beam: { target: reference }, steps: { target: reference } };
  const buttons = Object.entries(requests).map(([view, request]) =>
    make("button", { type: "button", click: () => actions.open(view, { model, source, ...request }) }, view),
  );
  return make("p", { class: "controls" }, buttons);
}
