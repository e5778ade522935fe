/* Step by step: greedy decoding (free) or along a target (forced), and the most probable tokens of each step.

     step   token   log p   entropy   | top-k tokens, each over a bar as wide as its probability

   A click on another token asks for the continuation from there: actions.force([ids before it, its id]). */

import { VIEWS, behind, cell, counted, fixed, make, passage, percent, refill, table, texts, token, value, visible } from "./dom.js";

VIEWS.steps = ["Steps", drawSteps];

function drawSteps(root, data, actions = {}) {
  const count = Math.max(data.free.steps.length, data.forced?.steps.length ?? 0);
  const rows = Array.from({ length: count }, (_, i) => pairOf(data, i, actions));
  const titles = [make("h3", {}, "Free"), make("h3", {}, "Forced")];
  refill(
    root,
    stepsTexts(data),
    data.prefix.length > 0 && prefixNote(data, actions),
    actions.force && make("p", { class: "note" }, "Choose another token, and the model goes on from there."),
    data.forced && make("div", { class: "pair titles", "aria-hidden": "true" }, titles),
    make("ol", { class: data.forced ? "steps two" : "steps" }, rows),
    behind(() => stepsTable(data), "the steps as a table"),
  );
}

function stepsTexts(data) {
  const run = (name, key) => {
    const log_prob = value(`${key}_log_prob`, fixed(data[key].log_prob, 3));
    return [name, [passage(data[key].text, `${key}_text`), make("span", { class: "faint after" }, "log p ", log_prob, ` · ${percent(data[key].log_prob)}`)]];
  };
  const source = passage(data.source_text, "source_text");
  return texts(["source", source], run("output", "free"), data.forced && run("target", "forced"));
}

function prefixNote(data, actions) {
  const press = { type: "button", "data-key": "again", click: () => actions.force([]) };
  const again = actions.force && make("button", press, "start over");
  const note = `${counted(data.prefix.length, "token was", "tokens were")} given at the beginning. `;
  return make("p", { class: "note", "data-field": "prefix" }, note, again);
}

/** A step of both runs; the first at which they differ is marked. */
function pairOf(data, index, actions) {
  const first = data.diverges === index;
  return make(
    "li",
    { class: first ? "pair diverges" : "pair" },
    first && make("p", { class: "first", "data-field": "diverges", "data-index": index }, "the first difference"),
    stepOf(data, "free", index, actions),
    data.forced && stepOf(data, "forced", index, actions),
  );
}

function stepOf(data, run, index, actions) {
  const steps = data[run].steps;
  const step = steps[index];
  if (!step) return make("div", { class: "step" });
  const before = steps.slice(0, index).map(({ id }) => id);
  const of = { run, index };
  const numbers = [
    ["log p ", value("log_prob", fixed(step.log_prob, 3), of), ` · ${percent(step.log_prob)}`],
    [" · entropy ", value("entropy", fixed(step.entropy, 2), of)],
    step.rank > 1 && ` · rank ${step.rank}`,
    step.forced && run === "free" && " · given",
  ];
  return make(
    "section",
    { class: "step", "data-run": run, "aria-label": `${run}, step ${index + 1}: ${visible(step.token)}` },
    make("p", { class: "line" }, faint(index + 1), token(step.token), faint(numbers)),
    make("div", { class: "options" }, step.top.map((option) => optionOf(step, option, before, actions))),
  );
}

function faint(...children) {
  return make("span", { class: "faint" }, ...children);
}

/** One of the likely tokens. Its bar is as wide as its probability; a click forces it, where the page can. */
function optionOf(step, option, before, actions) {
  const p = Math.exp(option.log_prob);
  const isChosen = option.id === step.id;
  const bar = make("span", { class: "bar", "aria-hidden": "true" });
  bar.style.setProperty("width", `${100 * p}%`);
  const content = [token(option.token), make("span", { class: "faint", "data-field": "p" }, percent(option.log_prob)), bar];
  const attrs = { class: isChosen ? "option chosen" : "option", "data-id": option.id };
  if (!actions.force) return make("span", attrs, content);
  const press = {
    type: "button",
    "aria-label": `${visible(option.token)}, probability ${percent(option.log_prob)}${isChosen ? ", chosen" : ""}: go on from here`,
    "data-key": `${before.length}/${option.id}`,
    click: () => actions.force([...before, option.id]),
  };
  return make("button", { ...attrs, ...press }, content);
}

function stepsTable(data) {
  const every = (run) => (data[run]?.steps ?? []).map((step, index) => ({ run, index, step }));
  const all = [...every("free"), ...every("forced")];
  const rows = all.map(({ run, index, step }) => {
    const of = { run, index };
    const option = (one) => `${visible(one.token)} ${fixed(one.log_prob, 3)}`;
    return [
      `${run} ${index + 1}`,
      cell("token", visible(step.token), of),
      cell("log_prob", fixed(step.log_prob, 3), of),
      cell("probability", percent(step.log_prob), of),
      cell("rank", `${step.rank}`, of),
      cell("entropy", fixed(step.entropy, 2), of),
      ...step.top.map((one, k) => cell("option", option(one), { ...of, rank: k + 1 })),
    ];
  });
  const most = Math.max(0, ...all.map(({ step }) => step.top.length));
  const ranks = Array.from({ length: most }, (_, k) => `${k + 1}.`);
  const headings = ["step", "token", "log p", "p", "rank", "entropy", ...ranks];
  return table("Each step with its likeliest tokens and their log-probabilities", headings, rows);
}
