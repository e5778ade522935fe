/* Text ↔ ids for both sides of a model: a tokenizer per side (or one for both), normalization, language tags.

     source ids = [<from:xx>] [<to:yy>] tokens </s>          target ids = tokens </s>

   For a model with a pointer, out-of-vocabulary words of a source get numbered copy slots on both sides: the first
   distinct one is <copy:0>, the next <copy:1>; decoding turns a slot into its word again. */

import { LOOKUP_KINDS, buildLookupTokenizer } from "./text_lookup.js";
import { buildSubwordTokenizer } from "./text_subwords.js";
import { codePointPattern, normalizeText, trimSpaces } from "./text_unicode.js";
import { EOS_ID, UNK_ID, UNK_SURFACE } from "./text_vocabulary.js";

const NO_LANGUAGES = { sourceLanguage: undefined, targetLanguage: undefined };

/**
 * A tokenizer: text → ids → text.
 * @typedef {object} Tokenizer
 * @property {string} kind
 * @property {object} vocabulary
 * @property {(text: string) => number[]} encode
 * @property {(ids: Iterable<number>) => string} decode
 * @property {(ids: Iterable<number>) => string[]} pieces  the token of each id, for display
 * @property {(text: string) => string[]} unknownWords  the tokens of a text that become <unk>, as the text spells them
 */

/**
 * The codec of a model from the data that `codec_data` of Python wrote.
 * @param {object} data
 */
export function buildCodec(data) {
  const unassigned = codePointPattern(data.unassigned ?? []);
  const source = buildTokenizer(data.source, unassigned);
  const target = data.target === null ? source : buildTokenizer(data.target, unassigned);
  const normalize = (text) => normalizeText(text, data.normalization, unassigned);
  const copySlotIds = data.target === null ? findCopySlots(target.vocabulary) : [];

  /** The distinct out-of-vocabulary words of a source, in order; [] for a model without copy slots. */
  function oovWords(text) {
    if (copySlotIds.length === 0 || text === "") return [];
    return [...new Set(source.unknownWords(normalize(text)))];
  }

  /** Replace <unk> by the copy slot of its word, if the word is one of the source's. */
  function replaceOov(ids, text, tokenizer, words) {
    if (words.length === 0 || !ids.includes(UNK_ID)) return ids;
    const slots = new Map(pairUp(words, copySlotIds));
    const unknown = tokenizer.unknownWords(text).values();
    return ids.map((id) => (id === UNK_ID ? (slots.get(unknown.next().value ?? "") ?? UNK_ID) : id));
  }

  /** The ids of a source in its template; languages: {sourceLanguage, targetLanguage}. */
  function encodeSource(text, languages = NO_LANGUAGES) {
    const normalized = normalize(text);
    const ids = replaceOov(source.encode(normalized), normalized, source, oovWords(text));
    const { prefix, suffix } = data.source_template;
    return [...symbolIds(source, prefix, languages), ...ids, ...symbolIds(source, suffix, languages)];
  }

  /** The ids of a second source, which is a text too, with </s>. */
  function encodeSecondSource(text) {
    return [...source.encode(normalize(text)), EOS_ID];
  }

  /** The ids of a target in its template; out-of-vocabulary words of its source become copy slots. */
  function encodeTarget(text, sourceText = "", languages = NO_LANGUAGES) {
    const suffix = symbolIds(target, data.target_template.suffix, languages);
    return [...targetPrefix(languages), ...encodePhrase(text, sourceText), ...suffix];
  }

  /** The ids before the target's tokens, which are given: a search begins with them. */
  function targetPrefix(languages = NO_LANGUAGES) {
    return symbolIds(target, data.target_template.prefix, languages);
  }

  /** The ids of a target or a part of it, alone. */
  function encodePhrase(text, sourceText = "") {
    const normalized = normalize(text);
    return replaceOov(target.encode(normalized), normalized, target, oovWords(sourceText));
  }

  /** Target ids → text; copy slots become words of the source, each <unk> the next of `unknown` that is not "". */
  function decodeTarget(ids, sourceText = "", unknown = []) {
    const shown = Array.from(ids).filter((id) => id >= UNK_ID);
    const slotWords = new Map(pairUp(copySlotIds, oovWords(sourceText)));
    if (unknown.length === 0 && !shown.some((id) => slotWords.has(id))) return target.decode(shown);
    const texts = target.decode(shown.map((id) => (slotWords.has(id) ? UNK_ID : id))).split(UNK_SURFACE);
    const replacements = unknown[Symbol.iterator]();
    const words = shown
      .filter((id) => slotWords.has(id) || id === UNK_ID)
      .map((id) => slotWords.get(id) || replacements.next().value || UNK_SURFACE);
    // The text may contain the character ⁇ itself.
    return texts.map((text, i) => text + (i + 1 < texts.length ? (words[i] ?? UNK_SURFACE) : "")).join("");
  }

  /** The text of each source id; an unknown word as the source spells it, "" for tags and </s>. */
  function sourceWords(ids, text) {
    const unknown = source.unknownWords(normalize(text)).values();
    const unknownIds = new Set([UNK_ID, ...copySlotIds]);
    return Array.from(ids, (id) => (unknownIds.has(id) ? (unknown.next().value ?? "") : trimSpaces(source.decode([id]))));
  }

  /** The languages that the model distinguishes for a role, "from" or "to"; [] for others. */
  function languages(role) {
    const ofSource = templateLanguages(data.source_template, role, source.vocabulary.allSymbols);
    return ofSource.length > 0 ? ofSource : templateLanguages(data.target_template, role, target.vocabulary.allSymbols);
  }

  return {
    source,
    target,
    isJoint: source === target,
    hasSecondSource: data.second_source !== null,
    sourceLanguages: languages("from"),
    targetLanguages: languages("to"),
    normalize,
    encodeSource,
    encodeSecondSource,
    encodeTarget,
    targetPrefix,
    encodePhrase,
    decodeTarget,
    sourceWords,
  };
}

function buildTokenizer(data, unassigned) {
  return LOOKUP_KINDS.includes(data.kind) ? buildLookupTokenizer(data, unassigned) : buildSubwordTokenizer(data);
}

/** The ids of the copy slots <copy:0>, <copy:1>, …, in order. */
function findCopySlots({ names, symbolCount }) {
  return names.slice(0, symbolCount).flatMap((name, id) => (name.startsWith("<copy:") ? [id] : []));
}

/** Pairs of the elements at the same positions, as many as the shorter list has. */
function pairUp(left, right) {
  return left.slice(0, right.length).map((element, i) => [element, right[i]]);
}

// -- templates: the symbols around the tokens of a text -----------------------------------------------------------------

/** The ids of a template's symbols: {from} and {to} are languages; one with "?" is left out where its own is unknown. */
function symbolIds(tokenizer, items, { sourceLanguage, targetLanguage }) {
  const languages = [
    ["{from}", sourceLanguage, "source"],
    ["{to}", targetLanguage, "target"],
  ];
  const ids = [];
  for (const item of items) {
    const missing = languages.find(([role, language]) => item.includes(role) && !language);
    if (missing && item.endsWith("?")) continue;
    if (missing) throw new Error(`the model needs the ${missing[2]} language of every text; give ${missing[2]}_lang`);
    let symbol = item.replace(/\?$/, "");
    for (const [role, language] of languages) symbol = symbol.replaceAll(role, () => language ?? "");
    const id = tokenizer.vocabulary.symbolId(symbol);
    if (id === undefined) {
      throw new Error(`the language tag ${symbol} was not in the training data, so the model cannot know it`);
    }
    ids.push(id);
  }
  return ids;
}

/** The languages among a vocabulary's symbols for a role, "from" or "to"; [] if the template has no such. */
function templateLanguages({ prefix, suffix }, role, symbols) {
  const item = [...prefix, ...suffix].find((symbol) => symbol.includes(`{${role}}`));
  if (item === undefined) return [];
  const [before, after] = splitOnce(item.replace(/\?$/, ""), `{${role}}`);
  const fits = (symbol) => symbol.startsWith(before) && symbol.endsWith(after);
  return symbols
    .filter((symbol) => fits(symbol) && symbol.length > before.length + after.length)
    .map((symbol) => symbol.slice(before.length, symbol.length - after.length))
    .filter((language) => !language.includes("\n"));
}

function splitOnce(text, separator) {
  const at = text.indexOf(separator);
  return [text.slice(0, at), text.slice(at + separator.length)];
}
