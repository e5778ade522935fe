/* A vocabulary: token ↔ id.

     id   0 … 3          <pad> <s> </s> <unk>
          4 …            the extra symbols (language tags)
          next 256       the bytes, if unknown tokens are spelled by their UTF-8 bytes ("byte fallback")
          the rest       the learned tokens
          at the end     tokens and language tags that were added to a trained model

   Only learned and added tokens are looked up in text: a text with "</s>" in it never gets the id of the symbol. */

import { fromUtf8, toUtf8 } from "./text_unicode.js";

export const SPECIAL_SYMBOLS = ["<pad>", "<s>", "</s>", "<unk>"];
export const EOS_ID = 2;
export const UNK_ID = 3;
export const SPACE_MARKER = "\u2581"; // ▁, stands for the space before a word
export const UNK_SURFACE = "\u2047"; // ⁇, how <unk> is decoded

const BYTE_COUNT = 256;
const LANGUAGE_TAG = /^<(from|to|lang):[^>]*>$/;

/** The name of the token of a byte. */
export function byteTokenName(byte) {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
}

/** A vocabulary of the names that a tokenizer's data lists. */
export function buildVocabulary({ extra, tokens, added, byte_fallback: byteFallback }) {
  const symbolNames = [...SPECIAL_SYMBOLS, ...extra];
  const bytes = byteFallback ? Array.from({ length: BYTE_COUNT }, (_, byte) => byteTokenName(byte)) : [];
  const names = [...symbolNames, ...bytes, ...tokens, ...added];
  const symbolCount = symbolNames.length;
  const firstToken = symbolCount + bytes.length;
  const firstAdded = firstToken + tokens.length;
  const symbols = new Map(symbolNames.map((name, id) => [name, id]));
  const tokenIds = new Map(tokens.map((name, i) => [name, firstToken + i]));
  added.forEach((name, i) => (LANGUAGE_TAG.test(name) ? symbols : tokenIds).set(name, firstAdded + i));

  const isSymbol = (id) => id < symbolCount || (id >= firstAdded && symbols.has(nameOf(id)));
  const nameOf = (id) => names[id] ?? SPECIAL_SYMBOLS[UNK_ID];
  const isByte = (id) => id >= symbolCount && id < firstToken;

  /** The tokens of ids, bytes as numbers; symbols are left out, <unk> becomes `unknown`. */
  function surfaceParts(ids, unknown = UNK_SURFACE) {
    const parts = [];
    for (const id of ids) {
      if (isByte(id)) parts.push(id - symbolCount);
      else if (id >= firstToken && id < names.length && !isSymbol(id)) parts.push(names[id]);
      else if (id === UNK_ID) parts.push(unknown);
    }
    return parts;
  }

  return {
    names,
    symbolCount,
    firstToken,
    addedTokens: new Set(added.filter((name) => tokenIds.has(name))),
    allSymbols: [...extra, ...added.filter((name) => symbols.has(name))],
    isSymbol,
    nameOf,
    surfaceParts,
    symbolId: (symbol) => symbols.get(symbol),
    tokenId: (token) => tokenIds.get(token),
    idToByte: (id) => (isByte(id) ? id - symbolCount : undefined),
    /** The ids of a text that was not learned: its UTF-8 bytes with byte fallback, else one <unk>. */
    fallbackIds: (text) => (byteFallback ? Array.from(toUtf8(text), (byte) => symbolCount + byte) : [UNK_ID]),
    /** The tokens and bytes of ids as one text; bytes that are not UTF-8 become U+FFFD. */
    decode: (ids, unknown) => joinSurfaceParts(surfaceParts(ids, unknown)),
  };
}

/** Texts and bytes, in order, as one text. */
function joinSurfaceParts(parts) {
  let [text, bytes] = ["", []];
  for (const part of parts) {
    if (typeof part === "number") {
      bytes.push(part);
      continue;
    }
    if (bytes.length > 0) text += fromUtf8(Uint8Array.from(bytes));
    [text, bytes] = [text + part, []];
  }
  return text + fromUtf8(Uint8Array.from(bytes));
}
