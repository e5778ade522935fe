/* Many sources, some at a time: [source, …] ─ POST /v1/predict ─→ [result, …], in order.

   A server that is busy is asked again after as long as it says. A chunk that is too much is cut; a source that is refused
   by itself has {refused: sentence} in place of a result. */

import { ask } from "./server.js";

const CHUNK = 64;
const BUSY = new Set([429, 503]);
const TOO_MUCH = new Set([413, 422, 504]);

/** `request(sources)` is the body for some of them; `told({done, wait})` hears how far it is, and of seconds to wait. */
export async function predictAll(sources, request, signal, told = () => {}) {
  const results = [];
  let size = CHUNK;
  while (results.length < sources.length) {
    const chunk = sources.slice(results.length, results.length + size);
    try {
      results.push(...(await askPatiently(request(chunk), signal, (wait) => told({ done: results, wait }))).results);
      size = Math.min(CHUNK, 2 * size);
    } catch (error) {
      if (!isOfInputs(error)) throw error;
      if (chunk.length > 1) size = Math.ceil(chunk.length / 4);
      else results.push({ refused: error.message });
    }
    told({ done: results, wait: 0 });
  }
  return results;
}

/** Whether fewer inputs may help: a model that is not there, say, refuses every one of them. */
function isOfInputs({ status, field }) {
  return TOO_MUCH.has(status) && (field == null || field.startsWith("inputs"));
}

async function askPatiently(body, signal, waits) {
  for (;;) {
    try {
      return await ask("v1/predict", body, signal);
    } catch (error) {
      if (!BUSY.has(error.status)) throw error;
      const seconds = error.seconds ?? 1;
      waits(seconds);
      await sleep(1000 * seconds * (1 + Math.random() / 2), signal); // not all who were refused at once
    }
  }
}

function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}
