/* Options of generation, as in Python: those of the model's config, overridden by those of a call. */

import { forbidPhrases, forbidRepeatedNgrams, forbidUnk, forcePrefix, penalizeRepetition } from "./constraints.js";
import { buildLengthRule } from "./length_rules.js";
import { UNK_ID } from "./text_vocabulary.js";

const SEARCHES = ["beam", "greedy"];
const BEAM_OPTIONS = ["length_rule", "length_penalty", "early_stopping", "patience", "finished_policy", "coverage_penalty"];
const MAX_BEAM = 100; // more would take all memory of a page

const isCount = (value) => Number.isInteger(value) && value >= 1;
const isNatural = (value) => Number.isInteger(value) && value >= 0;
const isAmount = (value) => Number.isFinite(value) && value >= 0;
const isText = (value) => typeof value === "string";

// What each option may be; an option of the config that is not here is none of a call.
const OPTION_CHECKS = {
  search: [(value) => SEARCHES.includes(value), SEARCHES.join(" or ")],
  beam: [(value) => isCount(value) && value <= MAX_BEAM, `a whole number from 1 to ${MAX_BEAM}`],
  nbest: [isCount, "a whole number, at least 1"],
  length_rule: [(value) => isText(value) || isText(value?.name), "none, mean, power or gnmt"],
  length_penalty: [(value) => value === null || Number.isFinite(value), "a number"],
  early_stopping: [(value) => [true, false, "never"].includes(value), "true, false or never"],
  patience: [(value) => Number.isFinite(value) && value >= 1 && value <= 4, "a number from 1 to 4"],
  finished_policy: [(value) => ["collect", "shrink"].includes(value), "collect or shrink"],
  coverage_penalty: [isAmount, "a number, at least 0"],
  max_new_tokens: [(value) => value === null || isCount(value), "a whole number, at least 1"],
  max_length_ratio: [isAmount, "a number, at least 0"],
  max_length_extra: [isNatural, "a whole number, at least 0"],
  min_new_tokens: [isNatural, "a whole number, at least 0"],
  min_length_ratio: [isAmount, "a number, at least 0"],
  prefix: [isText, "a text"],
  forbid_phrases: [(value) => Array.isArray(value) && value.every((one) => isText(one) && one !== ""), "a list of texts"],
  no_repeat_ngram_size: [isNatural, "a whole number, at least 0"],
  repetition_penalty: [(value) => Number.isFinite(value) && value >= 1, "a number, at least 1"],
  allow_unk: [(value) => typeof value === "boolean", "true or false"],
};

/** The options of a model, overridden by those of a call; beam: 1 alone asks for greedy search. */
export function resolveOptions(own, overrides = {}) {
  for (const [name, value] of Object.entries(overrides)) {
    if (!(name in OPTION_CHECKS)) {
      throw new Error(`no option called '${name}' (there is ${Object.keys(OPTION_CHECKS).join(", ")})`);
    }
    const [isValid, allowed] = OPTION_CHECKS[name];
    if (!isValid(value)) throw new Error(`${name} is ${JSON.stringify(value)}; it must be ${allowed}`);
  }
  const options = { ...own, ...overrides };
  if ("length_rule" in overrides && !("length_penalty" in overrides)) options.length_penalty = null;
  if ("beam" in overrides && !("search" in overrides)) {
    options.search = overrides.beam === 1 && options.nbest === 1 ? "greedy" : "beam";
  }
  if ("patience" in overrides && (overrides.early_stopping ?? true) !== true) {
    throw new Error(`patience is ${overrides.patience}; it needs early_stopping: true`);
  }
  const unused = BEAM_OPTIONS.find((name) => name in overrides && options.search === "greedy");
  if (unused) throw new Error(`${unused} is not an option of the search 'greedy': set search to beam`);
  return options;
}

/** The size of the n-best list of which `nbest` are returned. */
export function countHypotheses({ search, beam }) {
  return search === "greedy" ? 1 : beam;
}

/** The options of `searchBeam`. */
export function beamOptions(options) {
  return {
    beam: options.beam,
    lengthRule: buildLengthRule(options.length_rule, options.length_penalty),
    earlyStopping: options.early_stopping,
    patience: options.patience,
    finishedPolicy: options.finished_policy,
    coveragePenalty: options.coverage_penalty,
  };
}

/**
 * The constraints of one source: its length in tokens, the ids that its target begins with, and the model's limit.
 *
 *   maxLength = max_new_tokens, or max(⌊max_length_ratio · S⌋ + max_length_extra, length of the given tokens)
 *   minLength = max(min_new_tokens, ⌊min_length_ratio · S⌋)
 *
 * @param {object} request  {sourceLength, targetPrefix: ids, encodePhrase: text → ids, maxPositions: number | null}
 * @returns {SearchConstraints}
 */
export function buildConstraints(options, { sourceLength, targetPrefix, encodePhrase, maxPositions }) {
  const prefix = options.prefix === "" ? [] : encodeKnown(options.prefix, encodePhrase);
  const given = targetPrefix.length;
  let minLength = Math.max(Math.floor(options.min_length_ratio * sourceLength), options.min_new_tokens);
  let maxLength = Math.floor(options.max_length_ratio * sourceLength) + options.max_length_extra;
  maxLength = Math.max(maxLength, given + prefix.length);
  if (options.max_new_tokens !== null) maxLength = options.max_new_tokens;
  maxLength = Math.max(maxLength, minLength, 1);
  if (maxPositions !== null) maxLength = Math.max(Math.min(maxLength, maxPositions - 1), 1);
  minLength = Math.min(minLength, maxLength);
  const processors = [];
  if (given + prefix.length > 0) processors.push(forcePrefix([...targetPrefix, ...prefix], given));
  const phrases = options.forbid_phrases
    .map((text) => encodePhrase(text))
    .filter((ids) => ids.length > 0 && !ids.includes(UNK_ID)); // what the vocabulary lacks cannot be generated
  if (phrases.length > 0) processors.push(forbidPhrases(phrases));
  if (options.no_repeat_ngram_size > 0) processors.push(forbidRepeatedNgrams(options.no_repeat_ngram_size));
  if (options.repetition_penalty !== 1) processors.push(penalizeRepetition(options.repetition_penalty));
  if (!options.allow_unk) processors.push(forbidUnk);
  return { maxLength, minLength, processors };
}

function encodeKnown(text, encodePhrase) {
  const ids = encodePhrase(text);
  if (ids.includes(UNK_ID)) throw new Error(`'${text}' is not covered by the model's vocabulary, so no output can contain it`);
  return ids;
}
