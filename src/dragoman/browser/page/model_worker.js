/* The worker of one model: it decodes the model once, then answers requests, one after the other.

     {id, path: "open", body} → {progress} … {id, answer: {description, card}}
     {id, path, body}         → {id, answer} or {id, refusal}: JSON, in which no number is infinite
     {cancel: id}             → nothing more is said about that request */

import { loadModel } from "../engine/model_loading.js";
import { buildPredictor } from "../engine/predictor.js";
import { sha256 } from "../engine/sha256.js";
import { answerRequest } from "./answers.js";
import { decodeBlock } from "./data_blocks.js";

const DECODING = 0.5; // of the time that it takes to open a model

const running = new Map(); // id → AbortController
let predictor = null;
let last = Promise.resolve();

/** The model of the page's data blocks: what the page shows of it. */
async function openExported({ texts, header: headerBlock, weights: weightsBlock }) {
  const bytes = await decodeBlock(texts.header, headerBlock);
  if (sha256(bytes) !== headerBlock.sha256) throw new Error("the model's description was changed; get the file again");
  const { engine, description, card } = JSON.parse(new TextDecoder().decode(bytes));
  const weights = await decodeBlock(texts.weights, weightsBlock, (done) => postMessage({ progress: DECODING * done }));
  const onProgress = (done) => postMessage({ progress: DECODING + (1 - DECODING) * done });
  predictor = buildPredictor(engine, await loadModel(engine, weights.buffer, { onProgress }));
  return { description, card };
}

async function answerMessage({ id, path, body }, signal) {
  try {
    signal.throwIfAborted();
    const answer = path === "open" ? await openExported(body) : await answerRequest(path, body, predictor, signal);
    postMessage({ id, answer: JSON.stringify(answer) });
  } catch (error) {
    if (!signal.aborted) postMessage({ id, refusal: error.message });
  } finally {
    running.delete(id);
  }
}

addEventListener("message", ({ data }) => {
  if ("cancel" in data) return running.get(data.cancel)?.abort();
  const controller = new AbortController();
  running.set(data.id, controller);
  last = last.then(() => answerMessage(data, controller.signal));
});
