/* What a search may choose at a step: log p with forbidden tokens at −∞. Nothing is renormalized.

   A processor changes log p of one hypothesis in place: (logP, start, size, history), where logP[start + token] is that
   of a token, and `history` has the tokens so far, without <s>. */

import { BOS_ID, PAD_ID } from "./special_ids.js";
import { EOS_ID, UNK_ID } from "./text_vocabulary.js";

/**
 * @typedef {object} SearchConstraints
 * @property {number} maxLength  tokens without </s>
 * @property {number} minLength
 * @property {Function[]} processors
 */

/** Apply all constraints to log p (k, V) after the histories of k hypotheses, in place. */
export function applyConstraints(logP, histories, { minLength, processors }) {
  const V = logP.length / histories.length;
  histories.forEach((history, i) => {
    const start = i * V;
    logP[start + PAD_ID] = logP[start + BOS_ID] = -Infinity;
    if (history.length < minLength) logP[start + EOS_ID] = -Infinity;
    for (const process of processors) process(logP, start, V, history);
  });
}

/** Forces an output to begin with a prefix; the first `given` tokens of it have probability 1. */
export function forcePrefix(prefix, given) {
  return function processPrefix(logP, start, size, { length }) {
    if (length >= prefix.length) return;
    const kept = length < given ? 0 : logP[start + prefix[length]];
    logP.fill(-Infinity, start, start + size);
    logP[start + prefix[length]] = kept;
  };
}

/** Keeps phrases out of an output: forbids the last token after all the others. */
export function forbidPhrases(phrases) {
  return function processPhrases(logP, start, size, history) {
    for (const phrase of phrases) {
      const before = history.length - (phrase.length - 1);
      if (before < 0 || !phrase.slice(0, -1).every((token, i) => history[before + i] === token)) continue;
      logP[start + phrase.at(-1)] = -Infinity;
    }
  };
}

/** Keeps every n-gram from appearing twice in an output. */
export function forbidRepeatedNgrams(n) {
  return function processNgrams(logP, start, size, history) {
    const recent = history.slice(history.length - n + 1);
    for (let i = 0; i + n <= history.length; i++) {
      if (recent.every((token, j) => history[i + j] === token)) logP[start + history[i + n - 1]] = -Infinity;
    }
  };
}

/** log p · θ for tokens that the output already contains. */
export function penalizeRepetition(penalty) {
  return function processRepetition(logP, start, size, history) {
    for (const token of new Set(history)) logP[start + token] *= penalty;
  };
}

/** Forbids <unk>. */
export function forbidUnk(logP, start) {
  logP[start + UNK_ID] = -Infinity;
}
