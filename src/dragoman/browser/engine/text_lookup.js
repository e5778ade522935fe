/* Tokenizers that look up whole tokens: characters, bytes, symbols and words.

     characters   "té a"         → t é ␣ a                   with features, "walk V;NOM(3)" → w a l k [V] [NOM] [3]
     bytes        "té"           → t <0xC3> <0xA9>
     symbols      "D R AE1 G"    → D R AE1 G
     words        "Hello, world!" → ▁Hello , ▁world !

   A token that was not learned is its UTF-8 bytes with byte fallback, else <unk>. */

import { codePointPattern, lowercaseText, replaceSurrogates, splitAtSpaces } from "./text_unicode.js";
import { SPACE_MARKER, UNK_SURFACE, buildVocabulary } from "./text_vocabulary.js";

export const LOOKUP_KINDS = ["characters", "bytes", "symbols", "words"];

/** A tokenizer of one of these kinds; `unassigned` matches characters that have no case. */
export function buildLookupTokenizer(data, unassigned) {
  const vocabulary = buildVocabulary(data);
  const own = LOOKUP_RULES[data.kind](data, vocabulary);
  const { split, decode = vocabulary.decode, pieceOf = vocabulary.nameOf, fallbackText = (token) => token } = own;
  const clean = (text) => replaceSurrogates(data.lowercase ? lowercaseText(text, unassigned) : text);

  function encode(text) {
    const ids = [];
    for (const token of split(clean(text))) {
      const id = vocabulary.tokenId(token);
      if (id !== undefined) ids.push(id);
      else for (const fallback of vocabulary.fallbackIds(fallbackText(token))) ids.push(fallback);
    }
    return ids;
  }

  /** The tokens of a text that become <unk>, in order, as the text spells them. */
  function unknownWords(text) {
    if (data.byte_fallback) return [];
    const unknown = split(text).filter((token) => vocabulary.tokenId(clean(token)) === undefined);
    return unknown.map((token) => (token.startsWith(SPACE_MARKER) ? token.slice(1) : token));
  }

  return {
    kind: data.kind,
    vocabulary,
    encode,
    decode: (ids) => decode(ids),
    unknownWords,
    pieces: (ids) => Array.from(ids, (id) => pieceOf(id)),
  };
}

// How each kind splits a text, and what else it does in its own way.
const LOOKUP_RULES = {
  characters: (data, vocabulary) => ({
    split: data.features ? featureSplitter(data.word_characters) : (text) => Array.from(text),
    pieceOf: (id) => (vocabulary.nameOf(id) === " " ? "␣" : vocabulary.nameOf(id)),
  }),
  bytes: (data, vocabulary) => ({
    split: (text) => (text === "" ? [] : [text]), // one token, which is never learned
    pieceOf: (id) => showByte(id, vocabulary),
  }),
  symbols: (data, vocabulary) => ({
    split: splitAtSpaces,
    decode: (ids) => vocabulary.surfaceParts(ids).join(" "),
  }),
  words: (data, vocabulary) => ({
    split: wordSplitter(data.word_characters),
    // An unknown token is most often a word, with a space before it.
    decode: (ids) => vocabulary.decode(ids, SPACE_MARKER + UNK_SURFACE).replaceAll(SPACE_MARKER, " ").replace(/^ /, ""),
    fallbackText: (token) => token.replaceAll(SPACE_MARKER, " "), // a space is one byte, the marker three
  }),
};

/** Printable ASCII as itself, a space as ␣, any other byte by its number. */
function showByte(id, vocabulary) {
  const byte = vocabulary.idToByte(id);
  if (byte === undefined || byte < 0x20 || byte >= 0x7f) return vocabulary.nameOf(id);
  return byte === 0x20 ? "␣" : String.fromCharCode(byte);
}

/** Splits a text into words, runs of these characters, and single other characters. */
function wordSplitter(ranges) {
  const set = codePointPattern(ranges).source;
  const tokens = new RegExp(`${set}|[^]`, "gu");
  return (text) =>
    splitAtSpaces(text.replaceAll(SPACE_MARKER, " ")).flatMap((chunk) => {
      const [first, ...rest] = chunk.match(tokens);
      return [SPACE_MARKER + first, ...rest];
    });
}

/** Splits a text into characters, but a word that is a bundle of grammatical features (V;NOM(3), Case=Nom|Number=Sing)
    into these, in brackets. */
function featureSplitter(ranges) {
  const word = codePointPattern(ranges).source.slice(1, -2); // what \w is, without the brackets of the set
  const feature = `[A-Z0-9][${word}.+\\/\\{\\}\\(\\),:*\\-]*`;
  const assignment = `[${word}]*=[${word},]+`;
  const bundle = new RegExp(`^(?:${feature}(?:;${feature})+|[A-Z]${assignment}(?:\\|[A-Z]${assignment})*)$`, "u");
  return (text) => {
    if (!text.includes(";") && !text.includes("=")) return Array.from(text);
    return text.split(" ").flatMap((part, i) => {
      if (bundle.test(part)) return part.match(/[^;|(),]+/gu).map((name) => `[${name}]`);
      return i > 0 ? [" ", ...part] : [...part];
    });
  };
}
