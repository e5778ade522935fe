/* The tabs: what each is for, what it asks the server for, and the controls that are its own.

     asks(state, column, filled) → [[what draws the answer, path, body], …]        one answer below the other

   `column` is {model, prefix, off}: a model as GET /v1/models describes it, and what was forced and switched off.
   A panel with `whole` is of the model itself, one with `texts` is for models that read one text and nothing else, one
   that is `own` is no view; views are there for the models whose description lists them.
   `filled` are the texts of a tab's own text area, which are examples of the model as long as nobody wrote others. */

import { choice, make } from "../views/dom.js";
import { batchTool } from "./batch.js";
import { sourcesOf } from "./media.js";
import { languagesFor } from "./model.js";
import { linesOf, pairsOf, trail } from "./state.js";
import { pairLines, tablePicker } from "./table_picker.js";

export const EXAMPLES = 40; // to begin with: fewer are no cloud of sentences, more are no longer read
const WORST = 5;
const METRICS = ["chrf", "bleu", "exact", "cer"]; // of a model without kept examples, by which its own are chosen
const MAX_PAIRS = 200; // of a file: some seconds for a small model on one core
const PROBES = 100; // made sources: some seconds for a small model on one core

function input(state, column, source = null) {
  return { ...(source === null ? sourcesOf(state, column.model) : { source }), ...languagesFor(column.model, state.language) };
}

/** A view of one source. */
function inspect(view, body) {
  return [view, `v1/inspect/${view}`, body];
}

function reference(state) {
  return state.reference.trim() ? state.reference : null;
}

function chosenTarget(state) {
  return state.of === "reference" ? reference(state) : null;
}

/** Whether to look at the output or at the reference, where there is one. */
function ofWhich(state, go) {
  return reference(state) && choice("Of the", ["output", "reference"], state.of, (of) => go({ of }));
}

/** A text area with a button below it; `name` is its field in the state. */
function area(name, label, text, button, go, rows = 6) {
  const field = make("textarea", { rows, dir: "auto", spellcheck: "false", id: `${name}-text`, "data-key": name });
  field.value = text;
  const send = () => go({ [name]: field.value }, true);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
  });
  const press = { type: "button", "data-key": `${name} asked`, click: send };
  return make("div", { class: "area" }, make("label", { for: field.id }, label), field, make("button", press, button));
}

function asLine({ source, target }) {
  return target == null ? source : `${source} ||| ${target}`;
}

export const PANELS = {
  result: {
    title: "Result",
    own: true,
    about: "What the model answers, token by token, and the next best answers of its search.",
    asks(state, column) {
      const { model } = column;
      const search = model.kind === "labels" ? {} : { beam: state.beam };
      const nbest = Math.min(state.nbest, state.beam);
      const asked = [["result", "v1/predict", { model: model.name, inputs: [input(state, column)], ...search, nbest }]];
      if (!reference(state) || model.kind !== "pairs") return asked;
      const pair = { ...input(state, column), target: state.reference };
      return [...asked, ["reference", "v1/score", { model: model.name, inputs: [pair] }]];
    },
  },
  batch: {
    title: "File",
    about: "A file with many sources: its rows come back with a prediction and its probability.",
    own: true,
    texts: true,
    whole: true,
    together: true,
    tools: (state, go, text, column) => {
      const { model } = column;
      const search = model.kind === "labels" ? {} : { beam: state.beam };
      return batchTool((sources) => ({ model: model.name, inputs: sources.map((one) => input(state, column, one)), ...search }));
    },
    asks: () => [],
  },
  alignment: {
    title: "Alignment",
    about: "Where the model looked in the source while it wrote each token. The stronger the color, the more.",
    tools: (state, go) => ofWhich(state, go),
    asks: (state, column) => {
      const target = chosenTarget(state);
      const body = { model: column.model.name, source: input(state, column), target, ablate: column.off };
      return [inspect("alignment", target === null ? { ...body, beam: state.beam } : body)];
    },
  },
  beam: {
    title: "Beam tree",
    about: "Every beginning that the search kept or dropped, step by step, with the reason.",
    asks: (state, column) => {
      const told = column.model.kind === "pairs" ? { target: reference(state) } : {};
      return [inspect("beam", { model: column.model.name, source: input(state, column), beam: state.beam, ...told })];
    },
  },
  steps: {
    title: "Steps",
    about: "The likeliest next tokens at every step of a greedy search.",
    tools: (state, go) => undoButtons(state, go),
    asks: (state, column) => {
      const told = column.model.kind === "pairs" ? { target: reference(state) } : {};
      const prefix = trail(column.prefix).at(-1) ?? [];
      return [inspect("steps", { model: column.model.name, source: input(state, column), prefix, ...told })];
    },
  },
  saliency: {
    title: "Saliency",
    about: "How much each source token moves each token of the answer, and how many steps must wait for each other.",
    tools: (state, go) => ofWhich(state, go),
    asks: (state, column) => [
      inspect("saliency", { model: column.model.name, source: input(state, column), target: chosenTarget(state) }),
      inspect("sequential", { model: column.model.name }),
    ],
  },
  blame: {
    title: "Training lines",
    about: "The training lines behind the answer. Of the reference, where there is one: those behind what departs from it.",
    asks: (state, column) => {
      const told = column.model.kind === "pairs" ? { target: reference(state) } : {};
      return [inspect("blame", { model: column.model.name, source: input(state, column), ...told })];
    },
  },
  positions: {
    title: "Positions",
    about: "How alike two positions are to the model, before it has read a word.",
    whole: true,
    tools: (state, go) => choice("Side", ["encoder", "decoder"], state.side, (side) => go({ side })),
    asks: (state, column) => [inspect("positions", { model: column.model.name, side: state.side })],
  },
  embedding_space: {
    title: "Sentence space",
    about: "Sources as points: those that the encoder sums up alike lie close to each other.",
    texts: true,
    fills: { field: "texts", line: ({ source }) => source },
    tools: (state, go, text) => area("texts", "Sources, one on each line", text, "Draw the map", go),
    asks: (state, column, text) => {
      const sources = linesOf(text).map((line) => input(state, column, line));
      if (!sources.length) return [];
      return [inspect("embedding_space", { model: column.model.name, sources })];
    },
  },
  quality: {
    title: "Quality",
    about: "Scores on pairs of yours, by length and by rarity, and the worst answers to look into.",
    texts: true,
    together: true,
    fills: { field: "pairs", line: asLine },
    tools: (state, go, text) => [
      area("pairs", "Pairs, one on each line: source ||| reference", text, "Measure", go),
      tablePicker("pairs", { source: "Sources in", target: "References in" }, (table, columns) => {
        const { lines, note } = pairLines(table, columns, MAX_PAIRS);
        go({ pairs: lines.join("\n") }, true);
        return note;
      }),
    ],
    asks: (state, column, text) => {
      const inputs = pairsOf(text).map(({ source, target }) => ({ ...input(state, column, source), target }));
      if (!inputs.length || (state.pairs === null && inputs.every(({ target }) => target === null))) return []; // nothing to compare with
      const models = [column.model.name, state.model2].filter(Boolean);
      const metrics = column.model.metrics.length ? column.model.metrics : METRICS;
      const body = { model: column.model.name, models, inputs, metrics, metric: state.metric || null, beam: state.beam };
      return [inspect("quality", { ...body, worst: WORST })];
    },
  },
  probes: {
    title: "Probes",
    about: "Known ways to fail, counted: loops, copies, words left out, answers to nonsense.",
    texts: true,
    tools: (state, go) => {
      const label = "Sources, one on each line; none: made of the model's own vocabulary";
      return area("sources", label, state.sources ?? "", "Probe", go, 2);
    },
    asks: (state, column) => {
      const texts = linesOf(state.sources ?? "");
      const sources = texts.length ? texts : null;
      return [inspect("probes", { model: column.model.name, sources, count: PROBES, ...languagesFor(column.model, state.language) })];
    },
  },
  replay: {
    title: "Training",
    about: "The same sources at every checkpoint of the training, and its curves.",
    whole: true,
    asks: (state, column) => [inspect("replay", { model: column.model.name })],
  },
};

/** A button for each column that forced something. */
function undoButtons(state, go) {
  const buttons = ["prefix", "prefix2"].map((field, i) => {
    const forced = trail(state[field]);
    if (!forced.length) return null;
    const undo = () => go({ [field]: fromLast(state[field]) });
    const where = state.model2 ? ` in column ${i + 1}` : "";
    return make("button", { type: "button", "data-key": `undo ${field}`, click: undo }, `Undo the last choice${where}`);
  });
  return buttons.some(Boolean) && make("div", { class: "controls" }, buttons);
}

function fromLast(text) {
  return text.split("~").slice(0, -1).join("~");
}
