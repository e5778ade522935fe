/* Position schemes: attention treats its inputs as a set, and these tell it their order.

     added to x        sinusoidal   PE(t, 2i) = sin(t / 10000^(2i/D)),  PE(t, 2i+1) = cos(t / 10000^(2i/D))
                       learned      P[t]
     added to scores   shaw         e_ts += q_t · A^K[clip(s − t)] / √d        c_t += Σ_s a_ts A^V[clip(s − t)]
                       t5           e_ts += b_h[bucket(s − t)]
                       xl           e_ts += (q_t + v_h) · W_h PE(s − t) / √d
                       alibi        e_ts −= m_h |t − s|
     rotates q and k   rotary       pair i of the vector at t, by the angle t / base^(2i/d)

   A scheme is an object with those of four functions that it needs:
     add(x, n, t, step)                       to n rows of x in place; row i is at position t + i · step
     rotate(x, n, heads, t, step)             n rows of `heads` vectors, in place
     addBias(e, count, q, qAt, head, t)       to the scores e of keys 0 … count − 1
     addValue(c, cAt, a, count, t)            to the context of weights a */

import { Matrix, dotProduct, multiplyPlain } from "./tensors.js";

const POSITIONS = {
  none: () => ({}),
  sinusoidal: buildSinusoidal,
  learned: buildLearned,
  shaw: buildShaw,
  t5: buildT5,
  xl: buildTransformerXL,
  alibi: buildALiBi,
  rotary: buildRotary,
};

/** A scheme for vectors of width d; attention has {heads, width, isCausal}, or is null where there are no heads. */
export function buildPositions(part, weights, d, attention) {
  return POSITIONS[part.name](part, weights, d, attention);
}

// -- added to the inputs ------------------------------------------------------------------------------------------------

function buildSinusoidal({ layout, endpoint, first }, weights, d) {
  const f = frequencies(d, 10000, endpoint);
  const pe = new Float32Array(d);
  return {
    add(x, n, t, step) {
      for (let i = 0; i < n; i++) {
        writeSinusoids(pe, 0, t + i * step + first, f, layout);
        for (let j = 0; j < d; j++) x[i * d + j] += pe[j];
      }
    },
  };
}

function buildLearned(part, weights, d) {
  const table = weights.at("table").matrix("weight");
  const row = new Float32Array(d);
  return {
    add(x, n, t, step) {
      for (let i = 0; i < n; i++) {
        table.copyRow(t + i * step, row);
        for (let j = 0; j < d; j++) x[i * d + j] += row[j];
      }
    },
  };
}

/** base^(−2i/d) of each pair i, in float32; with `endpoint` base^(−i/(d/2 − 1)). */
function frequencies(d, base, endpoint = false) {
  return Float32Array.from({ length: d / 2 }, (_, i) => Math.exp((-2 * i * Math.log(base)) / (endpoint ? d - 2 : d)));
}

/** Sines and cosines of position t into `out`: interleaved, or one half after the other. */
function writeSinusoids(out, at, t, f, layout) {
  const half = f.length;
  for (let i = 0; i < half; i++) {
    const angle = Math.fround(t * f[i]); // Python's, too, is a float32
    const [sine, cosine] = layout === "halves" ? [i, half + i] : [2 * i, 2 * i + 1];
    out[at + sine] = Math.sin(angle);
    out[at + cosine] = Math.cos(angle);
  }
}

// -- added to the scores ------------------------------------------------------------------------------------------------

/** The row of key s in a table of the distances −limit … limit, seen from t. */
function clippedIndex(s, t, limit) {
  return Math.min(Math.max(s - t, -limit), limit) + limit;
}

function buildShaw({ distance, values }, weights, d, { width }) {
  const keys = weights.numbers("keys"); // (2 · distance + 1, width)
  const scale = width ** -0.5;
  const scheme = {
    addBias(e, count, q, qAt, head, t) {
      let [index, bias] = [-1, 0];
      for (let s = 0; s < count; s++) {
        const next = clippedIndex(s, t, distance);
        if (next !== index) bias = scale * dotProduct(q, qAt, keys, next * width, width);
        index = next;
        e[s] += bias;
      }
    },
  };
  if (!values) return scheme;
  const vectors = weights.numbers("values");
  scheme.addValue = function addValue(c, cAt, a, count, t) {
    for (let s = 0; s < count; s++) {
      const from = clippedIndex(s, t, distance) * width;
      for (let j = 0; j < width; j++) c[cAt + j] += a[s] * vectors[from + j];
    }
  };
  return scheme;
}

function buildTransformerXL({ distance }, weights, d, { heads, width }) {
  const [W, v] = [weights.numbers("W"), weights.numbers("v")]; // (D, H · d), (H, 1, d)
  const f = frequencies(d, 10000);
  const size = 2 * distance + 1;
  const sinusoids = new Float32Array(size * d);
  for (let i = 0; i < size; i++) writeSinusoids(sinusoids, i * d, i - distance, f, "interleaved");
  const r = new Float32Array(size * heads * width); // W_h PE of each distance, (2k + 1, H · d)
  multiplyPlain(new Matrix(heads * width, d, transpose(W, d, heads * width)), sinusoids, size, r);
  const [scale, query] = [width ** -0.5, new Float32Array(width)];
  return {
    addBias(e, count, q, qAt, head, t) {
      for (let j = 0; j < width; j++) query[j] = q[qAt + j] + v[head * width + j];
      let [index, bias] = [-1, 0];
      for (let s = 0; s < count; s++) {
        const next = clippedIndex(s, t, distance);
        if (next !== index) bias = scale * dotProduct(query, 0, r, (next * heads + head) * width, width);
        index = next;
        e[s] += bias;
      }
    },
  };
}

function transpose(x, rows, columns) {
  const y = new Float32Array(x.length);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) y[j * rows + i] = x[i * columns + j];
  }
  return y;
}

function buildT5({ buckets, distance }, weights, d, { heads, isCausal }) {
  const table = weights.at("table").numbers("weight"); // (buckets, H)
  const later = isCausal ? 0 : buckets / 2; // the first bucket of later keys
  const edges = bucketEdges(buckets - later, distance);
  /** Of causal attention, all later keys share the first bucket. */
  function bucketIndex(relative) {
    const size = later > 0 ? Math.abs(relative) : Math.max(-relative, 0);
    return edges.filter((edge) => edge <= size).length + (relative > 0 ? later : 0);
  }
  const known = new Map(); // relative position → bucket
  return {
    addBias(e, count, q, qAt, head, t) {
      for (let s = 0; s < count; s++) {
        if (!known.has(s - t)) known.set(s - t, bucketIndex(s - t));
        e[s] += table[known.get(s - t) * heads + head];
      }
    },
  };
}

/** The distance at which each bucket after the first starts: one each up to m = buckets / 2, then they grow. */
function bucketEdges(buckets, distance) {
  const m = Math.floor(buckets / 2);
  const near = Array.from({ length: m }, (_, i) => i + 1);
  const growing = Array.from({ length: Math.max(buckets - m - 1, 0) }, (_, i) =>
    Math.ceil(m * (distance / m) ** ((i + 1) / (buckets - m)) - 1e-9),
  );
  return [...near, ...growing];
}

function buildALiBi(part, weights, d, { heads }) {
  const slopes = alibiSlopes(heads);
  return {
    addBias(e, count, q, qAt, head, t) {
      for (let s = 0; s < count; s++) e[s] -= slopes[head] * Math.abs(s - t);
    },
  };
}

/** 2^(−8h/H) for each head; where H is no power of two, every other one of the next power fills up. */
function alibiSlopes(heads) {
  const power = 2 ** Math.floor(Math.log2(heads));
  const slopes = Array.from({ length: power }, (_, i) => 2 ** ((-8 * (i + 1)) / power));
  for (let h = 1; slopes.length < heads; h += 2) slopes.push(2 ** ((-8 * h) / (2 * power)));
  return Float32Array.from(slopes);
}

// -- rotates queries and keys -------------------------------------------------------------------------------------------

function buildRotary({ base, layout }, weights, d, { width }) {
  const f = frequencies(width, base);
  const half = width / 2;
  return {
    rotate(x, n, heads, t, step) {
      for (let i = 0; i < n; i++) {
        for (let pair = 0; pair < half; pair++) {
          const angle = Math.fround((t + i * step) * f[pair]);
          const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
          const [first, second] = layout === "halves" ? [pair, half + pair] : [2 * pair, 2 * pair + 1];
          for (let at = i * heads * width; at < (i + 1) * heads * width; at += width) {
            const [x1, x2] = [x[at + first], x[at + second]];
            x[at + first] = x1 * cos - x2 * sin;
            x[at + second] = x1 * sin + x2 * cos;
          }
        }
      }
    },
  };
}
