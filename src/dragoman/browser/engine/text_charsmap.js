/* How a sentencepiece model prepares a text: it replaces what its map of characters lists, and spaces by "▁".

   The map is a trie over UTF-8 bytes, laid out as a double array of 32-bit units, and the replacements, each of which
   ends with a byte 0. Of several entries that match at a position, the longest is taken. */

import { codePointLength, fromUtf8, toUtf8, utf8Length } from "./text_unicode.js";
import { SPACE_MARKER } from "./text_vocabulary.js";

/** Prepares texts by the rules of a model. `keepPrefix`: a text and a position → how long the symbol there is that must
    stay as it is (0: none). */
export function textPreparer(rules, keepPrefix) {
  const replaceAt = rules.charsmap === "" ? undefined : charsmapReplacer(fromBase64(rules.charsmap));
  const space = rules.escape_whitespaces ? SPACE_MARKER : " ";
  const [first, last] = !rules.add_dummy_prefix ? ["", ""] : rules.whitespace_as_suffix ? ["", space] : [space, ""];
  const escape = (text) => (rules.escape_whitespaces ? text.replaceAll(" ", SPACE_MARKER) : text);
  if (replaceAt === undefined && !rules.remove_extra_whitespaces) {
    return (text) => (text === "" ? "" : first + escape(text) + last);
  }

  return (text) => {
    const parts = prefixes(text, keepPrefix, replaceAt);
    if (!rules.remove_extra_whitespaces) return text === "" ? "" : first + escape(parts.join("")) + last;
    let [kept, afterSpace] = ["", true];
    const begin = parts.findIndex((part) => part !== " ");
    if (begin === -1) return "";
    for (const part of parts.slice(begin)) {
      const rest = afterSpace ? part.replace(/^ +/, "") : part;
      if (rest === "") continue;
      kept += rest;
      afterSpace = rest.endsWith(" ");
    }
    const prepared = first + escape(kept);
    let end = prepared.length;
    while (prepared[end - 1] === space) end -= 1;
    return prepared.slice(0, end) + last;
  };
}

/** The parts of a text, each replaced as the map says. */
function prefixes(text, keepPrefix, replaceAt) {
  const bytes = toUtf8(text);
  const parts = [];
  for (let [at, byteAt] = [0, 0]; at < text.length; ) {
    const kept = keepPrefix(text, at);
    const match = kept > 0 ? undefined : replaceAt?.(bytes, byteAt);
    let end = at + (kept || (text.codePointAt(at) > 0xffff ? 2 : 1));
    if (match !== undefined) end = unitsAfter(text, at, match.length);
    const part = text.slice(at, end);
    parts.push(match?.replacement ?? part);
    byteAt += match?.length ?? utf8Length(part);
    at = end;
  }
  return parts;
}

/** Where so many UTF-8 bytes of a text end that begin at a position. */
function unitsAfter(text, at, byteCount) {
  while (byteCount > 0) {
    const code = text.codePointAt(at);
    byteCount -= codePointLength(code);
    at += code > 0xffff ? 2 : 1;
  }
  return at;
}

/** A function (bytes, position) → the longest entry of a map there: {length, replacement}, or undefined. */
function charsmapReplacer(data) {
  const view = new DataView(data.buffer);
  const trieSize = view.getUint32(0, true);
  const units = Uint32Array.from({ length: trieSize >> 2 }, (_, i) => view.getUint32(4 + 4 * i, true));
  const replacements = data.subarray(4 + trieSize);
  const offsetOf = (unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);
  const texts = new Map(); // by position among the replacements

  function textAt(position) {
    if (!texts.has(position)) {
      texts.set(position, fromUtf8(replacements.subarray(position, replacements.indexOf(0, position))));
    }
    return texts.get(position);
  }

  return (bytes, start) => {
    let found;
    let node = offsetOf(units[0]);
    for (let i = start; i < bytes.length; i++) {
      node ^= bytes[i];
      const unit = units[node];
      if (unit === undefined || (unit & 0x800000ff) !== bytes[i]) break;
      node ^= offsetOf(unit);
      if ((unit >>> 8) & 1) found = { length: i + 1 - start, position: units[node] & 0x7fffffff };
    }
    return found && { length: found.length, replacement: textAt(found.position) };
  };
}

function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
