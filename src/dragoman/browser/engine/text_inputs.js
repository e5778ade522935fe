/* What a model reads of an input: token ids, truncated to what it can read.

     "a text", "a text TAB another" ─encodeInput→ {source, secondSource, isTruncated} ─sourceLabels→ labels

   To a language model an input is the beginning of a text; to a model with two sources it is both, with a tab between. */

import { isBlankText } from "./text_unicode.js";
import { EOS_ID } from "./text_vocabulary.js";

/**
 * The inputs of a model: its codec, and the data that `input_data` of Python wrote.
 * @param {object} codec
 * @param {object} data
 */
export function buildInputs(codec, data) {
  /** The ids of an input, truncated; languages: {sourceLanguage, targetLanguage}. */
  function encodeInput(text, languages) {
    const [first, second] = splitSources(text);
    const ids = data.continues_text ? codec.encodePhrase(first) : codec.encodeSource(first, languages);
    const withoutEnd = data.continues_text || data.has_source_eos ? ids : ids.slice(0, -1);
    const secondIds = second === null || isBlankText(first) ? null : codec.encodeSecondSource(second);
    return {
      fullLength: withoutEnd.length,
      source: truncateIds(withoutEnd, data.max_source_length),
      secondSource: secondIds && truncateIds(secondIds, data.max_second_source_length),
      isTruncated: withoutEnd.length > data.max_source_length || secondIds?.length > data.max_second_source_length,
    };
  }

  /** Both sources of an input; the second is null if there is none. */
  function splitSources(text) {
    if (!codec.hasSecondSource || isBlankText(text)) return [text, null];
    const tab = text.indexOf("\t");
    if (tab === -1 || isBlankText(text.slice(tab + 1))) {
      throw new Error(
        "the model reads two sources, and found one; put both on one line, with a tab between them: the text, then the other text",
      );
    }
    return [text.slice(0, tab), text.slice(tab + 1)];
  }

  /** A label for each encoder state of both sources. */
  function sourceLabels({ source, secondSource }) {
    const tokenizer = data.continues_text ? codec.target : codec.source;
    const first = joinPieces(tokenizer.pieces(source), data.stride);
    return secondSource === null ? first : [...first, ...codec.source.pieces(secondSource)];
  }

  return { encodeInput, sourceLabels };
}

/** The first `maxLength` ids; those that ended with </s> still do. */
function truncateIds(ids, maxLength) {
  if (ids.length <= maxLength) return ids;
  return ids.at(-1) === EOS_ID ? [...ids.slice(0, maxLength - 1), EOS_ID] : ids.slice(0, maxLength);
}

/** Join every `count` pieces, which share one encoder state. */
function joinPieces(pieces, count) {
  const groups = Array.from({ length: Math.ceil(pieces.length / count) }, (_, i) => pieces.slice(i * count, (i + 1) * count));
  return groups.map((group) => group.join(""));
}
