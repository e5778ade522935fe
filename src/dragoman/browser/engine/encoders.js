/* Encoders: an embedded source x (S, D_in) → a memory.

     states (S', D)     a state for every position, S' = `count`, D = `width`
     summary (D)        one vector for the whole source
     final              the last {h, c} of every layer of a recurrent encoder; else null
     values (S', D)     what attention averages, where that is not the states; else null

   An encoder is a function (x, n, record) → memory. */

import { GatedConvolution, addScaled } from "./convolution.js";
import { buildPositions } from "./positions.js";
import { RecurrentStack } from "./recurrent.js";
import { meanOfRows } from "./tensors.js";
import { TransformerStack } from "./transformer_stack.js";

const ENCODERS = {
  rnn: buildRecurrentEncoder,
  pyramid: buildPyramidEncoder,
  conv: buildConvEncoder,
  transformer: buildTransformerEncoder,
  identity: buildIdentityEncoder,
  none: buildNoEncoder,
};

/** `width` is that of the embeddings. */
export function buildEncoder(part, weights, width) {
  return ENCODERS[part.name](part, weights, width);
}

function createMemory(states, count, width, { summary, final = null, values = null }) {
  return { states: states.slice(), count, width, summary: summary ?? meanOfRows(states, count, width), final, values };
}

/** h_t = f(x_t, h_{t-1}); with `reverse` x_1 is read last. */
function buildRecurrentEncoder(part, weights) {
  const stack = new RecurrentStack(weights.at("stack"), part);
  return function encodeRecurrent(x, n) {
    const { y, final } = stack.forward(part.reverse ? reverseRows(x, n) : x, n);
    const states = part.reverse ? reverseRows(y, n) : y;
    return createMemory(states, n, stack.d, { summary: final.at(-1).h, final });
  };
}

function reverseRows(x, n) {
  const d = n > 0 ? x.length / n : 0;
  const y = new Float32Array(x.length);
  for (let i = 0; i < n; i++) y.set(x.subarray(i * d, (i + 1) * d), (n - 1 - i) * d);
  return y;
}

/** A bidirectional RNN, and more above it, each over pairs of the states below: ⌈S/2ⁿ⌉ states. */
function buildPyramidEncoder(part, weights) {
  const options = { cell: part.cell, reset: "after", layers: 1, residual: 0 };
  const names = ["bottom", ...Array.from({ length: part.layers }, (_, i) => `upper.${i}`)];
  const stacks = names.map((name) => new RecurrentStack(weights.at(name), options));
  return function encodePyramid(x, n) {
    const finals = [];
    let [states, count] = [x, n];
    stacks.forEach((stack, i) => {
      if (i > 0) {
        const pairs = new Float32Array(Math.ceil(count / 2) * 2 * stack.d); // the last of an odd number meets zeros
        pairs.set(states);
        [states, count] = [pairs, Math.ceil(count / 2)];
      }
      const { y, final } = stack.forward(states, count);
      states = y;
      finals.push(...final);
    });
    return createMemory(states, count, stacks[0].d, { summary: finals.at(-1).h, final: finals });
  };
}

/** e = x + position      h⁰ = W_in e      hˡ_i = (GLU(conv_k(hˡ⁻¹)_i) + hˡ⁻¹_i)·√½      z = W_out hᴺ */
function buildConvEncoder(part, weights, width) {
  const position = buildPositions(part.position, weights.at("position"), width, null);
  const [input, output] = [weights.linear("input_proj"), weights.linear("output_proj")];
  const layers = Array.from(
    { length: part.layers },
    (_, i) => new GatedConvolution(weights.at(`layers.${i}`), input.rows, part.kernel),
  );
  return function encodeConv(x, n) {
    const e = x.slice();
    position.add?.(e, n, 0, 1);
    const h = input.apply(e, n);
    for (const layer of layers) addScaled(h, layer.forward(h, n, (part.kernel - 1) / 2));
    const z = output.apply(h, n);
    return createMemory(z, n, width, { values: addScaled(e, z) });
  };
}

function buildTransformerEncoder(part, weights, width) {
  const stack = new TransformerStack(weights.at("stack"), width, part, {
    isCausal: false,
    hasMemory: false,
    kind: "encoder",
  });
  return (x, n, record) => createMemory(stack.forward(x, n, record), n, stack.d, {});
}

function buildIdentityEncoder(part, weights, width) {
  const position = buildPositions(part.position, weights.at("position"), width, null);
  return function encodeIdentity(x, n) {
    const h = x.slice();
    position.add?.(h, n, 0, 1);
    return createMemory(h, n, width, {});
  };
}

function buildNoEncoder(part, weights, width) {
  return (x, n) => createMemory(x, n, width, {});
}
