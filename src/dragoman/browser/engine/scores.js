/* How well each key matches each query: one score e for every pair.

     dot        q·k                   scaled     q·k / √d             general    qᵀ W k
     concat     vᵀ tanh(W [q; k])     additive   vᵀ tanh(W₁ q + W₂ k)
     location   vᵀ tanh(W₁ q + W₂ k_j + U f_j),   f = F * α
     coverage   vᵀ tanh(W₁ q + W₂ k_j + w cov_j), cov = Σ α

   A score is an object:
     keyWidth                                   of prepared keys
     prepareKeys(k, n), prepareQueries(q, n)    what depends on one side alone; valid until the next call
     score(q, qAt, keys, keysAt, stride, count, e, past)   into e[0 … count − 1]; past: a view of the past weights
     updatePastWeights(past, a)                 of a score that uses them, in place; null for the others */

import { Linear, Matrix, dotProduct } from "./tensors.js";

const SCORES = {
  dot: (part, weights, width) => buildDotScore(width, 1),
  scaled_dot: (part, weights, width) => buildDotScore(width, width ** -0.5),
  general: buildGeneralScore,
  concat: buildConcatScore,
  additive: (part, weights) => buildTanhScore(weights, null, null),
  location: buildLocationScore,
  coverage: buildCoverageScore,
};

/** A score for queries of a width. */
export function buildScore(part, weights, queryWidth) {
  return SCORES[part.name](part, weights, queryWidth);
}

function keep(x) {
  return x;
}

function buildDotScore(keyWidth, scale) {
  function score(q, qAt, keys, keysAt, stride, count, e) {
    for (let s = 0, at = keysAt; s < count; s++, at += stride) e[s] = scale * dotProduct(q, qAt, keys, at, keyWidth);
  }
  return { keyWidth, prepareKeys: keep, prepareQueries: keep, score, updatePastWeights: null };
}

function buildGeneralScore(part, weights) {
  const W = weights.linear("W");
  return { ...buildDotScore(W.rows, 1), prepareKeys: (k, n) => W.apply(k, n) };
}

/** vᵀ tanh(q + k + term_s): q and k are prepared; pastTerm(past, count) → (count, D) is what past weights add. */
function buildSumScore(prepareKeys, prepareQueries, v, pastTerm, updatePastWeights) {
  const d = v.length;
  function score(q, qAt, keys, keysAt, stride, count, e, past) {
    const term = pastTerm === null ? null : pastTerm(past, count);
    for (let s = 0, at = keysAt; s < count; s++, at += stride) {
      let sum = 0;
      for (let j = 0; j < d; j++) {
        sum += v[j] * Math.tanh(q[qAt + j] + keys[at + j] + (term === null ? 0 : term[s * d + j]));
      }
      e[s] = sum;
    }
  }
  return { keyWidth: d, prepareKeys, prepareQueries, score, updatePastWeights };
}

function buildTanhScore(weights, pastTerm, updatePastWeights) {
  const [W1, W2, v] = [weights.linear("W1"), weights.linear("W2"), weights.at("v").numbers("weight")];
  return buildSumScore(
    (k, n) => W2.apply(k, n),
    (q, n) => W1.apply(q, n),
    v,
    pastTerm,
    updatePastWeights,
  );
}

/** W [q; k] = W_q q + W_k k with the columns of W, so that no pair is ever formed. */
function buildConcatScore(part, weights, queryWidth) {
  const [W, bias] = [weights.at("W").matrix("weight"), weights.at("W").numbers("bias")];
  const ofQueries = new Linear(sliceColumns(W, 0, queryWidth), null, weights.multiply);
  const ofKeys = new Linear(sliceColumns(W, queryWidth, W.columns), bias, weights.multiply);
  const v = weights.at("v").numbers("weight");
  return buildSumScore(
    (k, n) => ofKeys.apply(k, n),
    (q, n) => ofQueries.apply(q, n),
    v,
    null,
    null,
  );
}

function sliceColumns({ rows, columns, values, scales }, start, end) {
  const sliced = new values.constructor(rows * (end - start));
  for (let row = 0; row < rows; row++) {
    sliced.set(values.subarray(row * columns + start, row * columns + end), row * (end - start));
  }
  return new Matrix(rows, end - start, sliced, scales);
}

function buildLocationScore({ cumulative }, weights) {
  const [filters, , kernel] = weights.at("F").shape("weight"); // (filters, 1, kernel)
  const [F, U] = [weights.at("F").numbers("weight"), weights.linear("U")];
  const reach = (kernel - 1) / 2;
  /** U f with f = F * past, zeros outside of the source: (count, D) */
  function pastTerm(past, count) {
    const f = new Float32Array(count * filters);
    for (let s = 0; s < count; s++) {
      for (let filter = 0; filter < filters; filter++) {
        let sum = 0;
        for (let j = Math.max(reach - s, 0); j < Math.min(kernel, count + reach - s); j++) {
          sum += F[filter * kernel + j] * past[s + j - reach];
        }
        f[s * filters + filter] = sum;
      }
    }
    return U.apply(f, count);
  }
  return buildTanhScore(weights, pastTerm, cumulative ? addWeights : replaceWeights);
}

function buildCoverageScore(part, weights) {
  const w = weights.at("w").numbers("weight"); // (D, 1)
  function pastTerm(past, count) {
    const term = new Float32Array(count * w.length);
    for (let s = 0; s < count; s++) {
      for (let j = 0; j < w.length; j++) term[s * w.length + j] = w[j] * past[s];
    }
    return term;
  }
  return buildTanhScore(weights, pastTerm, addWeights);
}

function addWeights(past, a) {
  for (let s = 0; s < past.length; s++) past[s] += a[s];
}

function replaceWeights(past, a) {
  for (let s = 0; s < past.length; s++) past[s] = a[s];
}
