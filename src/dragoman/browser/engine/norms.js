/* Norms of vectors; a norm's result is valid until its next call.

     layer   a (x − μ) / √(σ² + ε) + b        μ and σ² over the width of each vector
     batch   the same                         μ and σ² of each feature, averages from training
     rms     a x / √(mean x² + ε)             over the width of each vector */

import { FloatBuffer } from "./tensors.js";

const NORMS = { layer: buildLayerNorm, batch: buildBatchNorm, rms: buildRMSNorm };

/** x (n, D) → the same normalized */
export function buildNorm({ name, eps }, weights) {
  return NORMS[name](weights, eps);
}

function buildLayerNorm(weights, eps) {
  const [a, b, out] = [weights.numbers("weight"), weights.numbers("bias"), new FloatBuffer()];
  const d = a.length;
  return function layerNorm(x, n) {
    const y = out.take(n * d);
    for (let at = 0; at < n * d; at += d) {
      let sum = 0;
      for (let j = 0; j < d; j++) sum += x[at + j];
      const mean = sum / d;
      let squares = 0;
      for (let j = 0; j < d; j++) squares += (x[at + j] - mean) ** 2;
      const scale = 1 / Math.sqrt(squares / d + eps);
      for (let j = 0; j < d; j++) y[at + j] = (x[at + j] - mean) * scale * a[j] + b[j];
    }
    return y;
  };
}

function buildRMSNorm(weights, eps) {
  const [a, out] = [weights.numbers("weight"), new FloatBuffer()];
  const d = a.length;
  return function rmsNorm(x, n) {
    const y = out.take(n * d);
    for (let at = 0; at < n * d; at += d) {
      let squares = 0;
      for (let j = 0; j < d; j++) squares += x[at + j] * x[at + j];
      const scale = 1 / Math.sqrt(squares / d + eps);
      for (let j = 0; j < d; j++) y[at + j] = x[at + j] * scale * a[j];
    }
    return y;
  };
}

function buildBatchNorm(weights, eps) {
  const [a, b] = [weights.numbers("weight"), weights.numbers("bias")];
  const [mean, variance] = [weights.numbers("running_mean"), weights.numbers("running_var")];
  const scale = a.map((value, j) => value / Math.sqrt(variance[j] + eps));
  const [d, out] = [a.length, new FloatBuffer()];
  return function batchNorm(x, n) {
    const y = out.take(n * d);
    for (let at = 0; at < n * d; at += d) {
      for (let j = 0; j < d; j++) y[at + j] = (x[at + j] - mean[j]) * scale[j] + b[j];
    }
    return y;
  };
}
