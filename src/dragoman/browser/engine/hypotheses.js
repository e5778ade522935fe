/* What a decoder keeps of each hypothesis, in two forms, and their reordering.

   A decoding state is any nesting of objects and arrays. After a step of a beam, hypothesis i continues hypothesis
   parents[i]: leaves with a method `reorder` follow, everything else is shared by all hypotheses. A state begins with
   one hypothesis. */

/** One row of a fixed width for each hypothesis, one after the other: x (k, width). */
export class HypothesisRows {
  constructor(x, width) {
    Object.assign(this, { width, x, spare: new Float32Array(0) });
  }

  reorder(parents) {
    const { x, width } = this;
    const size = parents.length * width;
    const next = this.spare.length === size ? this.spare : new Float32Array(size);
    for (let i = 0; i < parents.length; i++) {
      const from = parents[i] * width;
      for (let j = 0; j < width; j++) next[i * width + j] = x[from + j];
    }
    Object.assign(this, { x: next, spare: x });
  }

  /** Take new rows y (k, width), which may be a buffer of a layer. */
  set(y) {
    this.x.set(y);
  }
}

/** The vectors of all earlier positions for each hypothesis: rows[i] has `length` vectors of a width. */
export class HypothesisCache {
  constructor(width, x = new Float32Array(0)) {
    Object.assign(this, { width, length: x.length / width, rows: [x.slice()] });
  }

  /** Append one vector of y (k, width) to each hypothesis. */
  append(y) {
    const { width, rows } = this;
    const end = this.length * width;
    for (let i = 0; i < rows.length; i++) {
      if (rows[i].length < end + width) rows[i] = copyInto(new Float32Array(2 * end + 16 * width), rows[i], end);
      for (let j = 0; j < width; j++) rows[i][end + j] = y[i * width + j];
    }
    this.length++;
  }

  /** A hypothesis that is continued once keeps its array; each further continuation gets a copy. */
  reorder(parents) {
    const used = new Set();
    this.rows = Array.from(parents, (parent) => {
      const row = this.rows[parent];
      if (!used.has(parent)) {
        used.add(parent);
        return row;
      }
      return copyInto(new Float32Array(row.length), row, this.length * this.width);
    });
  }
}

function copyInto(target, source, length) {
  target.set(source.subarray(0, length));
  return target;
}

/** Let hypothesis i of a state continue hypothesis parents[i]. */
export function reorderHypotheses(state, parents, count) {
  if (parents.length === count && Array.from(parents).every((parent, i) => parent === i)) return;
  reorderLeaves(state, parents);
}

function reorderLeaves(state, parents) {
  if (state === null || typeof state !== "object" || ArrayBuffer.isView(state)) return;
  if (typeof state.reorder === "function") {
    state.reorder(parents);
    return;
  }
  for (const value of Object.values(state)) reorderLeaves(value, parents);
}
