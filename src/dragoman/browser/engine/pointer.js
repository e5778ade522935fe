/* Pointer-generator: generate a word of the vocabulary, or copy a word of the source.

     a = softmax(score(o_t, h))     c = Σ_j a_j h_j     g = σ(w [o_t; c; y_{t-1}])

     p(w) = g softmax(logits)_w + (1 − g) Σ_{j: x_j = w} a_j */

import { sigmoid } from "./activations.js";
import { Attention } from "./attention.js";
import { FloatBuffer, concatenateRows } from "./tensors.js";

const SMALLEST = 2 ** -126; // of float32: log p is never −∞

/** `d` is the width of o, `width` that of the embedded tokens y. */
export function buildPointer(score, weights, d, width) {
  const attention = new Attention(score, { name: "softmax" }, weights.at("attention"), d);
  const [gate, inputs] = [weights.linear("gate"), new FloatBuffer()];

  function prepareSource(memory) {
    return { ...attention.prepareSource({ ...memory, values: null }), ids: memory.ids };
  }

  /** log p (k, V) of the vocabulary becomes that with copied words, in place; returns the weights a (k, S). */
  function addCopies(logP, o, y, k, source) {
    const { c, a } = attention.attend(o, k, source, 0);
    const g = gate.apply(concatenateRows([[o, d], [c, source.width], [y, width]], k, inputs), k);
    const V = logP.length / k;
    for (let i = 0; i < k; i++) {
      const generate = sigmoid(g[i]);
      for (let w = i * V; w < (i + 1) * V; w++) logP[w] = generate * Math.exp(logP[w]);
      source.ids.forEach((id, j) => {
        logP[i * V + id] += (1 - generate) * a[i * source.count + j];
      });
      for (let w = i * V; w < (i + 1) * V; w++) logP[w] = Math.log(Math.max(logP[w], SMALLEST));
    }
    return a;
  }

  return { prepareSource, addCopies };
}
