/* A unigram language model splits a text: the pieces with the highest sum of log-probabilities (Viterbi).

     best[end] = max over pieces that end there of best[start] + log p(piece)

   Sums are in single precision, the first of equals wins, a character that no piece covers costs 10 more than the least
   probable piece, and the user's own symbols score more than any other: so does sentencepiece (measured with 0.2.2;
   double precision gave other splits for one text in eight where many pieces have equal scores). */

import { utf8Length } from "./text_unicode.js";

const UNKNOWN_PENALTY = 10;

/** Splits texts into the most probable pieces. `scores`: of each piece; `leastScore`: the least of a normal one;
    `unused`: pieces that are never taken; `userDefined`: pieces that are always taken. */
export function unigramSplitter(pieces, scores, { leastScore, unused, userDefined }) {
  const root = buildTrie(pieces, (piece) => !unused.has(piece));
  const scoreOf = pieces.map((piece, i) => (userDefined.has(piece) ? userDefinedScore(piece) : scores[i]));
  const unknownScore = Math.fround(leastScore - UNKNOWN_PENALTY);

  return (text) => {
    const best = new Float32Array(text.length + 1);
    const startOf = new Int32Array(text.length + 1).fill(-1); // of the best last piece that ends there
    const offer = (start, end, score) => {
      const total = Math.fround(score + best[start]);
      if (startOf[end] !== -1 && !(total > best[end])) return;
      best[end] = total;
      startOf[end] = start;
    };
    for (let start = 0; start < text.length; ) {
      const next = start + (text.codePointAt(start) > 0xffff ? 2 : 1);
      let isCovered = false;
      let node = root;
      for (let end = start; end < text.length; ) {
        node = node.next.get(text.charCodeAt(end));
        if (node === undefined) break;
        end += 1;
        if (node.index === -1) continue;
        offer(start, end, scoreOf[node.index]);
        if (end === next) isCovered = true;
      }
      if (!isCovered) offer(start, next, unknownScore);
      start = next;
    }
    const split = [];
    for (let end = text.length; end > 0; end = startOf[end]) split.push(text.slice(startOf[end], end));
    return split.reverse();
  };
}

function userDefinedScore(piece) {
  return Math.fround((utf8Length(piece) - 1) * 0.1);
}

/** A trie of UTF-16 units: nodes {next: unit → node, index: of the piece that ends here, or -1}. */
function buildTrie(pieces, isTaken) {
  const root = { next: new Map(), index: -1 };
  pieces.forEach((piece, index) => {
    if (piece === "" || !isTaken(piece)) return;
    let node = root;
    for (let i = 0; i < piece.length; i++) {
      const unit = piece.charCodeAt(i);
      if (!node.next.has(unit)) node.next.set(unit, { next: new Map(), index: -1 });
      node = node.next.get(unit);
    }
    node.index = index;
  });
  return root;
}
