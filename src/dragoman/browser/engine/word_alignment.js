/* The alignment of words: weights (T, S) are summed over the pieces of a source word, averaged over those of a target word.

   A word starts at a space marker; special tokens but <unk> are words, too. */

import { trimSpaces } from "./text_unicode.js";
import { SPACE_MARKER, UNK_ID } from "./text_vocabulary.js";

const WORD_KINDS = ["words", "symbols"]; // of tokenizers

/** {source, target, soft} of words from the weights of pieces; null if all are words already. */
export function mergeWords(codec, stride, sourcePieces, sourceIds, targetIds, soft) {
  const hasPieces = !codec.hasSecondSource && stride === 1; // else one encoder state has several pieces
  const [sourceAreWords, targetAreWords] = [codec.source, codec.target].map(({ kind }) => WORD_KINDS.includes(kind));
  if (targetAreWords && (sourceAreWords || !hasPieces)) return null;
  const columns = hasPieces ? wordSpans(codec.source, sourceIds, sourceAreWords) : sourcePieces.map((_, j) => [j, j + 1]);
  const rows = wordSpans(codec.target, targetIds, targetAreWords);
  return {
    source: hasPieces ? columns.map((span) => spellWord(codec.source, sourceIds, span)) : sourcePieces,
    target: rows.map((span) => spellWord(codec.target, targetIds, span)),
    soft: rows.map(([first, end]) =>
      columns.map((column) => soft.slice(first, end).reduce((sum, row) => sum + sumOver(row, column), 0) / (end - first)),
    ),
  };
}

function sumOver(row, [start, end]) {
  let sum = 0;
  for (let j = start; j < end; j++) sum += row[j];
  return sum;
}

/** [start, end] of each word. */
function wordSpans(tokenizer, ids, tokensAreWords) {
  const separate = ids.map((id) => tokensAreWords || standsAlone(tokenizer, id));
  const spaces = tokenizer.pieces(ids).map((piece) => piece.startsWith(SPACE_MARKER) || piece.startsWith("␣"));
  const starts = ids.map((_, i) => i).filter((i) => i === 0 || spaces[i] || separate[i] || separate[i - 1]);
  return starts.map((start, i) => [start, starts[i + 1] ?? ids.length]);
}

/** Whether an id is a special token or a tag. */
function standsAlone({ vocabulary }, id) {
  return vocabulary.isSymbol(id) && id !== UNK_ID;
}

/** The text of a word's ids; the piece itself for a special token, ␣ for nothing. */
function spellWord(tokenizer, ids, [start, end]) {
  const own = ids.slice(start, end);
  return standsAlone(tokenizer, own[0]) ? tokenizer.pieces(own)[0] : trimSpaces(tokenizer.decode(own)) || "␣";
}
