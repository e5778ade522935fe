/* The playground's API, answered in the page itself: the same exports as the playground's server.js.

     ask("v1/predict", body) ─ {id, path, body} → the worker of a model ─ {id, answer} | {id, refusal} → answer, or a Refusal

   `contents` are the models of this file, as export.py writes them into its script: the page's policy allows that script by
   its hash, and the hash of every header is in it, so what was changed afterwards is noticed. */

import { MODELS, WORKER } from "./contents.js";
import { decodeBlock } from "./data_blocks.js";

const BROKEN = "the computation has ended unexpectedly, maybe for want of memory; reload the page";

export class Refusal extends Error {
  constructor(message, status, { field = null, seconds = null } = {}) {
    super(message);
    Object.assign(this, { status, field, seconds });
  }
}

/** There is no key: nobody else can ask this page. */
export function keepKey() {}

/** True hides the links to pages that only a server has. */
export const hasKey = () => true;

let opening = null;

/** Every model of the file, opened once; `onProgress` hears the fraction that is done. */
export function openModels(onProgress = () => {}) {
  opening ??= startWorkers(onProgress);
  return opening;
}

async function startWorkers(onProgress) {
  if (typeof DecompressionStream === "undefined") throw new Refusal("this browser is too old for this page", 500);
  const script = new Blob([await decodeBlock(WORKER.text, WORKER)], { type: "text/javascript" });
  const source = URL.createObjectURL(script);
  const done = MODELS.map(() => 0);
  const tell = (i) => (fraction) => {
    done[i] = fraction;
    onProgress(done.reduce((sum, one) => sum + one, 0) / done.length);
  };
  return Promise.all(MODELS.map((model, i) => openModel(model, i, source, tell(i))));
}

/** Starts the worker of a model and gives it the model's data: {description, card, ask}. */
async function openModel({ name, ...data }, index, source, onProgress) {
  const worker = new Worker(source);
  const waiting = new Map();
  let [count, isBroken] = [0, false];

  /** The answer of the worker to a message. */
  function send(message, signal) {
    if (isBroken) return Promise.reject(new Refusal(BROKEN, 500));
    const id = (count += 1);
    return new Promise((resolve, reject) => {
      const stop = () => {
        waiting.delete(id);
        worker.postMessage({ cancel: id });
        reject(signal.reason);
      };
      waiting.set(id, (settled) => {
        signal?.removeEventListener("abort", stop);
        waiting.delete(id);
        if ("answer" in settled) resolve(JSON.parse(settled.answer));
        else if (isBroken) reject(new Refusal(BROKEN, 500));
        else reject(new Refusal(settled.refusal, 422, { field: "inputs" }));
      });
      signal?.addEventListener("abort", stop, { once: true });
      worker.postMessage({ id, ...message });
    });
  }

  worker.addEventListener("message", ({ data: { id, progress, ...settled } }) => {
    if (progress !== undefined) onProgress(progress);
    else waiting.get(id)?.(settled);
  });
  worker.addEventListener("error", (event) => {
    event.preventDefault();
    isBroken = true;
    for (const settle of [...waiting.values()]) settle({});
  });

  const texts = { header: takeText(`header-${index}`), weights: takeText(`weights-${index}`) };
  try {
    const { description, card } = await send({ path: "open", body: { ...data, texts } });
    return { description, card, ask: (path, body, signal) => send({ path, body }, signal) };
  } catch (error) {
    worker.terminate();
    throw new Refusal(`${name}: ${error.message}`, 500);
  }
}

/** The text of a data block, which is not needed on the page any more; "" where a cut file has none. */
function takeText(id) {
  const block = document.getElementById(id);
  const text = block?.textContent ?? "";
  block?.remove();
  return text;
}

/** As server.js does it: an answer, a Refusal, or the signal's AbortError. */
export async function ask(path, body, signal) {
  const models = await openModels();
  signal?.throwIfAborted();
  if (path === "v1/models") return { models: models.map(({ description }) => description) };
  const model = models.find(({ description }) => description.name === body.model) ?? models[0];
  if (path !== "v1/predict") return model.ask(path, body, signal);
  const results = [];
  for (const input of body.inputs) {
    // One at a time: what else is asked meanwhile does not wait for a whole file.
    results.push(...(await model.ask(path, { ...body, inputs: [input] }, signal)).results);
  }
  return { model: body.model, results };
}
