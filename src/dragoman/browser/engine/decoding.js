/* A model and a search together: source ids → hypotheses, and what happens inside for the views. */

import { searchBeam } from "./beam.js";
import { beamOptions } from "./generation.js";
import { searchGreedily } from "./greedy.js";
import { reorderHypotheses } from "./hypotheses.js";
import { BOS_ID } from "./special_ids.js";

const NO_RECORD = () => {};

/** The n-best list of source ids; `trace`, a list, gets what a beam kept and dropped. */
export const decodeIds = async (model, ids, options, constraints, onStep, trace = null) => {
  const needsAttention = options.search === "beam" && options.coverage_penalty > 0;
  const state = model.start(ids);
  let count = 1;
  function step(tokens, parents) {
    if (parents !== null) reorderHypotheses(state, parents, count);
    count = tokens.length;
    return model.step(tokens, state, needsAttention ? NO_RECORD : null);
  }
  if (options.search === "greedy") return searchGreedily(step, constraints, onStep);
  return searchBeam(step, beamOptions(options), constraints, onStep, trace);
};

/**
 * The attention of a teacher-forced pass over target ids, which end with </s>: log p of each target token, the
 * alignment (rows of weights, or null), and the weights of every head as {kind, layer, heads: rows[]}.
 */
export const recordAttention = async (model, ids, target, onStep) => {
  const layers = new Map();
  function record(kind, layer, row, head, a, count) {
    const name = `${kind}.${layer}`;
    if (!layers.has(name)) layers.set(name, { kind, layer, heads: [] });
    const { heads } = layers.get(name);
    while (heads.length <= head) heads.push([]);
    heads[head].push(Array.from(a.subarray(0, count)));
  }
  const state = model.start(ids, record);
  const [logProbs, alignment] = [[], []];
  for (let t = 0; t < target.length; t++) {
    await onStep(t, target);
    const { logP, attention } = model.step([t > 0 ? target[t - 1] : BOS_ID], state, record);
    logProbs.push(logP[target[t]]);
    if (attention !== null) alignment.push(Array.from(attention));
  }
  return { logProbs, alignment: alignment.length > 0 ? alignment : null, layers: [...layers.values()] };
};
