/* Texts → predictions, with the fields of Python's Prediction. */

import { decodeIds, recordAttention } from "./decoding.js";
import { buildConstraints, countHypotheses, resolveOptions } from "./generation.js";
import { pauseRegularly } from "./pauses.js";
import { buildCodec } from "./text_codec.js";
import { buildInputs } from "./text_inputs.js";
import { isBlankText } from "./text_unicode.js";
import { EOS_ID } from "./text_vocabulary.js";

/**
 * One output; scores are log-probabilities: higher is better.
 * @typedef {object} Prediction
 * @property {string} text
 * @property {number} score  under the search's length rule
 * @property {number} log_prob  of the whole sequence
 * @property {string[]} tokens
 * @property {number[]} log_probs  of each token, and of </s> where the output ended with it
 * @property {"eos" | "length" | "no_valid_token" | "empty_source"} finish_reason
 * @property {string[]} source_tokens
 * @property {boolean} source_truncated  the source was too long and only its beginning was read
 * @property {Prediction[]} alternatives  the next best
 * @property {number[][] | null} attention  (target tokens with </s>, source tokens), on request
 * @property {object[] | null} trace  what the beam kept and dropped at each step, on request
 * @property {number[]} ids
 */

/**
 * @typedef {object} PredictOptions
 * @property {number} [beam]
 * @property {number} [nbest]
 * @property {boolean} [attention]  whether the prediction has the attention weights
 * @property {boolean} [trace]  whether it has the trace of the beam
 * @property {string} [source_lang]
 * @property {string} [target_lang]
 * @property {AbortSignal} [signal]  cancels the prediction
 * Besides these, the options of `generation:` that generation.js has, such as max_new_tokens and prefix.
 */

/** What a loaded model answers to texts: `header` is its header, `model` from `loadModel`. */
export function buildPredictor(header, model) {
  const codec = buildCodec(header.codec);
  const inputs = buildInputs(codec, header.inputs);
  const continuesText = header.inputs.continues_text;

  /** What is asked for a text: its ids, options, constraints and languages. */
  function prepareRequest(text, { source_lang: sourceLanguage, target_lang: targetLanguage, ...overrides }) {
    const languages = { sourceLanguage, targetLanguage };
    const options = resolveOptions(header.generation, overrides);
    if (options.nbest > countHypotheses(options) && model.head === null) {
      throw new Error(`nbest ${options.nbest} needs a beam of at least ${options.nbest}, not ${countHypotheses(options)}`);
    }
    const input = inputs.encodeInput(text, languages);
    const positions = header.limits.max_target_positions;
    const maxPositions = positions === null || !model.options.is_decoder_only ? positions : positions - input.source.length;
    const constraints = buildConstraints(options, {
      sourceLength: input.source.length,
      targetPrefix: codec.targetPrefix(languages),
      encodePhrase: (phrase) => codec.encodePhrase(phrase, text),
      maxPositions,
    });
    return { text, input, options, constraints, languages, maxPositions, sourceTokens: inputs.sourceLabels(input) };
  }

  /** The text of target ids; that of a language model includes the source. */
  function decodeText({ text, input }, ids) {
    return codec.decodeTarget(continuesText ? [...input.source, ...ids] : ids, text);
  }

  function toPrediction(request, { tokens, logProbs, score, finishReason }) {
    return {
      text: decodeText(request, tokens),
      score,
      log_prob: logProbs.reduce((sum, x) => sum + x, 0),
      tokens: codec.target.pieces(tokens),
      log_probs: logProbs,
      finish_reason: finishReason,
      source_tokens: request.sourceTokens,
      source_truncated: request.input.isTruncated,
      alternatives: [],
      attention: null,
      trace: null,
      ids: tokens,
    };
  }

  async function predictText(text, { attention = false, trace = false, signal = null, ...overrides }) {
    const pause = pauseRegularly(signal);
    const request = prepareRequest(text, overrides);
    if (trace && request.options.search !== "beam") throw new Error("trace needs a beam search; set search to beam");
    if (isBlankText(text) && !continuesText) {
      return toPrediction(request, { tokens: [], logProbs: [], score: 0, finishReason: "empty_source" });
    }
    const { input, options, constraints } = request;
    const nodes = trace ? [] : null;
    let weights = null;
    let hypotheses;
    if (model.head === null) {
      hypotheses = await decodeIds(model, input.source, options, constraints, pause, nodes);
    } else {
      const { logP, n, attention: pooling } = model.labelScores(input.source);
      hypotheses = model.head.predict(logP, n, options.nbest);
      if (pooling !== null) weights = [Array.from(pooling)];
    }
    const nothing = { tokens: [], logProbs: [], score: -Infinity, finishReason: "no_valid_token" };
    const predictions = hypotheses.slice(0, options.nbest).map((one) => toPrediction(request, one));
    const best = predictions[0] ?? { ...toPrediction(request, nothing), log_prob: -Infinity };
    best.alternatives = predictions.slice(1);
    if (attention && model.head === null && !continuesText) {
      weights = (await recordAttention(model, input.source, [...best.ids, EOS_ID], pause)).alignment;
    }
    best.attention = attention ? weights : null;
    best.trace = nodes?.map((node) => ({ ...node, piece: codec.target.pieces([node.token])[0] })) ?? null;
    return best;
  }

  /**
   * The prediction of a text, or a list of those of several.
   * @param {string | string[]} texts
   * @param {PredictOptions} [options]
   * @returns {Promise<Prediction | Prediction[]>}
   */
  async function predict(texts, options = {}) {
    if (typeof texts === "string") return predictText(texts, options);
    const predictions = [];
    for (const text of texts) {
      if (typeof text !== "string") throw new Error(`a source must be a text, found ${typeof text}`);
      predictions.push(await predictText(text, options));
    }
    return predictions;
  }

  return { codec, model, continuesText, stride: header.inputs.stride, predict, prepareRequest, decodeText };
}
