/* The whole model: p(y | x) = Π_t p(y_t | y_<t, x).

     source ids ─embed→ x ─encoder→ memory ─decoder(embedded target)→ o ─output layer→ log p over the vocabulary

   A head instead of a decoder predicts labels for the source or its positions. A search uses `start` and `step`.

   S source positions, k hypotheses, D width, V vocabulary. */

import { buildDecoder } from "./decoders.js";
import { buildEncoder } from "./encoders.js";
import { buildHead } from "./heads.js";
import { buildPointer } from "./pointer.js";
import { BOS_ID } from "./special_ids.js";
import { FloatBuffer } from "./tensors.js";
import { EOS_ID } from "./text_vocabulary.js";

/** The model of a header's `model` options, from its weights. */
export function buildModel(options, weights) {
  const { width } = options;
  const sourceTable = weights.at("frontend.table").matrix("weight");
  const targetTable = options.decoder === null ? null : weights.at("embedding.table").matrix("weight");
  const encoder = buildEncoder(options.encoder, weights.at("encoder"), width);
  const decoder = options.decoder === null ? null : buildDecoder(options.decoder, weights.at("decoder"), width);
  const head = options.head === null ? null : buildHead(options.head, weights.at("head"));
  const pointer = options.pointer === null ? null : buildPointer(options.pointer, weights.at("pointer"), decoder.d, width);
  const output = weights.linear("output");
  const embedded = new FloatBuffer();

  /** The vectors (n, D) of n tokens, times the factor of their table. */
  function embed(table, ids, factor, out) {
    ids.forEach((id, i) => table.copyRow(id, out, i * width, factor));
    return out;
  }

  /** The memory of a source; `record` gets the weights of every attention. */
  function encode(ids, record = null) {
    const x = embed(sourceTable, ids, options.scale_source, new Float32Array(ids.length * width));
    return { ...encoder(x, ids.length, record), ids };
  }

  /** The state before the first token; of a language model, the source is the beginning of the text. */
  function start(ids, record = null) {
    if (!options.continues_text) return startFrom(encode(ids, record), null, record);
    const text = [BOS_ID, ...ids];
    return startFrom(encode(text.slice(0, -1), record), text.at(-1), record);
  }

  /** `first` replaces the <s> that a search begins with; null: nothing does. */
  function startFrom(memory, first, record) {
    const source = pointer === null ? null : pointer.prepareSource(memory);
    return { decoder: decoder.start(memory, record), source, first };
  }

  /** The last tokens of k hypotheses → {log p (k, V) of what comes next, attention (k, S) or null}; valid until the next. */
  function step(tokens, state, record = null) {
    const k = tokens.length;
    const last = state.first === null ? tokens : tokens.map(() => state.first);
    state.first = null;
    const y = embed(targetTable, last, options.scale_target, embedded.take(k * width));
    const result = decoder.step(y, k, state.decoder, record);
    const logits = output.apply(result.o, k);
    if (pointer === null) return { logP: outputLogProbs(logits, k), attention: result.attention };
    const logP = logSoftmax(logits, k);
    const a = pointer.addCopies(logP, result.o, y, k, state.source);
    return { logP: outputLogProbs(logP, k), attention: result.attention ?? a };
  }

  /** log p (n, V) of labels, n, and the weights of attention pooling, or null. */
  function labelScores(ids, record = null) {
    const { o, n, attention } = head.hidden(encode(ids, record));
    return { logP: outputLogProbs(output.apply(o, n), n), n, attention };
  }

  return { options, head, vocabularySize: output.rows, start, step, labelScores };
}

/** log p (n, V) of the tokens that a model may generate, in place; −∞ for <pad> and <s>, the first two, which it may not. */
function outputLogProbs(z, n) {
  const V = z.length / n;
  for (let start = 0; start < z.length; start += V) z.fill(-Infinity, start, start + EOS_ID);
  return logSoftmax(z, n);
}

/** z (n, V) ← z − log Σ exp z of each row, in place. */
function logSoftmax(z, n) {
  const V = z.length / n;
  for (let start = 0; start < z.length; start += V) {
    let max = -Infinity;
    for (let i = start; i < start + V; i++) if (z[i] > max) max = z[i];
    let sum = 0;
    for (let i = start; i < start + V; i++) sum += Math.exp(z[i] - max);
    const norm = max + Math.log(sum);
    for (let i = start; i < start + V; i++) z[i] -= norm;
  }
  return z;
}
