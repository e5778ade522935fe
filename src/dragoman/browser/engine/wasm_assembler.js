/* Functions in the text format of WebAssembly → the bytes of a module, for the few instructions that the kernel uses.

   A function is {name, params: names of i32, locals: {name: type}, body: lines of instructions}. It has no result; all
   functions are exported. The module imports one memory, as env.memory. A memory access may be followed by offset=N. */

const TYPES = { i32: 0x7f, f32: 0x7d, v128: 0x7b };
const EMPTY_BLOCK = 0x40;

const OPCODES = {
  loop: [0x03, EMPTY_BLOCK],
  end: [0x0b],
  br_if: [0x0d],
  "local.get": [0x20],
  "local.set": [0x21],
  "local.tee": [0x22],
  "i32.const": [0x41],
  "i32.lt_u": [0x49],
  "i32.add": [0x6a],
  "i32.mul": [0x6c],
  "f32.load": [0x2a, 2],
  "f32.store": [0x38, 2],
  "f32.add": [0x92],
  "f32.mul": [0x94],
  "v128.load": [0xfd, 0x00, 0],
  "v128.load8x8_s": [0xfd, 0x01, 0],
  "i32x4.splat": [0xfd, 0x11],
  "f32x4.extract_lane": [0xfd, 0x1f],
  "i32x4.extend_low_i16x8_s": [0xfd, 0xa7, 0x01],
  "i32x4.extend_high_i16x8_s": [0xfd, 0xa8, 0x01],
  "f32x4.add": [0xfd, 0xe4, 0x01],
  "f32x4.mul": [0xfd, 0xe6, 0x01],
  "f32x4.convert_i32x4_s": [0xfd, 0xfa, 0x01],
};

/** The bytes of a module with these functions. */
export function assembleModule(functions) {
  const signatures = functions.map(({ params }) => [0x60, ...list(params.map(() => [TYPES.i32])), 0]);
  return Uint8Array.from([
    ...[0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0], // "\0asm", version 1
    ...section(1, list(signatures)),
    ...section(2, list([[...text("env"), ...text("memory"), 0x02, 0x00, 1]])), // a memory of at least one page
    ...section(3, list(functions.map((_, i) => unsigned(i)))),
    ...section(7, list(functions.map(({ name }, i) => [...text(name), 0x00, ...unsigned(i)]))),
    ...section(10, list(functions.map(assembleFunction))),
  ]);
}

function assembleFunction({ params, locals, body }) {
  const names = [...params, ...Object.keys(locals)];
  const declared = list(Object.values(locals).map((type) => [1, TYPES[type]]));
  const lines = body.split("\n").map((line) => line.replace(/;;.*/, "").trim());
  const code = lines.filter((line) => line !== "").flatMap((line) => assembleInstruction(line.split(/\s+/), names));
  const bytes = [...declared, ...code, ...OPCODES.end];
  return [...unsigned(bytes.length), ...bytes];
}

function assembleInstruction([operation, operand], names) {
  const opcode = OPCODES[operation];
  if (opcode === undefined) throw new Error(`the assembler has no instruction ${operation}`);
  if (operation.startsWith("local.")) return [...opcode, ...unsigned(names.indexOf(operand.slice(1)))];
  if (operation.includes(".load") || operation.includes(".store")) {
    return [...opcode, ...unsigned(Number(operand?.replace("offset=", "") ?? 0))];
  }
  if (operand === undefined) return opcode;
  return [...opcode, ...(operation === "i32.const" ? signed(Number(operand)) : unsigned(Number(operand)))];
}

function section(id, bytes) {
  return [id, ...unsigned(bytes.length), ...bytes];
}

function list(items) {
  return [...unsigned(items.length), ...items.flat()];
}

function text(name) {
  return list([...name].map((character) => [character.charCodeAt(0)]));
}

/** LEB128 */
function unsigned(value) {
  const bytes = [];
  for (; value >= 0x80; value = Math.floor(value / 0x80)) bytes.push((value % 0x80) | 0x80);
  return [...bytes, value];
}

/** LEB128 of a number that is not negative: one more bit, which is its sign. */
function signed(value) {
  const bytes = [];
  for (; value >= 0x40; value = Math.floor(value / 0x80)) bytes.push((value % 0x80) | 0x80);
  return [...bytes, value];
}
