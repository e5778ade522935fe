/* A header and the bytes of its tensors → a model, after checks: a file that was cut short or edited says so. */

import { buildModel } from "./model.js";
import { pauseRegularly } from "./pauses.js";
import { buildProductKernel } from "./product_kernel.js";
import { sha256 } from "./sha256.js";
import { Matrix, multiplyPlain } from "./tensors.js";
import { WeightTable } from "./weight_table.js";

const FORMAT = 1;
const BYTES_PER_NUMBER = { int8: 1, float16: 2, float32: 4 };

/**
 * The model of a header and of its tensors.
 * @param {object} header  what `model_data` of Python wrote
 * @param {ArrayBuffer} buffer
 * @param {{onProgress?: (fraction: number) => void, signal?: AbortSignal, useKernel?: boolean}} [options]
 */
export const loadModel = async (header, buffer, { onProgress = () => {}, signal = null, useKernel = true } = {}) => {
  checkHeader(header, buffer.byteLength);
  const pause = pauseRegularly(signal);
  onProgress(0);
  if (sha256(new Uint8Array(buffer)) !== header.sha256) {
    throw new Error("the model's weights are not those that were exported: the file was changed; get it again");
  }
  const kernel = useKernel ? openKernel(header) : null;
  const memory = buildTensorMemory(kernel);
  const tensors = new Map();
  for (const [i, entry] of header.tensors.entries()) {
    await pause();
    const tensor = readTensor(entry, buffer, memory);
    for (const name of entry.names) tensors.set(name, tensor);
    onProgress((i + 1) / header.tensors.length);
  }
  return buildModel(header.model, new WeightTable(tensors, kernel?.multiply ?? multiplyPlain));
};

/** The kernel, with room for all tensors in its memory; null where there can be none. */
function openKernel({ tensors }) {
  const size = tensors.reduce((sum, { dtype, shape }) => sum + keptSize(dtype, shape), 0);
  const matrices = tensors.map(({ shape }) => shape).filter(({ length }) => length === 2);
  const largest = (dimension) => matrices.reduce((max, shape) => Math.max(max, shape[dimension]), 1);
  return buildProductKernel(size, largest(0), largest(1));
}

/** The bytes of a tensor in memory: int8 with its scales, everything else in float32. */
function keptSize(dtype, shape) {
  const count = countNumbers(shape);
  return dtype === "int8" ? alignAddress(count) + alignAddress(4 * shape[0]) : alignAddress(4 * count);
}

/** Where tensors are kept: in the kernel's memory, one after the other, so that their file can be forgotten. */
function buildTensorMemory(kernel) {
  let end = 0;

  function allocate(Numbers, count) {
    if (kernel === null) return new Numbers(count);
    const values = new Numbers(kernel.bytes.buffer, end, count);
    end = alignAddress(end + values.byteLength);
    return values;
  }

  /** Numbers of the file; without a kernel they stay there. */
  function keep(stored) {
    if (kernel === null) return stored;
    const values = allocate(stored.constructor, stored.length);
    values.set(stored);
    return values;
  }

  return { allocate, keep };
}

function countNumbers(shape) {
  return shape.reduce((product, n) => product * n, 1);
}

function alignAddress(address) {
  return 16 * Math.ceil(address / 16);
}

function checkHeader(header, size) {
  if (header?.format !== FORMAT) {
    throw new Error(`the model has format ${header?.format}, and this engine reads format ${FORMAT}; export it again`);
  }
  if (size !== header.size) {
    const found = `${size.toLocaleString("en")} bytes of ${header.size.toLocaleString("en")}`;
    throw new Error(`the model's file is ${size < header.size ? "cut short" : "too long"}: there are ${found}; get it again`);
  }
}

/** {shape, matrix, values} of a tensor: a matrix, or of what is none its numbers. */
function readTensor({ names: [name], shape, dtype, offset, scales }, buffer, memory) {
  const count = countNumbers(shape);
  checkExtent(name, dtype in BYTES_PER_NUMBER && offset + count * BYTES_PER_NUMBER[dtype] <= buffer.byteLength);
  const values = readNumbers(dtype, buffer, offset, count, memory);
  if (dtype !== "int8") {
    checkFinite(name, values);
    return { shape, matrix: null, values };
  }
  checkExtent(name, scales + 4 * shape[0] <= buffer.byteLength);
  const rowScales = readNumbers("float32", buffer, scales, shape[0], memory);
  checkFinite(name, rowScales);
  return { shape, matrix: new Matrix(shape[0], shape[1], values, rowScales), values: null };
}

/** Numbers are little-endian, as are all machines that browsers run on. */
function readNumbers(dtype, buffer, offset, count, memory) {
  if (dtype === "int8") return memory.keep(new Int8Array(buffer, offset, count));
  if (dtype === "float32") return memory.keep(new Float32Array(buffer, offset, count));
  const values = memory.allocate(Float32Array, count);
  new Uint16Array(buffer, offset, count).forEach((bits, i) => {
    values[i] = decodeFloat16(bits);
  });
  return values;
}

/** The number of the 16 bits of a float16. */
function decodeFloat16(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 0x1f, bits & 0x3ff];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
}

function checkExtent(name, fits) {
  if (!fits) throw new Error(`the weight ${name} is not where the model's header says; get the file again`);
}

function checkFinite(name, values) {
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i])) continue;
    throw new Error(`the weight ${name} has a value that is no finite number; export the model again`);
  }
}
