/* Heads on an encoder: one label for the whole source, or one for each of its positions.

     classifier   p(y | x) = softmax(W f(pool(h_1 … h_S)))
     tagger       p(y_j | x) = softmax(W f(h_j))

   A head has hidden(memory) → {o (n, D), n, attention}, and predict(log p (n, V), n, count) → hypotheses, best first.
   Special tokens are no labels. */

import { gelu } from "./activations.js";
import { buildNorm } from "./norms.js";
import { softmaxInPlace } from "./normalizers.js";
import { dotProduct, mapInPlace, meanOfRows } from "./tensors.js";
import { SPECIAL_SYMBOLS } from "./text_vocabulary.js";
import { topTokens } from "./top_tokens.js";

const HEADS = { classifier: buildClassifier, tagger: buildTagger };

export function buildHead(part, weights) {
  return HEADS[part.name](part, weights);
}

function buildClassifier(part, weights) {
  const W = part.hidden ? weights.linear("W") : null;
  const query = part.pool === "attention" ? weights.numbers("query") : null;

  /** One vector for the source, and the weights (S) of attention pooling. */
  function poolStates({ states, count, width, summary }) {
    if (part.pool === "first") return { pooled: states.slice(0, width), attention: null };
    if (part.pool === "mean") return { pooled: meanOfRows(states, count, width), attention: null };
    if (query === null) return { pooled: summary, attention: null };
    const a = Float64Array.from({ length: count }, (_, s) => dotProduct(query, 0, states, s * width, width) * width ** -0.5);
    softmaxInPlace(a, count);
    const pooled = new Float32Array(width);
    for (let s = 0; s < count; s++) for (let j = 0; j < width; j++) pooled[j] += a[s] * states[s * width + j];
    return { pooled, attention: Float32Array.from(a) };
  }

  function hidden(memory) {
    const { pooled, attention } = poolStates(memory);
    return { o: W === null ? pooled : mapInPlace(W.apply(pooled, 1), Math.tanh), n: 1, attention };
  }

  function predict(logP, n, count) {
    const { tokens, values } = topTokens(withoutSpecials(logP), 0, logP.length, count);
    return tokens
      .filter((_, i) => values[i] > -Infinity)
      .map((token, i) => ({ tokens: [token], logProbs: [values[i]], score: values[i], finishReason: "eos" }));
  }

  return { hidden, predict };
}

function buildTagger(part, weights) {
  const transform = part.hidden ? weights.at("transform") : null;
  const [W, norm] = part.hidden
    ? [transform.linear("0"), buildNorm({ name: "layer", eps: 1e-5 }, transform.at("2"))]
    : [null, null];

  function hidden({ states, count }) {
    return { o: W === null ? states : norm(mapInPlace(W.apply(states, count), gelu), count), n: count, attention: null };
  }

  /** The best label at each position but the last, which is </s>. */
  function predict(logP, n) {
    const V = logP.length / n;
    const best = Array.from({ length: n - 1 }, (_, i) => topTokens(withoutSpecials(logP.subarray(i * V, (i + 1) * V)), 0, V, 1));
    const [tokens, logProbs] = [best.map((one) => one.tokens[0]), best.map((one) => one.values[0])];
    return [{ tokens, logProbs, score: logProbs.reduce((sum, x) => sum + x, 0), finishReason: "eos" }];
  }

  return { hidden, predict };
}

function withoutSpecials(logP) {
  return logP.fill(-Infinity, 0, SPECIAL_SYMBOLS.length);
}
