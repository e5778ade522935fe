/* Decoders: embedded target tokens and a memory → hidden vectors, one step at a time for k hypotheses.

     start(memory, record) → state of one hypothesis        step(y (k, D_in), k, state, record) → {o (k, D), attention}

   `attention` (k, S) is the decoder's alignment with the source, where it has one: of a Transformer only if `record` is
   given, the mean over heads and layers. `step` changes its state. */

import { Attention } from "./attention.js";
import { GatedConvolution, addScaled } from "./convolution.js";
import { HypothesisCache, HypothesisRows } from "./hypotheses.js";
import { buildPositions } from "./positions.js";
import { buildRecurrentDecoder } from "./recurrent_decoder.js";
import { FloatBuffer, addInPlace, concatenateRows, mapInPlace } from "./tensors.js";
import { parameterFreeAttention } from "./token_mixers.js";
import { TransformerStack } from "./transformer_stack.js";

const DECODERS = {
  rnn: buildRecurrentDecoder,
  transformer: buildTransformerDecoder,
  conv: buildConvDecoder,
  attention: buildAttentionDecoder,
};

/** `width` is that of the embedded tokens. */
export function buildDecoder(part, weights, width) {
  return DECODERS[part.name](part, weights, width);
}

/** Blocks of causal self-attention, cross-attention and feed-forward; or decoder-only, after the source as a prefix. */
function buildTransformerDecoder(part, weights, width) {
  const hasMemory = part.source === "attention";
  const stack = new TransformerStack(weights.at("stack"), width, part, { isCausal: true, hasMemory, kind: "decoder" });
  const share = 1 / (part.heads * part.layers); // of one head in the mean

  function start(memory, record) {
    const [prefix, n] = hasMemory ? [new Float32Array(0), 0] : [memory.states, memory.count];
    const blocks = stack.start(prefix, n, memory, part.source !== "full_prefix", record);
    return { blocks, t: n, count: memory.count };
  }

  function step(y, k, state, record) {
    const { count } = state;
    const attention = record !== null && hasMemory ? new Float32Array(k * count) : null;
    const recordMean =
      attention === null
        ? record
        : (kind, layer, row, head, a, length) => {
            if (kind === "cross") for (let s = 0; s < length; s++) attention[row * count + s] += share * a[s];
            record(kind, layer, row, head, a, length);
          };
    const o = stack.step(y, k, state.blocks, state.t, count, recordMean);
    state.t++;
    return { o, attention };
  }

  return { d: stack.d, start, step };
}

/* Causal gated convolutions with attention to the source in every layer, or a CNN language model:

     g = y + position       h⁰ = W_in g       for each layer, with u = hˡ⁻¹ and zeros before its first position:
     v_i = GLU(conv_k(u_{i−k+1} … u_i))
     d_i = W_d v_i + b_d + g_i      a_i = normalize(score(d_i, z))      c_i = √m Σ_j a_ij (z_j + e_j)
     v_i ← (v_i + W_o c_i)·√½                                           only with source 'attention'
     hˡ_i = (v_i + u_i)·√½          o = W_out hᴺ */
function buildConvDecoder(part, weights, width) {
  const position = buildPositions(part.position, weights.at("position"), width, null);
  const [input, output] = [weights.linear("input_proj"), weights.linear("output_proj")];
  const queryProjection = weights.hasBelow("query_proj") ? weights.linear("query_proj") : null;
  const [d, kept, hasAttention] = [input.rows, part.kernel - 1, part.source === "attention"];
  const layers = Array.from({ length: part.layers }, (_, i) => {
    const scope = weights.at(`layers.${i}`);
    const convolution = new GatedConvolution(scope.at("convolve"), d, part.kernel);
    if (!hasAttention) return { convolution };
    const [Wd, Wo] = [scope.linear("Wd"), scope.linear("Wo")];
    return { convolution, Wd, Wo, attention: new Attention(part.score, part.normalizer, scope.at("attention"), Wd.rows) };
  });
  const positioned = new FloatBuffer();

  function start(memory) {
    const sources = hasAttention ? layers.map(({ attention }) => attention.prepareSource(memory)) : null;
    const n = hasAttention ? 0 : memory.count;
    return { past: readPrefix(memory.states, n), sources, t: n, count: memory.count };
  }

  /** The last k − 1 inputs of each layer after a prefix x (n, D_in), zeros before it. */
  function readPrefix(x, n) {
    const g = x.slice(0, n * width);
    position.add?.(g, n, 0, 1);
    const h = input.apply(g, n);
    return layers.map(({ convolution }) => {
      const past = new Float32Array(kept * d);
      for (let j = Math.max(kept - n, 0); j < kept; j++) past.set(h.subarray((n - kept + j) * d, (n - kept + j + 1) * d), j * d);
      addScaled(h, convolution.forward(h, n, kept));
      return new HypothesisRows(past, kept * d);
    });
  }

  /** v (k, D) of one layer from its past inputs and h (k, D), which is appended to them. */
  function convolveNext(convolution, past, h, k) {
    const windows = convolution.takeWindows(k);
    for (let i = 0; i < k; i++) {
      for (let j = 0; j < kept; j++) convolution.writeWindow(windows, i, j, past.x, (i * kept + j) * d);
      convolution.writeWindow(windows, i, kept, h, i * d);
      if (kept === 0) continue;
      past.x.copyWithin(i * kept * d, (i * kept + 1) * d, (i + 1) * kept * d);
      past.x.set(h.subarray(i * d, (i + 1) * d), ((i + 1) * kept - 1) * d);
    }
    return convolution.convolve(windows, k);
  }

  /** v ← (v + W_o c)·√½ in place; returns the weights a (k, S). */
  function attendToSource({ Wd, Wo, attention }, v, g, k, source, t) {
    const { c, a } = attention.attend(addInPlace(Wd.apply(v, k), g), k, source, t);
    const scale = Math.sqrt(source.count);
    addScaled(v, Wo.apply(mapInPlace(c, (x) => x * scale), k));
    return a;
  }

  function step(y, k, state, record) {
    const x = positioned.take(k * width);
    x.set(y);
    position.add?.(x, k, state.t, 0);
    const h = input.apply(x, k);
    const g = queryProjection === null ? x : queryProjection.apply(x, k);
    const mean = hasAttention ? new Float32Array(k * state.count) : null;
    layers.forEach((layer, l) => {
      const v = convolveNext(layer.convolution, state.past[l], h, k);
      if (mean !== null) {
        const a = attendToSource(layer, v, g, k, state.sources[l], state.t);
        for (let i = 0; i < a.length; i++) mean[i] += a[i] / layers.length;
        recordRows(record, l + 1, a, k, state.count);
      }
      addScaled(h, v);
    });
    state.t++;
    return { o: output.apply(h, k), attention: mean };
  }

  return { d: output.rows, start, step };
}

function recordRows(record, layer, a, k, count) {
  if (record === null) return;
  for (let i = 0; i < k; i++) record("cross", layer, i, 0, a.subarray(i * count, (i + 1) * count), count);
}

/* Attention without recurrence:

     x_t = y_{t-1} + position
     s_t = x_t + Σ_{j≤t} softmax_j(x_t·x_j / √D) x_j        s_t = x_t where `past` is false
     c_t = attend(s_t, h)        o_t = tanh(W [s_t; c_t]) */
function buildAttentionDecoder(part, weights, d) {
  const position = buildPositions(part.position, weights.at("position"), d, null);
  const attention = new Attention(part.score, part.normalizer, weights.at("attention"), d);
  const W = weights.linear("W");
  const attendToPast = parameterFreeAttention(d, d ** -0.5);
  const [positioned, summed, both] = [new FloatBuffer(), new FloatBuffer(), new FloatBuffer()];

  function start(memory) {
    return { past: part.past ? new HypothesisCache(d) : null, source: attention.prepareSource(memory), t: 0 };
  }

  function step(y, k, state, record) {
    const x = positioned.take(k * d);
    x.set(y);
    position.add?.(x, k, state.t, 0);
    const s = summed.take(k * d);
    s.set(x);
    if (state.past !== null) {
      state.past.append(x);
      for (let i = 0; i < k; i++) attendToPast(x, i, state.past.rows[i], state.past.length, s, null);
    }
    const { source } = state;
    const { c, a } = attention.attend(s, k, source, state.t);
    recordRows(record, 1, a, k, source.count);
    state.t++;
    return { o: mapInPlace(W.apply(concatenateRows([[s, d], [c, source.width]], k, both), k), Math.tanh), attention: a };
  }

  return { d, start, step };
}
