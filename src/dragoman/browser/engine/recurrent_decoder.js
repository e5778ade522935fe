/* A recurrent decoder, which can use the source in four ways.

     attention   before (Bahdanau)   c_t = attend(s_{t-1}, h)    s_t = g([y_{t-1}; c_t], s_{t-1})
                 after (Luong)       s_t = g([y_{t-1}; o_{t-1}], s_{t-1})    c_t = attend(s_t, h)
                 bottom (GNMT)       c_t = attend(s¹_{t-1}, h)   sˡ_t = g([sˡ⁻¹_t; c_t], sˡ_{t-1}) in every layer l
     context     s_t = g([y_{t-1}; c], s_{t-1}), c the encoder's summary
     initial     s_t = g(y_{t-1}, s_{t-1}), the source known from s_0 alone
     prefix      the same, where s_0 is the state of the decoder's own layers after reading the source

     gate        c_t ← σ(w·q + b) c_t, where q is the query

     readout     o_t = tanh(W r), max of pairs of W r (maxout), W r or s_t;   r = s_t, [s_t; c_t] or [s_t; c_t; y_{t-1}]

   o_{t-1} enters the cell only with input feeding. k hypotheses, S source positions, L layers, D width of s and o. */

import { sigmoid } from "./activations.js";
import { Attention } from "./attention.js";
import { HypothesisRows } from "./hypotheses.js";
import { RecurrentStack } from "./recurrent.js";
import { FloatBuffer, concatenateRows, mapInPlace } from "./tensors.js";

/** `width` is that of the embedded tokens y. */
export function buildRecurrentDecoder(part, weights, width) {
  const stack = new RecurrentStack(weights.at("stack"), part);
  const { d } = stack;
  const order = part.source === "attention" ? part.order : null;
  const attention = order === null ? null : new Attention(part.score, part.normalizer, weights.at("attention"), d);
  const remembers = attention !== null && attention.score.updatePastWeights !== null;
  const gate = part.gate ? weights.linear("gate") : null;
  const readout = part.readout === "none" ? null : weights.linear("readout");
  const [inputs, read, output] = [new FloatBuffer(), new FloatBuffer(), new FloatBuffer()];

  /** The {h, c} of every layer before the first step: from the encoder, or after reading it as a prefix. */
  function initialStates(memory) {
    if (part.source === "prefix") return stack.forward(memory.states, memory.count).final;
    if (part.bridge === "copy") return memory.final;
    const zeros = () => new Float32Array(d);
    const hasCell = part.cell === "lstm";
    if (part.bridge === "zero") return stack.layers.map(() => ({ h: zeros(), c: hasCell ? zeros() : null }));
    const s = mapInPlace(weights.linear("bridge_proj").apply(memory.summary, 1), Math.tanh); // (1 or 2, L, D)
    const slice = (i) => s.slice(i * d, (i + 1) * d);
    const L = stack.layers.length;
    return stack.layers.map((layer, i) => ({ h: slice(i), c: hasCell ? slice(L + i) : null }));
  }

  function start(memory) {
    const rows = (x) => (x === null ? null : new HypothesisRows(x.slice(), d));
    return {
      layers: initialStates(memory).map(({ h, c }) => ({ h: rows(h), c: rows(c) })),
      o: new HypothesisRows(new Float32Array(d), d),
      t: 0,
      context: part.source === "context" ? memory.summary : null,
      source: attention === null ? null : attention.prepareSource(memory),
      past: remembers ? new HypothesisRows(new Float32Array(memory.count), memory.count) : null,
      contextWidth: memory.width,
    };
  }

  /** Queries q (k, D) attend to the source; a gate scales c. */
  function attend(q, k, state, record) {
    const { c, a } = attention.attend(q, k, state.source, state.t, 0, state.past?.x ?? null);
    if (gate !== null) {
      const g = gate.apply(q, k);
      const { width } = state.source;
      for (let i = 0; i < c.length; i++) c[i] *= sigmoid(g[Math.floor(i / width)]);
    }
    if (record !== null) {
      const S = state.source.count;
      for (let i = 0; i < k; i++) record("cross", 1, i, 0, a.subarray(i * S, (i + 1) * S), S);
    }
    return { c, a };
  }

  function computeReadout(s, c, y, k, contextWidth) {
    if (readout === null) return s;
    const parts = [[s, d]];
    if (part.reads.includes("c")) parts.push([c, contextWidth]);
    if (part.reads.includes("y")) parts.push([y, width]);
    const o = readout.apply(concatenateRows(parts, k, read), k);
    if (part.readout === "tanh") return mapInPlace(o, Math.tanh);
    if (part.readout !== "maxout") return o;
    const best = output.take(k * d);
    for (let i = 0; i < best.length; i++) best[i] = Math.max(o[2 * i], o[2 * i + 1]);
    return best;
  }

  /** y (k, D_in) → o (k, D) and the attention a (k, S), or null */
  function step(y, k, state, record) {
    let [c, a] = [state.context, null];
    if (order === "before") ({ c, a } = attend(state.layers.at(-1).h.x, k, state, record));
    if (order === "bottom") ({ c, a } = attend(state.layers[0].h.x, k, state, record));
    const parts = [[y, width]];
    if (c !== null && order !== "bottom") parts.push([c, state.contextWidth]);
    if (part.input_feeding) parts.push([state.o.x, d]);
    const x = concatenateRows(parts, k, inputs);
    const s = order === "bottom" ? stack.step(x, k, state.layers, c, state.contextWidth) : stack.step(x, k, state.layers);
    if (order === "after") ({ c, a } = attend(s, k, state, record));
    const o = computeReadout(s, c, y, k, state.contextWidth);
    if (part.input_feeding) state.o.set(o);
    state.t++;
    return { o, attention: a };
  }

  return { d, start, step };
}
