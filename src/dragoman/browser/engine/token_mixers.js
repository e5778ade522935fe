/* Token mixers: the first sub-layer of a Transformer block, which passes information between positions.

     attention        W_O [head_1; …; head_H], each head a softmax over the allowed positions
     parameter_free   y_i = Σ_j softmax_j(x_i·x_j) x_j
     average          g_t = FFN(1/t Σ_{j≤t} x_j)   i, f = σ(W [x_t; g_t])   y_t = i ⊙ x_t + f ⊙ g_t
     ssru             f_t = σ(W_f x_t + b)   c_t = f_t ⊙ c_{t-1} + (1 − f_t) ⊙ W x_t   y_t = ReLU(c_t)

   A mixer is an object:
     forward(x, n, isCausal, position, record)    all positions of one sequence at once: (n, D) → (n, D)
     start(x, n, position)                        the state after a prefix x (n, D); n may be 0
     step(x, k, state, t, position, record)       position t of k hypotheses: (k, D) → (k, D), changes the state */

import { buildFeedForward, relu, sigmoid } from "./activations.js";
import { MultiHeadAttention } from "./attention.js";
import { HypothesisCache, HypothesisRows } from "./hypotheses.js";
import { softmaxInPlace } from "./normalizers.js";
import { FloatBuffer, addInPlace, concatenateRows, dotProduct } from "./tensors.js";

const MIXERS = {
  attention: buildSelfAttention,
  parameter_free: buildParameterFree,
  average: buildAverageAttention,
  ssru: buildSSRU,
};

/** `config`: the options of the encoder or decoder that the block is in. */
export function buildMixer(weights, d, config) {
  return MIXERS[config.mixer.name](weights, d, config);
}

function buildSelfAttention(weights, d, config) {
  const attention = new MultiHeadAttention(weights, config);
  return {
    forward(x, n, isCausal, position, record) {
      const queries = attention.projectQueries(x, n, position, 0, 1);
      const keys = attention.projectKeys(x, n, position, 0, 1);
      const values = attention.Wv.apply(x, n);
      const c = attention.emptyContext(n);
      for (let i = 0; i < n; i++) {
        attention.attendRow(queries, i, keys, values, isCausal ? i + 1 : n, i, position, c, record);
      }
      return attention.mergeHeads(c, n);
    },
    start(x, n, position) {
      const keys = new HypothesisCache(attention.keyRowWidth, attention.projectKeys(x, n, position, 0, 1));
      return { keys, values: new HypothesisCache(attention.valueRowWidth, attention.Wv.apply(x, n)) };
    },
    step(x, k, { keys, values }, t, position, record) {
      keys.append(attention.projectKeys(x, k, position, t));
      values.append(attention.Wv.apply(x, k));
      const queries = attention.projectQueries(x, k, position, t);
      const c = attention.emptyContext(k);
      for (let i = 0; i < k; i++) {
        attention.attendRow(queries, i, keys.rows[i], values.rows[i], keys.length, t, position, c, record);
      }
      return attention.mergeHeads(c, k);
    },
  };
}

function buildParameterFree(weights, d, config) {
  const attend = parameterFreeAttention(d, config.mixer.scale ? d ** -0.5 : 1);
  const out = new FloatBuffer();
  return {
    forward(x, n, isCausal, position, record) {
      const y = out.take(n * d).fill(0);
      for (let i = 0; i < n; i++) attend(x, i, x, isCausal ? i + 1 : n, y, record);
      return y;
    },
    start(x, n) {
      return new HypothesisCache(d, x);
    },
    step(x, k, past, t, position, record) {
      past.append(x);
      const y = out.take(k * d).fill(0);
      for (let i = 0; i < k; i++) attend(x, i, past.rows[i], past.length, y, record);
      return y;
    },
  };
}

/** y_i ← y_i + Σ_j softmax_j(scale · x_i·x_j) x_j over the first `count` vectors of `past`. */
export function parameterFreeAttention(d, scale) {
  let e = new Float64Array(64);
  return function attend(x, i, past, count, y, record) {
    if (e.length < count) e = new Float64Array(2 * count);
    for (let s = 0; s < count; s++) e[s] = scale * dotProduct(x, i * d, past, s * d, d);
    softmaxInPlace(e, count);
    record?.(i, 0, e, count);
    for (let s = 0; s < count; s++) {
      for (let j = 0; j < d; j++) y[i * d + j] += e[s] * past[s * d + j];
    }
  };
}

function buildAverageAttention(weights, d, config) {
  const feedForward = config.mixer.feedforward ? buildFeedForward(weights.at("feedforward"), "relu") : null;
  const gate = config.mixer.gate ? weights.linear("gate") : null;
  const [both, mean] = [new FloatBuffer(), new FloatBuffer()];
  /** i ⊙ x + f ⊙ g with i, f = σ(W [x; g]) and g = FFN(mean); g itself without a gate. */
  function applyGate(x, means, n) {
    const g = feedForward === null ? means : feedForward(means, n);
    if (gate === null) return g;
    const z = gate.apply(concatenateRows([[x, d], [g, d]], n, both), n); // (n, 2D)
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < d; j++) {
        const at = i * d + j;
        g[at] = sigmoid(z[2 * i * d + j]) * x[at] + sigmoid(z[(2 * i + 1) * d + j]) * g[at];
      }
    }
    return g;
  }
  return {
    forward(x, n) {
      const means = mean.take(n * d);
      for (let j = 0; j < d; j++) {
        for (let i = 0, sum = 0; i < n; i++) means[i * d + j] = (sum += x[i * d + j]) / (i + 1);
      }
      return applyGate(x, means, n);
    },
    start(x, n) {
      const total = new Float32Array(d);
      for (let i = 0; i < n * d; i++) total[i % d] += x[i];
      return new HypothesisRows(total, d);
    },
    step(x, k, total, t) {
      addInPlace(total.x, x);
      const means = mean.take(k * d);
      for (let i = 0; i < means.length; i++) means[i] = total.x[i] / (t + 1);
      return applyGate(x, means, k);
    },
  };
}

function buildSSRU(weights, d) {
  const [W, Wf, out] = [weights.linear("W"), weights.linear("Wf"), new FloatBuffer()];
  /** c ← f ⊙ c + (1 − f) ⊙ W x for rows at `from` of the projections; ReLU(c) into y. */
  function update(c, cAt, f, wx, from, y) {
    for (let j = 0; j < d; j++) {
      const forget = sigmoid(f[from + j]);
      c[cAt + j] = forget * c[cAt + j] + (1 - forget) * wx[from + j];
      y[from + j] = relu(c[cAt + j]);
    }
  }
  function scan(x, n) {
    const [f, wx, y, c] = [Wf.apply(x, n), W.apply(x, n), out.take(n * d), new Float32Array(d)];
    for (let i = 0; i < n; i++) update(c, 0, f, wx, i * d, y);
    return { y, c };
  }
  return {
    forward: (x, n) => scan(x, n).y,
    start: (x, n) => new HypothesisRows(scan(x, n).c, d),
    step(x, k, state) {
      const [f, wx, y] = [Wf.apply(x, k), W.apply(x, k), out.take(k * d)];
      for (let i = 0; i < k; i++) update(state.x, i * d, f, wx, i * d, y);
      return y;
    },
  };
}
