/* The Transformer block of encoder, decoder and language model, and the stack of blocks.

     pre-norm    x ← x + f(norm(x))          post-norm   x ← norm(x + f(x))

   for each sub-layer f in turn: a token mixer (usually self-attention), cross-attention (if there is a memory), and
   feed-forward.

   `record(kind, layer, row, head, a, count)`, if given, gets the weights of every attention. */

import { buildFeedForward } from "./activations.js";
import { MultiHeadAttention } from "./attention.js";
import { buildNorm } from "./norms.js";
import { buildPositions } from "./positions.js";
import { FloatBuffer, addInPlace } from "./tensors.js";
import { buildMixer } from "./token_mixers.js";

const PER_LAYER_POSITIONS = ["shaw", "xl"]; // every block has its own parameters
const NO_POSITION = {};

class TransformerBlock {
  constructor(weights, d, config, hasMemory) {
    this.isPreNorm = config.norm_order === "pre";
    this.mixer = buildMixer(weights.at("mixer"), d, config);
    this.mixerNorm = buildNorm(config.norm, weights.at("mixer_norm"));
    this.cross = hasMemory ? new MultiHeadAttention(weights.at("cross_attention"), config) : null;
    this.crossNorm = hasMemory ? buildNorm(config.norm, weights.at("cross_norm")) : null;
    this.feedForward = buildFeedForward(weights.at("feedforward"), config.activation);
    this.feedForwardNorm = buildNorm(config.norm, weights.at("feedforward_norm"));
  }

  /** x ← x + f(norm(x)), or norm(x + f(x)), in place: x (n, D) */
  sublayer(x, n, norm, f) {
    addInPlace(x, f(this.isPreNorm ? norm(x, n) : x, n));
    if (!this.isPreNorm) x.set(norm(x, n));
  }

  forward(x, n, isCausal, position, record) {
    this.sublayer(x, n, this.mixerNorm, (y) => this.mixer.forward(y, n, isCausal, position, record));
    this.sublayer(x, n, this.feedForwardNorm, this.feedForward);
  }

  /** The mixer's state after a prefix x (n, D), and the memory's keys and values. */
  start(x, n, position, memory) {
    const past = this.mixer.start(this.isPreNorm ? this.mixerNorm(x, n) : x, n, position);
    if (this.cross === null) return { past, keys: null, values: null };
    const keys = this.cross.projectKeys(memory.states, memory.count).slice();
    return { past, keys, values: this.cross.Wv.apply(memory.values ?? memory.states, memory.count).slice() };
  }

  /** Position t of k hypotheses, x (k, D) in place. */
  step(x, k, state, t, position, count, recordMixer, recordCross) {
    this.sublayer(x, k, this.mixerNorm, (y) => this.mixer.step(y, k, state.past, t, position, recordMixer));
    if (this.cross !== null) {
      this.sublayer(x, k, this.crossNorm, (y) => {
        const queries = this.cross.projectQueries(y, k);
        const c = this.cross.emptyContext(k);
        for (let i = 0; i < k; i++) {
          this.cross.attendRow(queries, i, state.keys, state.values, count, t, NO_POSITION, c, recordCross);
        }
        return this.cross.mergeHeads(c, k);
      });
    }
    this.sublayer(x, k, this.feedForwardNorm, this.feedForward);
  }
}

/** Input projection and positions, then the blocks, then a final norm (pre-norm only). */
export class TransformerStack {
  constructor(weights, width, config, { isCausal, hasMemory, kind }) {
    const d = config.width ?? width;
    Object.assign(this, { d, isCausal, kind, x: new FloatBuffer() });
    this.inputProjection = weights.hasBelow("input_proj") ? weights.linear("input_proj") : null;
    const attention = { heads: config.heads, width: config.key_width ?? Math.floor(d / config.heads), isCausal };
    const layers = Array.from({ length: config.layers }, (_, i) => i);
    const isPerLayer = PER_LAYER_POSITIONS.includes(config.position.name) && !config.shared;
    const schemes = layers
      .slice(0, isPerLayer ? config.layers : 1)
      .map((i) => buildPositions(config.position, weights.at(`positions.${i}`), d, attention));
    this.positions = layers.map((i) => schemes[i % schemes.length]);
    this.embeddingNorm = config.embedding_norm ? buildNorm(config.norm, weights.at("embedding_norm")) : null;
    this.blocks = layers.map((i) => new TransformerBlock(weights.at(`blocks.${i}`), d, config, hasMemory));
    this.norm = config.norm_order === "pre" ? buildNorm(config.norm, weights.at("norm")) : null;
  }

  /** The first block's inputs: x (n, D_in) projected, with positions t + i · step and norm, (n, D) */
  embedInputs(input, n, t, step) {
    const x = this.x.take(n * this.d);
    x.set(this.inputProjection === null ? input : this.inputProjection.apply(input, n));
    this.positions[0].add?.(x, n, t, step);
    if (this.embeddingNorm !== null) x.set(this.embeddingNorm(x, n));
    return x;
  }

  recorder(record, kind, layer) {
    return record === null ? null : (row, head, a, count) => record(kind, layer, row, head, a, count);
  }

  /** One whole sequence, input (n, D_in) → (n, D) */
  forward(input, n, record) {
    const x = this.embedInputs(input, n, 0, 1);
    this.blocks.forEach((block, i) => {
      block.forward(x, n, this.isCausal, this.positions[i], this.recorder(record, this.kind, i + 1));
    });
    return this.norm === null ? x : this.norm(x, n);
  }

  /** The states of all blocks after a prefix (n, D_in); n may be 0. `isCausal`: it is read from left to right. */
  start(prefix, n, memory, isCausal, record) {
    const x = this.embedInputs(prefix, n, 0, 1);
    return this.blocks.map((block, i) => {
      const state = block.start(x, n, this.positions[i], memory);
      const isNeeded = n > 0 && (i + 1 < this.blocks.length || record !== null);
      if (isNeeded) block.forward(x, n, isCausal, this.positions[i], this.recorder(record, this.kind, i + 1));
      return state;
    });
  }

  /** Position t of k hypotheses: input (k, D_in) → (k, D); `count` states of the memory. */
  step(input, k, states, t, count, record) {
    const x = this.embedInputs(input, k, t, 0);
    this.blocks.forEach((block, i) => {
      const recorders = [this.recorder(record, this.kind, i + 1), this.recorder(record, "cross", i + 1)];
      block.step(x, k, states[i], t, this.positions[i], count, ...recorders);
    });
    return this.norm === null ? x : this.norm(x, k);
  }
}
