/* Blame: the training lines behind an answer. A token of the answer, or of a line, is the darker the more of the score
   it has; below a line are the answer's tokens that it speaks for. */

import { VIEWS, behind, cell, counted, fixed, make, passage, refill, table, texts, token, value, visible } from "./dom.js";

const SPOKEN_SHARE = 0.1; // of a line's score: it speaks for the tokens that have more

VIEWS.blame = ["Training lines", drawBlame];

function drawBlame(root, data) {
  const answer = [
    ["source", passage(data.source_text, "source_text")],
    ["answer", passage(data.target_text, "target_text")],
    ["tokens", answerTokens(data.tokens)],
  ];
  refill(
    root,
    texts(...answer),
    make("p", { class: "note" }, scopeOf(data)),
    make("ol", { class: "blamed" }, data.lines.map((line, index) => lineOf(data, line, index))),
    behind(() => linesTable(data), "the lines as a table"),
  );
}

function scopeOf({ compared, indexed, total }) {
  const sample = indexed < total ? `, a random sample of ${total}` : "";
  return `Shares are of the ${counted(compared, "line")} nearest to the answer, out of ${counted(indexed, "training line")}${sample}.`;
}

/** The tokens of the answer; with a target, those that depart from it stand out. */
function answerTokens(tokens) {
  const some = tokens.some(({ explained }) => !explained);
  const pieces = tokens.map(({ token: piece, p, explained }) =>
    make("span", { class: some && explained ? "piece departs" : "piece", title: `probability ${fixed(100 * p, 1)} %` }, token(piece)),
  );
  return make("span", { class: "pieces" }, pieces);
}

function lineOf(data, line, index) {
  const spoken = spokenFor(data, line).map((piece) => [token(piece), " "]);
  const bar = make("span", { class: "bar", "aria-hidden": "true" });
  bar.style.setProperty("width", `${100 * line.share}%`);
  const share = [value("share", fixed(line.share, 2), { index }), make("span", { class: "track" }, bar), place(line, index)];
  const source = line.source !== "" && [passage(line.source, "source", { index }), " → "];
  return make(
    "li",
    {},
    make("p", { class: "share" }, share),
    make("p", {}, source, linePieces(line)),
    spoken.length > 0 && make("p", { class: "faint" }, "speaks for ", spoken),
  );
}

function place(line, index) {
  return make("span", { class: "faint" }, value("place", `${line.file}:${line.line}`, { index }));
}

function spokenFor({ tokens }, { token_shares: shares }) {
  return tokens.filter((_, i) => shares[i] >= SPOKEN_SHARE).map(({ token: piece }) => piece);
}

/** The target of a line, token by token. */
function linePieces({ pieces, piece_shares: shares }) {
  const spans = pieces.map((piece, i) => {
    const span = make("span", { class: "piece" }, token(piece));
    span.style.setProperty("--share", fixed(shares[i] ?? 0, 3));
    return span;
  });
  return make("span", { class: "pieces" }, spans);
}

function linesTable(data) {
  const rows = data.lines.map((line, index) => [
    `${index + 1}`,
    cell("share", fixed(line.share, 2), { index }),
    cell("place", `${line.file}:${line.line}`, { index }),
    cell("source", passage(line.source), { index }),
    cell("target", passage(line.target), { index }),
    cell("speaks_for", spokenFor(data, line).map(visible).join(" "), { index }),
  ]);
  return table("Training lines behind the answer", ["", "share", "line", "source", "target", "speaks for"], rows);
}
