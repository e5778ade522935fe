/* The result of a search: its text, its tokens with their log-probabilities, the next best; and a reference's. */

import { cell, fixed, make, passage, percent, refill, stacked, table, token, value } from "../views/dom.js";

const ENDED = {
  length: "It was stopped by its length limit.",
  empty_source: "The source is blank.",
  no_valid_token: "Nothing was allowed to follow, so it stops here.",
};
const TOO_LONG = "The source is too long for this model: only its beginning was read.";

export function drawResult(root, { results: [best] }) {
  const every = [best, ...best.alternatives];
  refill(
    root,
    make(
      "div",
      { class: "beside" },
      make(
        "div",
        { class: "best" },
        make("p", { class: "answer" }, passage(best.text, "text", { index: 0 })),
        make("p", { class: "faint" }, numbersOf(best)),
        ENDED[best.finish_reason] && make("p", { class: "note" }, ENDED[best.finish_reason]),
        best.source_truncated && make("p", { class: "note" }, TOO_LONG),
        best.log_probs.length > 0 && tokenList(best),
      ),
      every.length > 1 && stacked("The best results", bestTable(every)),
    ),
  );
}

function numbersOf({ log_prob, score }) {
  const said = ["log p ", value("log_prob", fixed(log_prob, 3), { index: 0 }), ` · ${percent(log_prob)}`];
  return score === log_prob ? said : [...said, " · score ", value("score", fixed(score, 3), { index: 0 })];
}

/** Each token over its log-probability; the bar is as wide as its probability. */
function tokenList({ tokens, log_probs }) {
  const pieces = log_probs.length > tokens.length ? [...tokens, "</s>"] : tokens;
  const items = pieces.map((piece, index) => {
    const bar = make("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("width", `${100 * Math.exp(log_probs[index])}%`);
    const number = value("token_log_prob", fixed(log_probs[index], 3), { index });
    const p = value("token_probability", percent(log_probs[index]), { index });
    return make("li", { class: "option" }, token(piece), p, number, bar);
  });
  return make("ol", { class: "tokens", "aria-label": "Tokens, their probabilities and log-probabilities" }, items);
}

function bestTable(every) {
  const rows = every.map((one, index) => [
    `${index + 1}`,
    cell("best_text", passage(one.text), { index }),
    cell("best_score", fixed(one.score, 3), { index }),
    cell("best_log_prob", fixed(one.log_prob, 3), { index }),
    cell("best_probability", percent(one.log_prob), { index }),
  ]);
  return table(`The best ${every.length} that the search found`, ["", "text", "score", "log p", "p"], rows);
}

/** The reference under the same model. */
export function drawReference(root, { results: [one] }) {
  const log_prob = value("reference_log_prob", fixed(one.log_prob, 3));
  refill(root, make("p", { class: "note" }, "The model gives the reference a log p of ", log_prob, `, ${percent(one.log_prob)}.`));
}
