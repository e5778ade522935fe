/* Matrices as a model's file has them, and their products with a few vectors.

     Y = X Wᵀ + b          X (n, columns), W (rows, columns), Y (n, rows); vectors lie one after the other

   W stays in int8 with a scale for each row, or in float32: a row is scaled once its sum is there. */

/** A matrix (rows, columns), or a table of `rows` vectors. */
export class Matrix {
  constructor(rows, columns, values, scales = null) {
    Object.assign(this, { rows, columns, values, scales });
  }

  /** Write factor · W_row into `out` from `at` on. */
  copyRow(row, out, at = 0, factor = 1) {
    const { columns, values, scales } = this;
    const scale = scales === null ? factor : scales[row] * factor;
    const start = row * columns;
    for (let c = 0; c < columns; c++) out[at + c] = values[start + c] * scale;
  }

  /** The matrix in float32, (rows, columns). */
  toFloat32() {
    const out = new Float32Array(this.rows * this.columns);
    for (let row = 0; row < this.rows; row++) this.copyRow(row, out, row * this.columns);
    return out;
  }
}

/** y = W x + b; its result is valid until the next call. */
export class Linear {
  constructor(matrix, bias, multiply) {
    Object.assign(this, { matrix, bias, multiply, rows: matrix.rows, columns: matrix.columns });
    this.output = new FloatBuffer();
  }

  /** x (n, columns) → (n, rows) */
  apply(x, n) {
    const y = this.output.take(n * this.rows);
    this.multiply(this.matrix, x, n, y);
    if (this.bias !== null) addToRows(y, n, this.bias);
    return y;
  }
}

/** Memory for one result at a time, which is used again where the size stays the same. */
export class FloatBuffer {
  constructor() {
    this.memory = this.view = new Float32Array(0);
  }

  /** An array of `length` numbers, with whatever was there before. */
  take(length) {
    if (this.view.length === length) return this.view;
    if (this.memory.length < length) this.memory = new Float32Array(Math.max(length, 2 * this.memory.length));
    this.view = this.memory.subarray(0, length);
    return this.view;
  }
}

/** Y = X Wᵀ in plain JavaScript, four vectors at a time: each weight is read once for all of them. */
export function multiplyPlain(matrix, x, n, y) {
  let i = 0;
  for (; i + 4 <= n; i += 4) multiplyFourVectors(matrix, x, i, y);
  for (; i < n; i++) multiplyVector(matrix, x, i, y);
}

function multiplyFourVectors({ rows, columns, values, scales }, x, i, y) {
  const [x0, x1, x2, x3] = [i * columns, (i + 1) * columns, (i + 2) * columns, (i + 3) * columns];
  for (let row = 0, start = 0; row < rows; row++, start += columns) {
    let s0 = 0;
    let s1 = 0;
    let s2 = 0;
    let s3 = 0;
    for (let c = 0; c < columns; c++) {
      const w = values[start + c];
      s0 += w * x[x0 + c];
      s1 += w * x[x1 + c];
      s2 += w * x[x2 + c];
      s3 += w * x[x3 + c];
    }
    const scale = scales === null ? 1 : scales[row];
    const at = i * rows + row;
    y[at] = s0 * scale;
    y[at + rows] = s1 * scale;
    y[at + 2 * rows] = s2 * scale;
    y[at + 3 * rows] = s3 * scale;
  }
}

function multiplyVector({ rows, columns, values, scales }, x, i, y) {
  const at = i * columns;
  for (let row = 0, start = 0; row < rows; row++, start += columns) {
    let s0 = 0;
    let s1 = 0;
    let c = 0;
    for (; c + 2 <= columns; c += 2) {
      s0 += values[start + c] * x[at + c];
      s1 += values[start + c + 1] * x[at + c + 1];
    }
    if (c < columns) s0 += values[start + c] * x[at + c];
    y[i * rows + row] = (s0 + s1) * (scales === null ? 1 : scales[row]);
  }
}

/** Add b (D) to each of n rows of x (n, D), in place. */
export function addToRows(x, n, b) {
  const d = b.length;
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < d; j++) x[i * d + j] += b[j];
  }
  return x;
}

/** x ← x + y, in place. */
export function addInPlace(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
  return x;
}

/** x ← f(x), in place. */
export function mapInPlace(x, f) {
  for (let i = 0; i < x.length; i++) x[i] = f(x[i]);
  return x;
}

/** a·b of two vectors of width d inside of larger arrays. */
export function dotProduct(a, aAt, b, bAt, d) {
  let sum = 0;
  for (let j = 0; j < d; j++) sum += a[aAt + j] * b[bAt + j];
  return sum;
}

/** n rows side by side: parts [x, width] with x (n, width), or one row for all of them → (n, Σ width). */
export function concatenateRows(parts, n, out) {
  const total = parts.reduce((sum, [, width]) => sum + width, 0);
  const y = out.take(n * total);
  let column = 0;
  for (const [x, width] of parts) {
    const step = x.length === width ? 0 : width;
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < width; j++) y[i * total + column + j] = x[i * step + j];
    }
    column += width;
  }
  return y;
}

/** The mean of n rows of x (n, d); zeros where there are none. */
export function meanOfRows(x, n, d) {
  const mean = new Float32Array(d);
  for (let j = 0; j < d; j++) {
    let sum = 0;
    for (let i = 0; i < n; i++) sum += x[i * d + j];
    mean[j] = sum / Math.max(n, 1);
  }
  return mean;
}
