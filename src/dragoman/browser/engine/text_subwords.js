/* Subword tokenizers by a sentencepiece model: those that Dragoman learned (bpe, unigram), and those of imported models.

     "a  dog" ─prepare→ ▁a▁▁dog ─split→ ▁a ▁ ▁dog → ids       a space is "▁"; one is added before the first word

   What no piece covers is spelled by its UTF-8 bytes, or a run of it is one <unk>. Decoding turns "▁" into spaces and
   drops the first. */

import { bpeSplitter } from "./text_bpe.js";
import { textPreparer } from "./text_charsmap.js";
import { replaceSurrogates, toUtf8 } from "./text_unicode.js";
import { unigramSplitter } from "./text_unigram.js";
import { SPACE_MARKER, UNK_ID, UNK_SURFACE, buildVocabulary, byteTokenName } from "./text_vocabulary.js";

export const SUBWORD_KINDS = ["bpe", "unigram", "sentencepiece"];

// Types of pieces in a sentencepiece model.
const NORMAL_PIECE = 1;
const UNKNOWN_PIECE = 2;
const CONTROL_PIECE = 3;
const USER_DEFINED_PIECE = 4;
const UNUSED_PIECE = 5;
const BYTE_PIECE = 6;
const strictUtf8Decoder = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** A tokenizer of one of these kinds. */
export function buildSubwordTokenizer(data) {
  const vocabulary = buildVocabulary(data);
  const model = buildPieceModel(data.model.pieces ?? data.tokens, data.model);
  const isImported = data.kind === "sentencepiece";
  const idOfPart = isImported ? importedId(vocabulary) : learnedId(vocabulary, data.tokens);
  const encodeRun = (text) => model.split(text).map(idOfPart);

  function decode(ids) {
    const text = isImported ? model.join(vocabulary.surfaceParts(ids)) : vocabulary.decode(ids);
    return text.replaceAll(SPACE_MARKER, " ").replace(/^ /, "");
  }

  return {
    kind: data.kind,
    vocabulary,
    encode: (text) => encodeAddedWords(replaceSurrogates(text), vocabulary, encodeRun),
    decode,
    unknownWords: () => [], // subwords cover nearly all text, and what they do not cover is no word
    pieces: (ids) => Array.from(ids, (id) => vocabulary.nameOf(id)),
  };
}

/** The id of a piece or byte of a model that Dragoman learned: its pieces are the vocabulary's tokens. */
function learnedId(vocabulary, tokens) {
  const ids = new Map(tokens.map((token, i) => [token, vocabulary.firstToken + i]));
  return (part) => (typeof part === "number" ? vocabulary.symbolCount + part : (ids.get(part) ?? UNK_ID));
}

/** The id of a piece or byte of an imported model, whose vocabulary numbers the pieces in its own way. */
function importedId(vocabulary) {
  return (part) => vocabulary.tokenId(typeof part === "number" ? byteTokenName(part) : part) ?? UNK_ID;
}

/** Encode a text in which the words that were added to the vocabulary, as ▁word, are a token each. */
function encodeAddedWords(text, vocabulary, encode) {
  if (vocabulary.addedTokens.size === 0) return encode(text);
  const ids = [];
  let run = []; // words for `encode`
  const endRun = () => {
    if (run.length > 0) for (const id of encode(run.join(" "))) ids.push(id);
    run = [];
  };
  for (const word of text.split(" ")) {
    if (word !== "" && vocabulary.addedTokens.has(SPACE_MARKER + word)) {
      endRun();
      ids.push(vocabulary.tokenId(SPACE_MARKER + word));
    } else {
      run.push(word);
    }
  }
  endRun();
  return ids;
}

// -- the model: a text ↔ its pieces, bytes as numbers ------------------------------------------------------------------

function buildPieceModel(names, model) {
  const typeOf = new Map(model.types.map(([i, type]) => [names[i], type]));
  const indices = names.map((_, i) => i).filter((i) => isInText(typeOf.get(names[i])));
  const pieces = indices.map((i) => names[i]);
  const scores = indices.map((i) => Math.fround(model.scores[i]));
  const ofType = (type) => new Set(pieces.filter((piece) => typeOf.get(piece) === type));
  const [unused, userDefined] = [ofType(UNUSED_PIECE), ofType(USER_DEFINED_PIECE)];
  const known = new Set(model.algorithm === "bpe" ? pieces : pieces.filter((piece) => !unused.has(piece)));
  const lengthOfSymbolAt = longestAt(userDefined);
  const prepare = textPreparer(model, lengthOfSymbolAt);
  const splitPrepared =
    model.algorithm === "bpe"
      ? bpeSplitter(pieces, scores, symbolSplitter(lengthOfSymbolAt), unused)
      : unigramSplitter(pieces, scores, { leastScore: leastNormal(pieces, scores, typeOf), unused, userDefined });

  /** The pieces of a text; what none covers as bytes, or each run of it as one text. */
  function split(text) {
    const parts = [];
    let afterUnknown = false;
    for (const piece of splitPrepared(prepare(text))) {
      const isUnknown = !known.has(piece);
      if (isUnknown && model.byte_fallback) parts.push(...toUtf8(piece));
      else if (isUnknown && afterUnknown) parts.push(parts.pop() + piece);
      else parts.push(piece);
      afterUnknown = isUnknown;
    }
    return parts;
  }

  return { split, join: pieceJoiner(names, typeOf, model) };
}

function isInText(type = NORMAL_PIECE) {
  return type === NORMAL_PIECE || type === USER_DEFINED_PIECE || type === UNUSED_PIECE;
}

/** A function (text, position) → the length of the longest of some symbols there, 0 if there is none. */
function longestAt(symbols) {
  const longestFirst = [...symbols].sort((a, b) => b.length - a.length);
  return (text, at) => longestFirst.find((symbol) => text.startsWith(symbol, at))?.length ?? 0;
}

/** A function text → its characters and user-defined symbols, and whether each may merge with another. */
function symbolSplitter(lengthOfSymbolAt) {
  return (text) => {
    const symbols = [];
    const frozen = new Set();
    for (let at = 0; at < text.length; ) {
      const length = lengthOfSymbolAt(text, at);
      if (length > 0) frozen.add(symbols.length);
      const end = at + (length || (text.codePointAt(at) > 0xffff ? 2 : 1));
      symbols.push(text.slice(at, end));
      at = end;
    }
    return [symbols, (i) => !frozen.has(i)];
  };
}

/** The least score of a normal piece. */
function leastNormal(pieces, scores, typeOf) {
  return scores.reduce((least, score, i) => (typeOf.has(pieces[i]) ? least : Math.min(least, score)), Infinity);
}

/** A function that joins pieces of an imported model to a text, as sentencepiece decodes them. */
function pieceJoiner(names, typeOf, model) {
  const known = new Set(names);
  const dropsFirstSpace = model.add_dummy_prefix || model.remove_extra_whitespaces;

  return (pieces) => {
    let [text, bytes, isStart, droppedSpace] = ["", [], true, false];
    for (const piece of pieces) {
      const type = typeOf.get(piece) ?? NORMAL_PIECE;
      if (type === BYTE_PIECE) {
        bytes.push(parseInt(piece.slice(3, 5), 16));
        continue;
      }
      [text, bytes] = [text + decodeBytes(bytes), []];
      if (droppedSpace || text !== "") isStart = false;
      droppedSpace = false;
      if (type === CONTROL_PIECE) continue;
      if (type === UNKNOWN_PIECE) text += ` ${UNK_SURFACE} `;
      else if (!known.has(piece)) text += piece;
      else {
        const drops = isStart && dropsFirstSpace && piece.startsWith(SPACE_MARKER);
        droppedSpace = drops && !model.remove_extra_whitespaces; // else all the first ones go
        text += (drops ? piece.slice(1) : piece).replaceAll(SPACE_MARKER, " ");
      }
    }
    return text + decodeBytes(bytes);
  };
}

/** UTF-8 as sentencepiece decodes it: each byte that is not part of a character is U+FFFD. */
function decodeBytes(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; ) {
    const length = bytes[at] < 0x80 ? 1 : bytes[at] < 0xe0 ? 2 : bytes[at] < 0xf0 ? 3 : 4;
    try {
      text += strictUtf8Decoder.decode(Uint8Array.from(bytes.slice(at, at + length)));
      at += length;
    } catch {
      text += "\ufffd";
      at += 1;
    }
  }
  return text;
}
