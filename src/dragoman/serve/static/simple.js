/* The page of one box: a source, a button, the answer.

     text ─ lines, of long texts their sentences → [piece, …] ─ POST /v1/predict → answers, put together as the text was */

import { make } from "../views/dom.js";
import { predictAll } from "./chunks.js";
import { askForKey, listenForKey } from "./key.js";
import { SIDES, fillSources, listenForFiles, missing, sourcesOf } from "./media.js";
import { isOneLine, languagesFor, sendOnEnter } from "./model.js";
import { ask } from "./server.js";

const at = (id) => document.getElementById(id);
const sentences = new Intl.Segmenter(undefined, { granularity: "sentence" });
let models = [];
let asking = new AbortController();

const chosen = () => models.find(({ name }) => name === at("model").value);

/** The texts between line breaks, or between sentences, each with the white space around it. */
function piecesOf(text, model) {
  const lines = text.split(/(?<=\n)/);
  const pieces = isOneLine(model) ? lines : lines.flatMap((line) => Array.from(sentences.segment(line), ({ segment }) => segment));
  return pieces.map((piece) => /^(\s*)([^]*?)(\s*)$/.exec(piece).slice(1));
}

/** The whole answer: of one text piece by piece, of files, two sources or the beginning of a text in one go. */
async function answerOf(model, signal) {
  const texts = Object.fromEntries(SIDES.map((side) => [side, at(side).value]));
  const languages = languagesFor(model, at("language").value);
  const isText = model.source === "text" && model.second_source === null && model.kind === "pairs";
  const pieces = isText ? piecesOf(texts.source, model) : [["", sourcesOf(texts, model), ""]];
  const sources = pieces.map(([, piece]) => piece).filter(Boolean);
  const inputOf = (source) => ({ ...(typeof source === "string" ? { source } : source), ...languages });
  const results = await predictAll(sources, (some) => ({ model: model.name, inputs: some.map(inputOf) }), signal);
  const refused = results.find((one) => one.refused);
  if (refused) throw new Error(refused.refused);
  let next = 0;
  return pieces.map(([before, piece, after]) => before + (piece && results[next++].text) + after).join("");
}

async function answer() {
  const model = chosen();
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  say(missing({ source: "", second_source: "" }, model));
  if (!at("trouble").hidden) return;
  at("answer").setAttribute("aria-busy", "true");
  try {
    const text = await answerOf(model, signal);
    if (!signal.aborted) at("answer").textContent = text.trim() ? text : "(empty)";
  } catch (error) {
    if (!signal.aborted) trouble(error);
  }
  if (!signal.aborted) at("answer").removeAttribute("aria-busy");
}

function say(sentence) {
  at("trouble").textContent = sentence;
  at("trouble").hidden = !sentence;
}

function trouble(error) {
  if (error.status === 401) return askForKey(error.message);
  say(error.message);
}

function fillForm() {
  const model = chosen();
  fillSources(model);
  if (model.source === "text" && model.second_source === null) at("source-label").textContent = "Your text";
  at("language").replaceChildren(...model.languages.map((name) => make("option", {}, name)));
  if (model.languages.length) at("language").value = model.example.target_lang ?? model.languages[0];
  at("language-box").hidden = !model.languages.length;
  at("answer").textContent = "";
}

async function start() {
  try {
    ({ models } = await ask("v1/models"));
  } catch (error) {
    return trouble(error);
  }
  at("model").replaceChildren(...models.map(({ name }) => make("option", {}, name)));
  const wanted = new URLSearchParams(location.search).get("model");
  if (models.some(({ name }) => name === wanted)) at("model").value = wanted;
  at("model-box").hidden = models.length < 2;
  at("ask").hidden = false;
  fillForm();
  at("source").focus();
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  answer();
});
at("model").addEventListener("change", fillForm);
sendOnEnter(at("ask"), chosen);
listenForFiles(() => models.length && fillSources(chosen()));
listenForKey(start);
start();
