/* A model of Dragoman for pages and for Node: load(url) → predict(text | texts, options). Types are in index.d.ts. */

import { loadModel } from "./engine/model_loading.js";
import { buildPredictor } from "./engine/predictor.js";
import { sha256 } from "./engine/sha256.js";

const MANIFEST = "manifest.json";

/** The model in the folder at `url`, which is this module's own if none is given. */
export async function load(url = new URL("./", import.meta.url), { onProgress, signal } = {}) {
  const folder = await resolveFolder(url);
  const { files } = parseJSON(await readFile(folder, MANIFEST, signal), MANIFEST);
  const headerBytes = await readFile(folder, "model.json", signal);
  if (sha256(headerBytes) !== files["model.json"]?.sha256) {
    throw new Error("model.json is not the file that was exported; get the folder again");
  }
  const header = parseJSON(headerBytes, "model.json");
  const weights = await readFile(folder, "weights.bin", signal);
  const predictor = buildPredictor(header, await loadModel(header, weights.buffer, { onProgress, signal }));
  return { predict: predictor.predict, precision: header.precision, parameters: header.parameters };
}

/** The address of a folder, with a slash at its end; in Node, a text without a scheme is a path. */
async function resolveFolder(url) {
  const isPath = typeof url === "string" && isNode() && !/^[a-z][a-z\d+.-]+:/i.test(url);
  const base = globalThis.document?.baseURI ?? globalThis.location?.href;
  const address = isPath ? (await import("node:url")).pathToFileURL(url) : new URL(url, base);
  return address.pathname.endsWith("/") ? address : new URL(`${address.href}/`);
}

function isNode() {
  return typeof globalThis.process?.versions?.node === "string";
}

/** The bytes of a file of the folder. */
async function readFile(folder, name, signal) {
  const address = new URL(name, folder);
  if (address.protocol === "file:" && isNode()) {
    const content = await (await import("node:fs/promises")).readFile(address, { signal });
    return new Uint8Array(content).slice();
  }
  const response = await fetch(address, { signal });
  if (!response.ok) throw new Error(`${address}: the server answered with ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

function parseJSON(bytes, name) {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new Error(`${name} is not the file that was exported; get the folder again`);
  }
}
