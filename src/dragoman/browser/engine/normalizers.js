/* From attention scores to attention weights: how much a query attends to each key.

     softmax    a_j = exp(e_j) / Σ_i exp(e_i)
     sparsemax  a = [e − τ]₊              entmax15  a = [e/2 − τ]₊²        τ such that Σ_j a_j = 1
     hard       a = one key, argmax e
     local_m    softmax over |s − p| ≤ D with p = t
     local_p    the same with p = S sigmoid(vᵀ tanh(W q)), times exp(−(s − p)² / 2σ²), σ = D/2

   A normalizer changes the scores e[0 … count − 1] of one query into weights, in place. The query is the vector of q at
   qAt and stands at position t; it may attend to all `count` keys. */

import { sigmoid } from "./activations.js";
import { mapInPlace } from "./tensors.js";

const NORMALIZERS = {
  softmax: () => softmaxInPlace,
  sparsemax: () => sparsemaxInPlace,
  entmax15: () => entmaxInPlace,
  hard: () => keepArgmax,
  local_m: ({ window }) => buildLocalMonotonic(window),
  local_p: ({ window }, weights) => buildLocalPredictive(window, weights),
};

/** (e, count, q, qAt, t) → e holds the weights */
export function buildNormalizer(part, weights) {
  return NORMALIZERS[part.name](part, weights);
}

export function softmaxInPlace(e, count) {
  softmaxBetween(e, 0, count);
}

/** softmax over the keys from start to end − 1; the others keep what they have. */
function softmaxBetween(e, start, end) {
  let max = -Infinity;
  for (let s = start; s < end; s++) if (e[s] > max) max = e[s];
  let sum = 0;
  for (let s = start; s < end; s++) sum += e[s] = Math.exp(e[s] - max);
  for (let s = start; s < end; s++) e[s] /= sum;
}

/** The first `count` scores minus their maximum, in place; the same in descending order. */
function sortScores(e, count) {
  let max = -Infinity;
  for (let s = 0; s < count; s++) if (e[s] > max) max = e[s];
  for (let s = 0; s < count; s++) e[s] -= max;
  return Float64Array.from(e.subarray(0, count)).sort().reverse();
}

/** The first k keys get weight: k is the last with 1 + k e_k > Σ_{j≤k} e_j. */
function sparsemaxInPlace(e, count) {
  const descending = sortScores(e, count);
  let [sum, tau] = [0, 0];
  for (let k = 1; k <= count; k++) {
    sum += descending[k - 1];
    if (1 + k * descending[k - 1] > sum) tau = (sum - 1) / k;
  }
  for (let s = 0; s < count; s++) e[s] = Math.max(e[s] - tau, 0);
}

/** Of the first k keys, τ solves Σ_{j≤k} (e_j/2 − τ)² = 1; k is the last whose e_k/2 is not below its τ. */
function entmaxInPlace(e, count) {
  for (let s = 0; s < count; s++) e[s] /= 2;
  const descending = sortScores(e, count);
  let [sum, squares, tau] = [0, 0, 0];
  for (let k = 1; k <= count; k++) {
    const x = Math.max(descending[k - 1], -1); // no weight there
    sum += x;
    squares += x * x;
    const mean = sum / k;
    const next = mean - Math.sqrt(Math.max(1 / k - (squares / k - mean * mean), 0));
    if (next <= x && x > -1) tau = next;
  }
  for (let s = 0; s < count; s++) e[s] = Math.max(e[s] - tau, 0) ** 2;
}

function keepArgmax(e, count) {
  let best = 0;
  for (let s = 1; s < count; s++) if (e[s] > e[best]) best = s;
  for (let s = 0; s < count; s++) e[s] = s === best ? 1 : 0;
}

/** softmax over the keys at most `window` from p, or, where there are none, from the last key. */
function softmaxAround(e, count, p, window) {
  let [start, end] = keysAround(p, window, count);
  if (start >= end) [start, end] = keysAround(count - 1, window, count);
  softmaxBetween(e, start, end);
  e.fill(0, 0, start);
  e.fill(0, end, count);
}

function keysAround(p, window, count) {
  return [Math.max(Math.ceil(p - window), 0), Math.min(Math.floor(p + window) + 1, count)];
}

function buildLocalMonotonic(window) {
  return function localMonotonic(e, count, q, qAt, t) {
    softmaxAround(e, count, t, window);
  };
}

function buildLocalPredictive(window, weights) {
  const [W, v] = [weights.linear("W"), weights.at("v").numbers("weight")];
  return function localPredictive(e, count, q, qAt) {
    const hidden = mapInPlace(W.apply(q.subarray(qAt, qAt + v.length), 1), Math.tanh);
    const p = count * sigmoid(hidden.reduce((sum, x, j) => sum + v[j] * x, 0));
    softmaxAround(e, count, p, window);
    for (let s = 0; s < count; s++) e[s] *= Math.exp(-((s - p) ** 2) / (2 * (window / 2) ** 2));
  };
}
