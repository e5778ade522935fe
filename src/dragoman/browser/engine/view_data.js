/* The data of the views "steps", "beam" and "alignment", in the shapes that dragoman.inspection.views returns.

   Each takes options: those of its view in Python, `signal`, and the languages `source_lang` and `target_lang`. */

import { applyConstraints } from "./constraints.js";
import { recordAttention } from "./decoding.js";
import { pauseRegularly } from "./pauses.js";
import { BOS_ID } from "./special_ids.js";
import { isBlankText } from "./text_unicode.js";
import { EOS_ID } from "./text_vocabulary.js";
import { topTokens } from "./top_tokens.js";
import { mergeWords } from "./word_alignment.js";

const DIGITS = 1e4; // of a weight

/** What is asked of a view: a text that the model reads whole. */
function prepareView(predictor, text, languages) {
  const request = predictor.prepareRequest(text, languages);
  const { isTruncated, fullLength } = request.input;
  if (isBlankText(text) && !predictor.continuesText) throw new Error("the source is blank; give a text");
  if (isTruncated) checkLength("source", fullLength, request.input.source.length);
  return request;
}

function checkLength(side, count, limit) {
  if (limit === null || count <= limit) return;
  const [found, most] = [count, limit].map((n) => n.toLocaleString("en"));
  throw new Error(`the ${side} has ${found} tokens, and the model reads ${most}; shorten it`);
}

// -- steps --------------------------------------------------------------------------------------------------------------

/** The most probable next tokens at each step of a greedy search, from a prefix of ids on and along a target. */
export const traceSteps = async (predictor, text, { target = null, prefix = [], top = 8, signal = null, ...languages } = {}) => {
  checkPrefix(predictor, prefix);
  const request = prepareView(predictor, text, languages);
  const forced = target === null ? null : predictor.codec.encodeTarget(target, text, request.languages);
  const pause = pauseRegularly(signal);
  const free = await decodeSteps(predictor, request, prefix, top, pause);
  const along = forced === null ? null : await decodeSteps(predictor, request, forced, top, pause);
  const diverges = along === null ? null : firstDifference(free.steps, along.steps);
  return { view: "steps", source_text: text, prefix, free, forced: along, diverges };
};

function checkPrefix({ model }, prefix) {
  const wrong = prefix.find((id) => !Number.isInteger(id) || id <= EOS_ID || id >= model.vocabularySize);
  if (wrong === undefined) return;
  throw new Error(`the prefix has the token ${wrong}; allowed are ids from ${EOS_ID + 1} to ${model.vocabularySize - 1}`);
}

/** Decode along the forced tokens, then greedily until </s> or the maximum length; describe each step. */
async function decodeSteps({ model, codec, decodeText }, request, forced, top, pause) {
  const [ids, steps] = [[], []];
  const given = forced.filter((id) => id !== EOS_ID).length;
  checkLength("target", given + 1, request.maxPositions);
  const state = model.start(request.input.source);
  const maxLength = Math.max(request.constraints.maxLength, given);
  for (let t = 0; t <= maxLength; t++) {
    await pause();
    const logP = model.step([t > 0 ? ids[t - 1] : BOS_ID], state).logP.slice();
    const isForced = t < forced.length;
    const token = isForced ? forced[t] : chooseToken(logP, ids, request.constraints);
    if (token === null || (t === maxLength && token !== EOS_ID)) break;
    ids.push(token);
    steps.push(describePosition(codec, logP, token, isForced, top));
    if (token === EOS_ID) break;
  }
  return { text: decodeText(request, ids), log_prob: steps.reduce((sum, one) => sum + one.log_prob, 0), steps };
}

/** The most probable token that the constraints allow; null where they allow none. */
function chooseToken(logP, ids, constraints) {
  const allowed = logP.slice();
  applyConstraints(allowed, [ids], constraints);
  const { tokens, values } = topTokens(allowed, 0, allowed.length, 1);
  return values[0] === -Infinity ? null : tokens[0];
}

function describePosition(codec, logP, token, forced, top) {
  const possible = logP.reduce((count, x) => count + (x > -Infinity ? 1 : 0), 0);
  const best = topTokens(logP, 0, logP.length, Math.min(top, possible));
  const pieces = codec.target.pieces([token, ...best.tokens]);
  return {
    id: token,
    token: pieces[0],
    log_prob: logP[token],
    rank: 1 + logP.reduce((count, x) => count + (x > logP[token] ? 1 : 0), 0),
    entropy: entropyOf(logP.map(Math.exp)),
    forced,
    top: best.tokens.map((id, i) => ({ id, token: pieces[i + 1], log_prob: best.values[i] })),
  };
}

/** The index of the first step whose tokens differ, or where one side has ended; null if equal. */
function firstDifference(free, forced) {
  const length = Math.max(free.length, forced.length);
  for (let t = 0; t < length; t++) if (free[t]?.id !== forced[t]?.id) return t;
  return null;
}

/** −Σ a log a, in nats. */
function entropyOf(a) {
  return a.reduce((sum, x) => (x > 0 ? sum - x * Math.log(x) : sum), 0);
}

// -- beam ---------------------------------------------------------------------------------------------------------------

/** Every hypothesis that a beam search kept and dropped. */
export const traceBeam = async (predictor, text, { beam = 5, signal = null, ...languages } = {}) => {
  const { options } = prepareView(predictor, text, { search: "beam", beam, nbest: beam, ...languages });
  const best = await predictor.predict(text, { search: "beam", beam, nbest: beam, trace: true, signal, ...languages });
  const predictions = [best, ...best.alternatives].filter(({ score }) => score > -Infinity);
  const nodes = best.trace.map(({ piece, token, ...rest }) => ({
    ...rest,
    token: piece,
    token_id: token,
    best: false,
    reference: false,
  }));
  const tree = new Map(nodes.map((node) => [`${node.parent} ${node.token_id}`, node]));
  const results = predictions.map((one) => describeResult(one, tree));
  if (predictions.length > 0) for (const node of findPath(tree, idsWithEnd(predictions[0]))) node.best = true;
  const rule = options.length_rule.name ?? options.length_rule;
  return { view: "beam", source_text: text, beam, rule, nodes, results, reference: null, verdict: null };
};

/** The nodes along a sequence of tokens, as far as the tree has them. */
function findPath(tree, ids) {
  const path = [];
  for (const id of ids) {
    const node = tree.get(`${path.at(-1)?.id ?? 0} ${id}`);
    if (node === undefined) break;
    path.push(node);
  }
  return path;
}

function idsWithEnd({ ids, finish_reason: reason }) {
  return reason === "eos" ? [...ids, EOS_ID] : ids;
}

function describeResult(prediction, tree) {
  const { text, tokens, score, log_prob, finish_reason } = prediction;
  const ids = idsWithEnd(prediction);
  const path = findPath(tree, ids);
  return { text, tokens, score, log_prob, finish_reason, node: path.length === ids.length ? (path.at(-1)?.id ?? null) : null };
}

// -- alignment ----------------------------------------------------------------------------------------------------------

/** Which source tokens each target token attends to, layer by layer and head by head. */
export const computeAlignment = async (predictor, text, { target = null, beam, signal = null, ...languages } = {}) => {
  const { codec, model, stride, predict, decodeText } = predictor;
  const request = prepareView(predictor, text, languages);
  const source = request.input.source;
  const given = target === null ? null : codec.encodeTarget(target, text, request.languages);
  const search = beam === undefined ? languages : { beam, ...languages };
  const ids = given ?? [...(await predict(text, { signal, ...search })).ids, EOS_ID];
  checkLength("target", ids.length, request.maxPositions);
  const { logProbs, alignment, layers } = await recordAttention(model, source, ids, pauseRegularly(signal));
  const pieces = codec.target.pieces(ids);
  const own = model.options.is_decoder_only ? { tokens: [...request.sourceTokens, "<s>", ...pieces.slice(0, -1)] } : {};
  const maps = splitKinds(layers, model.options.is_decoder_only, source.length, ids.length);
  const words = alignment && mergeWords(codec, stride, request.sourceTokens, source, ids, alignment);
  return {
    view: "alignment",
    source_text: text,
    target_text: target ?? decodeText(request, ids.slice(0, -1)),
    has_user_target: target !== null,
    source: request.sourceTokens,
    target: pieces,
    inputs: ["<s>", ...pieces.slice(0, -1)],
    log_probs: logProbs,
    log_prob: logProbs.reduce((sum, x) => sum + x, 0),
    soft: alignment?.map(roundRow) ?? null,
    soft_blocker: alignment === null ? "the alignment shows attention from target to source, and the decoder has none" : null,
    maps: maps.map((layer) => ({ ...describeLayer(layer), ...(layer.kind === "decoder" ? own : {}) })),
    left_out: [],
    words: words && { ...words, soft: words.soft.map(roundRow) },
    media_preview: null,
    ablated: [],
    log_prob_ablated: null,
    log_probs_ablated: null,
  };
};

/** Layers in the order of their kinds; a decoder-only model's rows are x_1 … x_S y_1 … y_T, and have three kinds. */
function splitKinds(layers, isDecoderOnly, S, T) {
  const padded = layers.map(({ kind, layer, heads }) => {
    const columns = isDecoderOnly ? S + T : Math.max(...heads[0].map((row) => row.length));
    return { kind, layer, heads: heads.map((rows) => rows.map((row) => [...row, ...new Array(columns - row.length).fill(0)])) };
  });
  const split = isDecoderOnly
    ? padded.flatMap(({ layer, heads }) => [
        { kind: "cross", layer, heads: heads.map((rows) => rows.slice(S).map((row) => row.slice(0, S))) },
        { kind: "encoder", layer, heads: heads.map((rows) => rows.slice(0, S).map((row) => row.slice(0, S))) },
        { kind: "decoder", layer, heads: heads.map((rows) => rows.slice(S)) },
      ])
    : padded;
  return ["cross", "encoder", "decoder"].flatMap((kind) => split.filter((one) => one.kind === kind));
}

function describeLayer({ kind, layer, heads }) {
  return {
    kind,
    layer,
    heads: heads.map((rows, i) => ({
      name: `${kind}.${layer}.${i + 1}`,
      entropy: rows.reduce((sum, row) => sum + entropyOf(row), 0) / rows.length,
      weights: rows.map(roundRow),
    })),
  };
}

function roundRow(row) {
  return row.map((x) => Math.round(x * DIGITS) / DIGITS);
}
