/* Beam search: keep the k most probable hypotheses at each step; rank the finished ones by a length rule.

   At each step:
     1. extend every active hypothesis by its k + 1 best tokens (at most one of them is </s>)
     2. rank all extensions by log p of the whole hypothesis
     3. those among the first k that chose </s> are finished: the best of the finished ones are kept, by score
     4. the best k others stay active
     5. the search is done at the maximum length, where active hypotheses fill the free slots among the finished ones,
        truncated; or earlier, by `earlyStopping`:

        true    round(patience · k) have finished, one for k = 1; of these the best k are the results
        false   k have finished, and no active hypothesis currently beats the worst of them
        never   k have finished, and no active hypothesis can still beat the worst of them

   With `finishedPolicy: shrink` every finished hypothesis narrows the beam by one, until none is active.

     score = length rule(log p, n) + β Σ_j log min(Σ_t a_tj, 1)          β: `coveragePenalty` */

import { applyConstraints } from "./constraints.js";
import { logCoverage } from "./length_rules.js";
import { BOS_ID } from "./special_ids.js";
import { EOS_ID } from "./text_vocabulary.js";
import { topTokens } from "./top_tokens.js";

const EMPTY_HYPOTHESIS = { tokens: [], logProbs: [], total: 0, score: 0, coverage: null, node: 0 };

/**
 * @typedef {object} BeamOptions
 * @property {number} beam  k
 * @property {(logP: number, n: number) => number} lengthRule
 * @property {boolean | "never"} earlyStopping
 * @property {number} patience  of `earlyStopping: true`
 * @property {"collect" | "shrink"} finishedPolicy
 * @property {number} coveragePenalty
 */

/**
 * The n-best list, best first; with `trace`, a list, what was kept and dropped at each step is appended to it.
 * @param {(tokens: number[], parents: number[] | null) => {logP: Float32Array, attention: Float32Array | null}} step
 *   the last token of each active hypothesis, and which of those before it continues → log p (k, V), attention (k, S)
 * @param {BeamOptions} options
 * @param {SearchConstraints} constraints
 * @param {(t: number, tokens: number[]) => Promise<void>} onStep  called before each step; it may throw to stop the search
 */
export const searchBeam = async (step, options, constraints, onStep, trace = null) => {
  let [active, finished, parents] = [[EMPTY_HYPOTHESIS], [], null];
  for (let t = 0; t <= constraints.maxLength; t++) {
    await onStep(t, active[0].tokens);
    const { logP, attention } = step(
      active.map(({ tokens }) => (t > 0 ? tokens[t - 1] : BOS_ID)),
      parents,
    );
    if (options.coveragePenalty > 0) active = addCoverage(active, attention);
    applyConstraints(
      logP,
      active.map(({ tokens }) => tokens),
      constraints,
    );
    const advanced = advanceBeam(logP, active, finished, t, options, constraints, trace);
    ({ active, finished, parents } = advanced);
    if (t === constraints.maxLength || isDone(active, finished, t, options, constraints)) break;
  }
  return finished.slice(0, options.beam).map(({ tokens, logProbs, score, hasEos }) => ({
    tokens,
    logProbs,
    score,
    finishReason: hasEos ? "eos" : "length",
  }));
};

function advanceBeam(logP, active, finished, t, options, { maxLength }, trace) {
  const k = options.beam;
  const extended = extendHypotheses(logP, active, t, options);
  const slots = options.finishedPolicy === "shrink" ? k - finished.length : k;
  const newlyFinished = extended.filter(({ hasEos }, i) => hasEos && i < slots);
  let kept = bestByScore([...finished, ...newlyFinished]).slice(0, maxFinished(options));
  if (t === maxLength) kept = addTruncated(kept, active, newlyFinished);
  const mayStay = ({ hasEos }, i) => !hasEos && (options.finishedPolicy === "collect" || i < slots);
  const stay = extended.filter(mayStay).slice(0, k);
  trace?.push(...describeStep(extended, newlyFinished, kept, stay, t, slots, t === maxLength, maxFinished(options)));
  return { active: stay, finished: kept, parents: stay.map(({ parent }) => parent) };
}

/** How many finished hypotheses are kept until the end; that many stop the search where `earlyStopping` is true. */
function maxFinished({ beam, patience, earlyStopping }) {
  return earlyStopping === true && beam > 1 ? roundHalfToEven(patience * beam) : beam;
}

function roundHalfToEven(x) {
  const rounded = Math.round(x);
  return rounded - x === 0.5 && rounded % 2 === 1 ? rounded - 1 : rounded;
}

/** The 2k best extensions in order. */
function extendHypotheses(logP, active, t, { beam: k, lengthRule, coveragePenalty }) {
  const V = logP.length / active.length;
  const candidates = active.flatMap((hypothesis, parent) => {
    const { tokens, values } = topTokens(logP, parent * V, V, k + 1);
    return tokens
      .map((token, i) => ({ parent, token, logProb: values[i], total: hypothesis.total + values[i] }))
      .filter(({ total }) => total > -Infinity);
  });
  candidates.sort((one, other) => other.total - one.total); // stable: of equal ones the first
  return candidates.slice(0, 2 * k).map(({ parent, token, logProb, total }, i) => {
    const { tokens, logProbs, coverage, node: parentNode } = active[parent];
    const hasEos = token === EOS_ID;
    const covered = coveragePenalty > 0 ? coveragePenalty * logCoverage(coverage) : 0;
    return {
      parent,
      parentNode,
      token,
      logProb,
      tokens: hasEos ? tokens : [...tokens, token],
      logProbs: [...logProbs, logProb],
      total,
      score: lengthRule(total, t + 1) + covered,
      coverage,
      hasEos,
      node: 1 + 2 * k * t + i,
    };
  });
}

function bestByScore(hypotheses) {
  return hypotheses.sort((one, other) => other.score - one.score);
}

/** Append active hypotheses at the maximum length that did not just finish: they fill what is free of the k results. */
function addTruncated(finished, active, newlyFinished) {
  const justFinished = new Set(newlyFinished.map(({ parent }) => parent));
  const truncated = active.filter((_, i) => !justFinished.has(i)).map((one) => ({ ...one, hasEos: false }));
  return [...finished, ...bestByScore(truncated)];
}

function addCoverage(active, attention) {
  if (attention === null) throw new Error("coverage_penalty needs a decoder that attends to the source; leave it at 0");
  const S = attention.length / active.length;
  return active.map((hypothesis, i) => {
    const coverage = Float64Array.from(attention.subarray(i * S, (i + 1) * S));
    hypothesis.coverage?.forEach((total, j) => {
      coverage[j] += total;
    });
    return { ...hypothesis, coverage };
  });
}

/** Whether no step can change the result, or `earlyStopping` says so. */
function isDone(active, finished, t, options, { maxLength }) {
  const { lengthRule, earlyStopping, finishedPolicy } = options;
  if (active.length === 0) return true;
  if (finishedPolicy === "shrink" || finished.length < maxFinished(options)) return false;
  if (earlyStopping === true) return true;
  const best = active[0].total; // what coverage adds is at most 0
  const reachable =
    earlyStopping === "never"
      ? Math.max(lengthRule(best, t + 2), lengthRule(best, maxLength + 1))
      : lengthRule(best, t + 1);
  return !(reachable > finished.at(-1).score);
}

/** The extensions of a step as plain data, each with its fate and the reason; the parent of the first is node 0. */
function describeStep(extended, newlyFinished, finished, stay, t, slots, isOver, maxKept) {
  const [ended, best, kept] = [new Set(newlyFinished), new Set(finished), new Set(stay)];
  return extended.map((one) => {
    let [fate, reason] = ["dropped", `not among the best ${slots}`];
    if (ended.has(one)) [fate, reason] = ["finished", best.has(one) ? "" : `${maxKept} that finished score higher`];
    else if (one.hasEos) reason = `</s>, but not among the best ${slots}`;
    else if (isOver) reason = "the maximum length was reached";
    else if (kept.has(one)) [fate, reason] = ["kept", ""];
    const { node: id, parentNode: parent, token, logProb: log_prob, total, score } = one;
    return { step: t, id, parent, token, log_prob, total, score, fate, reason };
  });
}
