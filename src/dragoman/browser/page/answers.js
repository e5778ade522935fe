/* The answers of a model to the requests of the playground, as the server of `dragoman serve` has them.

     path, body ─answerRequest→ what POST path answers with */

import { computeAlignment, traceBeam, traceSteps } from "../engine/view_data.js";

const MAX_CHARACTERS = 50_000; // of one text: as many as the server reads
const RESULT_FIELDS = [
  "text",
  "score",
  "log_prob",
  "tokens",
  "log_probs",
  "finish_reason",
  "source_tokens",
  "source_truncated",
  "attention",
];

const ROUTES = {
  "v1/predict": predictInputs,
  "v1/score": scoreInputs,
  "v1/inspect/alignment": ({ source, target, beam }, predictor, signal) =>
    ofOneSource(computeAlignment, source, predictor, { target, beam, signal }),
  "v1/inspect/beam": ({ source, beam }, predictor, signal) => ofOneSource(traceBeam, source, predictor, { beam, signal }),
  "v1/inspect/steps": ({ source, target, prefix, top }, predictor, signal) =>
    ofOneSource(traceSteps, source, predictor, { target, prefix, top, signal }),
};

/** The answer to a request; an Error says why there is none. */
export function answerRequest(path, body, predictor, signal) {
  const { source, target, inputs = [] } = body;
  for (const input of [{ source, target }, ...inputs]) checkLength(input);
  return ROUTES[path](body, predictor, signal);
}

function checkLength(input) {
  const texts = { source: input.source?.source ?? input.source, reference: input.target };
  for (const [name, text] of Object.entries(texts)) {
    if (typeof text !== "string" || text.length <= MAX_CHARACTERS) continue;
    const [found, most] = [text.length, MAX_CHARACTERS].map((count) => count.toLocaleString("en"));
    throw new Error(`the ${name} has ${found} characters; give at most ${most}`);
  }
}

async function predictInputs({ inputs, model, ...options }, predictor, signal) {
  const results = [];
  for (const { source, source_lang, target_lang } of inputs) {
    results.push(toResult(await predictor.predict(source, { ...options, source_lang, target_lang, signal })));
  }
  return { model, results };
}

function toResult(prediction) {
  const fields = RESULT_FIELDS.map((name) => [name, prediction[name]]);
  return { ...Object.fromEntries(fields), alternatives: prediction.alternatives.map(toResult) };
}

async function scoreInputs({ inputs, model }, predictor, signal) {
  const results = [];
  for (const { target, ...source } of inputs) {
    const { log_prob, log_probs } = await ofOneSource(computeAlignment, source, predictor, { target, signal });
    results.push({ log_prob, log_probs });
  }
  return { model, results };
}

/** A view of an input {source, source_lang, target_lang}. */
function ofOneSource(compute, { source, source_lang, target_lang }, predictor, options) {
  const given = Object.entries({ ...options, source_lang, target_lang }).filter(([, value]) => value !== undefined);
  return compute(predictor, source, Object.fromEntries(given));
}
