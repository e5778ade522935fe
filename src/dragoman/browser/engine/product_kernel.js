/* Y = X Wᵀ as WebAssembly with SIMD: each weight is read and converted once for up to five vectors, the usual beam.

   The weights lie in the memory of the module; vectors are copied in and results out. Where a page may not compile
   WebAssembly (its content security policy lacks 'wasm-unsafe-eval'), plain JavaScript computes the same. */

import { multiplyPlain } from "./tensors.js";
import { assembleModule } from "./wasm_assembler.js";

const VECTORS = 5; // that one call multiplies at most: two sums for each and the weights fill the 16 registers
const CHUNK = 8; // weights that one turn of the loop reads
const PAGE = 65536;
const KERNEL_PARAMETERS = ["x", "w", "scales", "y", "rows", "columns"];

// Eight weights → $low and $high, four numbers each; $w moves on.
const LOAD_WEIGHTS = {
  int8: `
    local.get $w
    v128.load8x8_s
    local.tee $low
    i32x4.extend_high_i16x8_s
    f32x4.convert_i32x4_s
    local.set $high
    local.get $low
    i32x4.extend_low_i16x8_s
    f32x4.convert_i32x4_s
    local.set $low
    local.get $w
    i32.const 8
    i32.add
    local.set $w`,
  float32: `
    local.get $w
    v128.load
    local.set $low
    local.get $w
    v128.load offset=16
    local.set $high
    local.get $w
    i32.const 32
    i32.add
    local.set $w`,
};

/** The product of all rows of W with n vectors: for each row, n sums of four numbers each for $low and $high. */
function kernelFunction(dtype, n) {
  const vectors = Array.from({ length: n }, (_, i) => i);
  const each = (write) => vectors.map(write).join("\n");
  const body = `
    ${each((i) => startOfVector(i))}
    loop ;; over the rows
      ${each((i) => `i32.const 0\ni32x4.splat\nlocal.tee $low${i}\nlocal.set $high${i}`)}
      local.get $x
      local.set $at
      loop ;; over the columns
        ${LOAD_WEIGHTS[dtype]}
        ${each((i) => addProducts(i))}
        local.get $at
        i32.const ${CHUNK * 4}
        i32.add
        local.tee $at
        local.get $end
        i32.lt_u
        br_if 0
      end
      ${each((i) => storeSum(i, dtype))}
      local.get $y
      i32.const 4
      i32.add
      local.set $y
      local.get $scales
      i32.const 4
      i32.add
      local.set $scales
      local.get $row
      i32.const 1
      i32.add
      local.tee $row
      local.get $rows
      i32.lt_u
      br_if 0
    end`;
  const locals = { row: "i32", at: "i32", end: "i32", stride: "i32", low: "v128", high: "v128" };
  for (const i of vectors) Object.assign(locals, { [`x${i}`]: "i32", [`low${i}`]: "v128", [`high${i}`]: "v128" });
  return { name: `${dtype}_${n}`, params: KERNEL_PARAMETERS, locals, body };
}

/** $x_i: the bytes from vector 0 to vector i. Of the first, $stride, the bytes of a vector, and $end, its end. */
function startOfVector(i) {
  if (i > 0) return `local.get $x${i - 1}\nlocal.get $stride\ni32.add\nlocal.set $x${i}`;
  return `
    local.get $columns
    i32.const 4
    i32.mul
    local.tee $stride
    local.get $x
    i32.add
    local.set $end`;
}

function addProducts(i) {
  const half = (name, offset) => `
    local.get $${name}${i}
    local.get $${name}
    local.get $at
    local.get $x${i}
    i32.add
    v128.load offset=${offset}
    f32x4.mul
    f32x4.add
    local.set $${name}${i}`;
  return half("low", 0) + half("high", 16);
}

/** y_i of this row: the sum of the eight sums, times the scale of the row. */
function storeSum(i, dtype) {
  const lanes = [0, 1, 2, 3].map((lane) => `local.get $low${i}\nf32x4.extract_lane ${lane}${lane > 0 ? "\nf32.add" : ""}`);
  return `
    local.get $low${i}
    local.get $high${i}
    f32x4.add
    local.set $low${i}
    local.get $y
    local.get $rows
    i32.const ${4 * i}
    i32.mul
    i32.add
    ${lanes.join("\n")}
    ${dtype === "int8" ? "local.get $scales\nf32.load\nf32.mul" : ""}
    f32.store`;
}

/**
 * A memory with room for `size` bytes of tensors, and the product with matrices that lie in it.
 * @returns {{bytes: Uint8Array, multiply: Function} | null} null where WebAssembly is not to be had
 */
export function buildProductKernel(size, maxRows, maxColumns) {
  let [memory, kernel] = [null, null];
  const vectorBytes = 4 * VECTORS * maxColumns;
  const start = Math.ceil(size / 16) * 16; // of the vectors, which the results follow
  try {
    memory = new WebAssembly.Memory({ initial: Math.ceil((start + vectorBytes + 4 * VECTORS * maxRows) / PAGE) });
    const sizes = Array.from({ length: VECTORS }, (_, i) => i + 1);
    const functions = Object.keys(LOAD_WEIGHTS).flatMap((dtype) => sizes.map((n) => kernelFunction(dtype, n)));
    const compiled = new WebAssembly.Module(assembleModule(functions));
    kernel = new WebAssembly.Instance(compiled, { env: { memory } }).exports;
  } catch {
    return null;
  }
  const vectors = new Float32Array(memory.buffer, start, VECTORS * maxColumns);
  const results = new Float32Array(memory.buffer, start + vectorBytes, VECTORS * maxRows);

  function multiply(matrix, x, n, y) {
    const { rows, columns, values, scales } = matrix;
    if (values.buffer !== memory.buffer || columns % CHUNK > 0) {
      multiplyPlain(matrix, x, n, y);
      return;
    }
    const [dtype, w, scalesAt] = scales === null ? ["float32", values.byteOffset, 0] : ["int8", values.byteOffset, scales.byteOffset];
    for (let i = 0; i < n; i += VECTORS) {
      const count = Math.min(VECTORS, n - i);
      vectors.set(x.subarray(i * columns, (i + count) * columns));
      kernel[`${dtype}_${count}`](start, w, scalesAt, results.byteOffset, rows, columns);
      y.set(results.subarray(0, count * rows), i * rows);
    }
  }

  return { bytes: new Uint8Array(memory.buffer, 0, size), multiply };
}
