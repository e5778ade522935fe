/* Score every key against every query, normalize, average the values.

     e = score(q, k)      a = normalize(e)      c = a v

   A single head over states as they are, and several heads over projections of their own.

   n queries, S keys, H heads, G key heads (H / G query heads share one), d width of a head. A query may attend to the
   first `count` keys. `record(row, head, a, count)`, if given, gets the weights of each query. */

import { buildNormalizer } from "./normalizers.js";
import { buildScore } from "./scores.js";
import { FloatBuffer } from "./tensors.js";

/** The scores or weights of one query, longer where there are more keys. */
class WeightRow {
  constructor() {
    this.e = new Float64Array(64);
  }

  take(count) {
    if (this.e.length < count) this.e = new Float64Array(2 * count);
    return this.e;
  }
}

/** c ← c + Σ_s a_s v_s with vectors of a width, which begin at `at` and every `stride` numbers after. */
function addWeightedValues(c, cAt, a, count, values, at, stride, width) {
  for (let s = 0, from = at; s < count; s++, from += stride) {
    const weight = a[s];
    if (weight === 0) continue;
    for (let j = 0; j < width; j++) c[cAt + j] += weight * values[from + j];
  }
}

/** One head with any score: c = Σ_j a_j v_j, where v are the states as they come. */
export class Attention {
  constructor(score, normalizer, weights, queryWidth) {
    this.score = buildScore(score, weights.at("score"), queryWidth);
    this.normalize = buildNormalizer(normalizer, weights.at("normalizer"));
    Object.assign(this, { queryWidth, row: new WeightRow(), context: new FloatBuffer() });
  }

  /** What depends on the source alone, computed once per sentence. */
  prepareSource({ states, count, width, values }) {
    return { keys: this.score.prepareKeys(states, count).slice(), values: values ?? states, count, width };
  }

  /** Queries q (n, D_q) at position t, or t + i · step → c (n, D) and a (n, S); past (n, S) are updated in place. */
  attend(q, n, source, t, step = 0, past = null) {
    const { keys, values, count, width } = source;
    const { keyWidth } = this.score;
    const prepared = this.score.prepareQueries(q, n);
    const c = this.context.take(n * width).fill(0);
    const a = new Float32Array(n * count);
    const e = this.row.take(count);
    for (let i = 0; i < n; i++) {
      const pastRow = past === null ? null : past.subarray(i * count, (i + 1) * count);
      this.score.score(prepared, i * keyWidth, keys, 0, keyWidth, count, e, pastRow);
      this.normalize(e, count, q, i * this.queryWidth, t + i * step);
      for (let s = 0; s < count; s++) a[i * count + s] = e[s];
      addWeightedValues(c, i * width, e, count, values, 0, width, width);
      if (pastRow !== null) this.score.updatePastWeights(pastRow, e);
    }
    return { c, a };
  }
}

/** Several attentions side by side on projections of their own: W_O [head_1; …; head_H]. */
export class MultiHeadAttention {
  constructor(weights, { heads, key_heads: keyHeads, score, normalizer }) {
    Object.assign(this, { heads, keyHeads: keyHeads ?? heads, row: new WeightRow(), context: new FloatBuffer() });
    for (const name of ["Wq", "Wk", "Wv", "Wo"]) this[name] = weights.linear(name);
    this.queryWidth = this.Wq.rows / this.heads;
    this.valueWidth = this.Wv.rows / this.keyHeads;
    this.score = buildScore(score, weights.at("score"), this.queryWidth);
    this.normalize = buildNormalizer(normalizer, weights.at("normalizer"));
  }

  /** The numbers of a prepared key of all heads. */
  get keyRowWidth() {
    return this.keyHeads * this.score.keyWidth;
  }

  get valueRowWidth() {
    return this.keyHeads * this.valueWidth;
  }

  /** W_K x of n rows at positions t + i · step, prepared for the score: (n, G · d_key) */
  projectKeys(x, n, position = {}, t = 0, step = 0) {
    const k = this.Wk.apply(x, n);
    position.rotate?.(k, n, this.keyHeads, t, step);
    return this.score.prepareKeys(k, n * this.keyHeads);
  }

  /** W_Q x of n rows, and the same prepared for the score. */
  projectQueries(x, n, position = {}, t = 0, step = 0) {
    const raw = this.Wq.apply(x, n); // (n, H · d)
    position.rotate?.(raw, n, this.heads, t, step);
    return { raw, prepared: this.score.prepareQueries(raw, n * this.heads) };
  }

  /** The contexts of all heads, zeros to which `attendRow` adds: (n, H · d_v) */
  emptyContext(n) {
    return this.context.take(n * this.heads * this.valueWidth).fill(0);
  }

  /** Add the contexts of query i at position t to c, from `count` keys and values (count, G · …). */
  attendRow(queries, i, keys, values, count, t, position, c, record) {
    const { heads, keyHeads, queryWidth, valueWidth } = this;
    const { keyWidth } = this.score;
    const e = this.row.take(count);
    for (let head = 0; head < heads; head++) {
      const group = Math.floor((head * keyHeads) / heads);
      const at = i * heads + head;
      this.score.score(queries.prepared, at * keyWidth, keys, group * keyWidth, keyHeads * keyWidth, count, e, null);
      position.addBias?.(e, count, queries.raw, at * queryWidth, head, t);
      this.normalize(e, count, queries.raw, at * queryWidth, t);
      record?.(i, head, e, count);
      addWeightedValues(c, at * valueWidth, e, count, values, group * valueWidth, keyHeads * valueWidth, valueWidth);
      position.addValue?.(c, at * valueWidth, e, count, t);
    }
  }

  /** W_O of the heads side by side: (n, H · d_v) → (n, D) */
  mergeHeads(c, n) {
    return this.Wo.apply(c, n);
  }
}
