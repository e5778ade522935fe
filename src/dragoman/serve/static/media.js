/* Files in place of texts: dropped, pasted or chosen, shown, and sent as base64.

     file ─ drop, paste, choose → given[kind] = {data, url, name, number} → preview, requests

   They are no part of the address: a link cannot hold a picture. Previews are data: URLs, which the page's policy allows
   for images and sounds and nothing else. */

import { make, refill } from "../views/dom.js";

export const SIDES = ["source", "second_source"];
const LABELS = { text: ["Source", "Second source"], image: "Image", audio: "Audio", video: "Video" };
const NAMES = { image: "an image", audio: "an audio file", video: "a video (.zip, .gif, .npy)", features: "an array (.npy)" };
const CHOOSE = { image: "image/*", audio: "audio/*", video: ".zip,.npz,.npy,image/*", features: ".npy" };

const at = (id) => document.getElementById(id);
const given = {}; // by kind, so that the next model has it too; by side where a model reads two of a kind
const shown = {}; // what each side's preview is of
let count = 0;
let reads = {}; // what the first model reads

const named = (kind) => NAMES[kind] ?? "a file";
const isFile = (kind) => Boolean(kind) && kind !== "text";

function givenFor(model, side) {
  return given[keyOf(model, side)];
}

function keyOf(model, side) {
  return model.source === model.second_source ? side : model[side];
}

export function readsFiles(model) {
  return SIDES.some((side) => isFile(model[side]));
}

/** The sources of a request: texts as the state has them, files as they were given. */
export function sourcesOf(state, model) {
  const found = {};
  for (const side of SIDES) {
    if (model[side]) found[side] = isFile(model[side]) ? { data: givenFor(model, side)?.data } : state[side];
  }
  return found;
}

/** What a model still waits for, as a sentence; "" where all is there. Texts that nobody wrote are null. */
export function missing(state, model) {
  const side = SIDES.find((one) => isFile(model[one]) && !givenFor(model, one));
  if (side) return `Drop ${named(model[side])} above, paste it, or choose a file to begin.`;
  return SIDES.some((one) => model[one] === "text" && state[one] === null) ? "Write a source above to begin." : "";
}

/** For JSON.stringify: a number in place of megabytes. */
export function shortened(name, value) {
  if (name !== "data") return value;
  return Object.values(given).find(({ data }) => data === value)?.number ?? value;
}

/** Boxes for what a model reads: a text area, or a place to drop a file. */
export function fillSources(model) {
  reads = model;
  SIDES.forEach((side, i) => {
    const kind = model[side];
    at(`${side}-box`).hidden = !kind;
    at(side).hidden = isFile(kind);
    at(`${side}-drop`).hidden = !isFile(kind);
    at(`${side}-label`).htmlFor = isFile(kind) ? `${side}-file` : side;
    at(`${side}-label`).textContent = kind === "text" ? LABELS.text[i] : (LABELS[kind] ?? "File");
    if (isFile(kind)) fillDrop(side, kind);
  });
}

function fillDrop(side, kind) {
  at(`${side}-file`).accept = CHOOSE[kind] ?? "";
  const file = givenFor(reads, side);
  at(`${side}-hint`).textContent = file ? "Drop, paste or choose another" : `Drop ${named(kind)} here, paste it, or choose a file`;
  if (shown[side] === `${kind} ${file?.number}`) return;
  shown[side] = `${kind} ${file?.number}`;
  refill(at(`${side}-preview`), file && preview(kind, file));
}

function preview(kind, { url, name }) {
  if (kind === "image") return make("img", { src: url, alt: `The image that was given: ${name}` });
  const label = make("p", { class: "faint" }, make("bdi", {}, name));
  return kind === "audio" ? [make("audio", { src: url, controls: true, "aria-label": "The sound that was given" }), label] : label;
}

/** The first side that reads a file, or the one that something was dropped on. */
function sideOf(target) {
  const on = target.closest?.("[data-side]")?.dataset.side;
  return isFile(reads[on]) ? on : SIDES.find((side) => isFile(reads[side]));
}

/** `changed` hears of every new file. */
export function listenForFiles(changed) {
  function take(side, file) {
    if (!side || !file) return;
    const key = keyOf(reads, side);
    const reader = new FileReader();
    reader.addEventListener("load", () => {
      const url = reader.result;
      given[key] = { url, data: url.slice(url.indexOf(",") + 1), name: file.name, number: (count += 1) };
      changed();
    });
    reader.readAsDataURL(file);
  }

  for (const side of SIDES) {
    at(`${side}-file`).addEventListener("change", ({ target }) => {
      take(side, target.files[0]);
      target.value = ""; // the same one may be chosen again
    });
  }
  // Anywhere on the page: what falls beside its place would be opened by the browser instead of the page.
  window.addEventListener("dragover", (event) => over(event, true));
  window.addEventListener("dragleave", (event) => over(event, false));
  window.addEventListener("drop", (event) => {
    over(event, false);
    take(sideOf(event.target), event.dataTransfer.files[0]);
  });
  window.addEventListener("paste", (event) => take(sideOf(event.target), event.clipboardData.files[0]));
}

function over(event, on) {
  const side = sideOf(event.target);
  if (!side || !event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  for (const one of SIDES) at(`${one}-drop`).classList.toggle("over", on && one === side);
}
