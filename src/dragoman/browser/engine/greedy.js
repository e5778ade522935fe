/* Greedy search: the most probable token at each step, until it is </s>. */

import { applyConstraints } from "./constraints.js";
import { BOS_ID } from "./special_ids.js";
import { EOS_ID } from "./text_vocabulary.js";

/**
 * y_t = argmax p(y_t | y_<t, x): a list of one hypothesis.
 * @param {(tokens: number[], parents: number[] | null) => {logP: Float32Array}} step
 * @param {SearchConstraints} constraints
 * @param {(t: number, tokens: number[]) => Promise<void>} onStep  called before each step; it may throw to stop the search
 */
export const searchGreedily = async (step, constraints, onStep) => {
  const hypothesis = { tokens: [], logProbs: [], finishReason: "length" };
  for (let t = 0; t <= constraints.maxLength; t++) {
    await onStep(t, hypothesis.tokens);
    const { logP } = step([t > 0 ? hypothesis.tokens[t - 1] : BOS_ID], null);
    applyConstraints(logP, [hypothesis.tokens], constraints);
    const token = argmax(logP);
    if (logP[token] === -Infinity) hypothesis.finishReason = "no_valid_token";
    if (token === EOS_ID && logP[token] > -Infinity) {
      hypothesis.logProbs.push(logP[token]);
      hypothesis.finishReason = "eos";
    }
    if (t === constraints.maxLength || hypothesis.finishReason !== "length") break; // at its limit it may still end
    hypothesis.tokens.push(token);
    hypothesis.logProbs.push(logP[token]);
  }
  if (hypothesis.tokens.length === constraints.maxLength && hypothesis.finishReason !== "eos") {
    hypothesis.finishReason = "length";
  }
  return [{ ...hypothesis, score: hypothesis.logProbs.reduce((sum, x) => sum + x, 0) }];
};

function argmax(x) {
  let best = 0;
  for (let i = 1; i < x.length; i++) if (x[i] > x[best]) best = i;
  return best;
}
