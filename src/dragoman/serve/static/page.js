/* The playground: one state, the form and the tabs that change it, and the panel that shows it.

     form, tabs, clicks ─ go(change) → state = #fragment ─ show() → requests → views
                                          ↑ back, forward, a shared link

   An answer that comes after the state has moved on is dropped: show() aborts whatever is still on its way. */

import { choice, make, refill } from "../views/dom.js";
import "../views/modules.js"; // the modules of all views
import { draw } from "../views/views.js";
import { askForKey, listenForKey } from "./key.js";
import { SIDES, fillSources, listenForFiles, missing, readsFiles, shortened } from "./media.js";
import { exampleOf, isOneLine, sendOnEnter } from "./model.js";
import { EXAMPLES, PANELS } from "./panels.js";
import { drawReference, drawResult } from "./result.js";
import { ask, hasKey } from "./server.js";
import { BEGINNING, fromFragment, fromTrail, toFragment, trail, whole } from "./state.js";

const POLL_MS = 3000; // between two looks at a run that still trains
const OWN = { result: drawResult, reference: drawReference }; // what the views do not draw
const UNFIT = {
  labels: "This model answers with labels at once: there is no beam, no step and no alignment to show.",
  "language model": "This model goes on with a text: there is no source to align with or to map.",
};
const NO_BEGINNING = new Set(["<pad>", "<s>", "</s>"]); // tokens that nothing can follow

const at = (id) => document.getElementById(id);
const form = at("ask");
let state = fromFragment(location.hash);
let models = [];
let asking = new AbortController();
let polling = 0;
const examples = new Map(); // model → its first examples
const filled = {}; // what the form's fields were last set to: what is typed stays while the state has not changed
const tabs = {};
const panels = {};

// -- from the state to the page ---------------------------------------------------------------------------------------

/** The columns: a model each, with what was forced and switched off in it. */
function columns() {
  const first = { model: modelOf(state.model) ?? models[0], prefix: state.prefix, off: state.off, end: "" };
  const other = modelOf(state.model2);
  const second = other && { model: other, prefix: state.prefix2, off: state.off2, end: "2" };
  return [first, second].filter(Boolean).map((one) => ({ ...one, off: namesOf(one.off) }));
}

function namesOf(text) {
  return text.split(",").filter(Boolean);
}

function modelOf(name) {
  return models.find((model) => model.name === name);
}

/** Draw what the state says. `again`: ask even for what is there; `quiet`: without a sign of waiting. */
async function show({ again = false, quiet = false } = {}) {
  asking.abort();
  clearTimeout(polling);
  asking = new AbortController();
  const { signal } = asking;
  const every = columns();
  Object.assign(state, examplesFor(every[0].model));
  fillForm(every);
  chooseTab(every);
  const panel = panels[state.view];
  waiting(!quiet);
  try {
    const text = await filledText(panel.about, every[0], signal);
    if (signal.aborted) return;
    refill(panel.tools, panel.about.tools?.(state, go, text, every[0]));
    await Promise.all(every.map((column, i) => fillColumn(panel, column, i, text, { again, quiet, signal })));
  } catch (error) {
    if (!signal.aborted) trouble(error);
  }
  if (!signal.aborted) waiting(false);
}

/** The example's texts, where there are none yet. */
function examplesFor(model) {
  const texts = SIDES.filter((side) => model[side] === "text");
  return Object.fromEntries(texts.map((side) => [side, state[side] ?? exampleOf(model)[side] ?? null]));
}

/** The text of a tab's own text area. */
async function filledText({ fills }, { model }, signal) {
  if (!fills) return "";
  if (state[fills.field] !== null) return state[fills.field];
  if (!model.views.includes("examples")) return "";
  if (!examples.has(model.name)) {
    const { pairs } = await ask("v1/inspect/examples", { model: model.name, count: EXAMPLES }, signal);
    examples.set(model.name, pairs);
  }
  return examples.get(model.name).map(fills.line).join("\n");
}

async function fillColumn(panel, column, index, text, how) {
  const shown = panel.columns[index];
  shown.box.hidden = panel.about.together && index > 0;
  if (shown.box.hidden) return;
  const lacking = lackingIn(panel, column.model);
  const head = panel.about.together ? null : headOf(column.model);
  refill(shown.head, head, lacking && make("p", { class: "note lacking" }, lacking));
  const asked = lacking ? [] : panel.about.asks(state, column, text);
  while (shown.slots.length > asked.length) shown.slots.pop().element.remove();
  while (shown.slots.length < asked.length) {
    shown.slots.push({ element: shown.box.appendChild(make("div", { class: "slot" })) });
  }
  await Promise.all(asked.map((one, i) => fillSlot(shown.slots[i], one, column, how)));
}

/** Why there is nothing to ask a model for, as a sentence; "" where there is. */
function lackingIn({ name, about }, model) {
  if (cannotShow(name, model)) return `This is nothing that ${model.name} can show.`;
  return about.whole || about.fills ? "" : missing(state, model);
}

function headOf({ name, shape, device }) {
  const { encoder, decoder, parameters } = shape;
  const parts = [encoder !== "none" && `${encoder} encoder`, decoder && `${decoder} decoder`].filter(Boolean);
  const size = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(parameters);
  const line = `${parts.join(", ")} · ${size} parameters · ${device}`;
  return [make("h2", {}, make("bdi", {}, name)), make("p", { class: "faint" }, line)];
}

/** One request and what draws its answer. A slot keeps its answer, for other widths and for coming back to it. */
async function fillSlot(slot, asked, column, { again, quiet, signal }) {
  const { element } = slot;
  const key = JSON.stringify(asked, shortened);
  element.removeAttribute("aria-busy");
  if (slot.key !== key || again) {
    if (!quiet) element.setAttribute("aria-busy", "true");
    try {
      slot.key = null;
      slot.answer = await ask(asked[1], asked[2], signal);
    } catch (error) {
      if (signal.aborted) return;
      element.removeAttribute("aria-busy");
      if (error.status === 401) throw error;
      return refill(element, make("p", { class: "refusal", role: "alert" }, error.message));
    }
    element.removeAttribute("aria-busy");
    slot.key = key;
    slot.width = null;
    announce(asked[0], slot.answer, column);
  }
  if (slot.width !== element.clientWidth) drawSlot(slot, asked[0], column);
  if (asked[0] === "replay" && !slot.answer.finished) lookAgain();
}

function lookAgain() {
  clearTimeout(polling);
  polling = setTimeout(() => show({ again: true, quiet: true }), POLL_MS);
}

function drawSlot(slot, kind, column) {
  slot.draw = () => {
    slot.width = slot.element.clientWidth;
    (OWN[kind] ?? draw)(slot.element, slot.answer, actionsOf(column));
    if (kind === "steps") closeEnds(slot);
  };
  slot.draw();
}

/** Nothing goes on from </s>: its button does nothing. */
function closeEnds({ element, answer }) {
  const every = [...answer.free.steps, ...(answer.forced?.steps ?? [])].flatMap(({ top }) => top);
  const ends = new Set(every.filter(({ token }) => NO_BEGINNING.has(token)).map(({ id }) => `${id}`));
  for (const button of element.querySelectorAll("button.option")) button.disabled = ends.has(button.dataset.id);
}

/** What the views may ask the page to do, in this column. */
function actionsOf({ end, model }) {
  const [prefix, off] = [`prefix${end}`, `off${end}`];
  const turnHead = (name, isOff) => {
    const others = namesOf(state[off]).filter((other) => other !== name);
    go({ [off]: (isOff ? [...others, name] : others).join(",") });
  };
  return {
    force: (ids) => go({ [prefix]: ids.length ? fromTrail([...trail(state[prefix]), ids]) : "" }),
    head: model.has_head_switches === false ? null : turnHead,
    metric: (metric) => go({ metric }),
    open: (view, { model: name = model.name, source, target }) => {
      go({ source, reference: target ?? "", view, model: name, model2: "", prefix: "", off: "" });
      window.scrollTo({ top: 0 });
    },
  };
}

// -- what is said besides ---------------------------------------------------------------------------------------------

function waiting(on) {
  at("waiting").hidden = !on;
  at("panels").setAttribute("aria-busy", String(on));
  if (on) at("trouble").hidden = true;
}

/** Screen readers hear a result; the other views are there to be walked through. */
function announce(kind, answer, { model }) {
  if (kind === "result") at("said").textContent = `${model.name}: ${answer.results[0].text}`;
}

/** What kept the whole page from its work. */
function trouble(error) {
  if (error.status === 401) return askForKey(error.message);
  at("trouble").textContent = error.message;
  at("trouble").hidden = false;
}

// -- from the page to the state ---------------------------------------------------------------------------------------

/** Another state, which the back button leaves again; the same state is asked for anew if `again`. */
function go(change, again = false) {
  state = { ...state, ...change };
  const address = toFragment(state);
  if (address !== (location.hash || "#")) history.pushState(null, "", address);
  show({ again });
}

function fillForm(every) {
  const [first, second] = every;
  select(at("model"), models.map(({ name }) => [name, name]), first.model.name);
  const alike = (model) => SIDES.every((side) => model[side] === first.model[side]);
  const others = models.filter((model) => model !== first.model && alike(model)).map(({ name }) => [name, name]);
  select(at("beside"), [["", "none"], ...others], second?.model.name ?? "");
  at("beside-box").hidden = !others.length;
  const known = first.model.languages;
  select(at("language"), known.map((name) => [name, name]), state.language || first.model.example.target_lang);
  at("language-box").hidden = !known.length;
  fillSources(first.model);
  if (first.model.kind === "language model") at("source-label").textContent = "Beginning of a text";
  at("reference-box").hidden = every.every(({ model }) => model.kind !== "pairs");
  for (const box of document.querySelectorAll(".search-box")) box.hidden = first.model.kind === "labels";
  const keys = isOneLine(first.model) ? ["Enter", "Enter"] : ["Ctrl or ⌘ with Enter", "Control+Enter Meta+Enter"];
  at("predict").title = keys[0];
  at("predict").setAttribute("aria-keyshortcuts", keys[1]);
  for (const name of [...SIDES, "reference", "beam", "nbest"]) {
    if (filled[name] !== state[name]) at(name).value = filled[name] = state[name];
  }
}

function select(element, options, chosen) {
  const same = options.length === element.options.length && options.every(([x], i) => element.options[i].value === x);
  if (!same) element.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  element.value = chosen;
}

/** What the form says; another source forgets what was forced for the last one. */
function fromForm() {
  const { model } = columns()[0];
  const texts = SIDES.filter((side) => model[side] === "text").map((side) => [side, at(side).value]);
  const numbers = Object.fromEntries(["beam", "nbest"].map((name) => [name, whole(at(name).value) ?? BEGINNING[name]]));
  const typed = { ...Object.fromEntries(texts), reference: at("reference").value, language: at("language").value };
  const change = { ...typed, ...numbers };
  if (!change.reference.trim()) change.of = "output";
  return texts.every(([side, text]) => text === state[side]) ? change : { ...change, prefix: "", prefix2: "" };
}

/** Another model: its own example, if the last one's is still there, and nothing forced or switched off. */
function chooseModel(name) {
  const [before, next] = [columns()[0].model, modelOf(name)];
  const change = { ...fromForm(), model: name, prefix: "", off: "", texts: null, pairs: null, metric: "" };
  for (const side of SIDES) {
    if (before[side] === "text" && change[side] === (exampleOf(before)[side] ?? "")) change[side] = null;
  }
  if (state.model2 === name || SIDES.some((side) => before[side] !== next[side])) Object.assign(change, { model2: "", prefix2: "", off2: "" });
  go(change);
}

// -- the tabs ---------------------------------------------------------------------------------------------------------

function buildTabs() {
  for (const [name, about] of Object.entries(PANELS)) {
    const press = { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}` };
    tabs[name] = make("button", { ...press, click: () => go({ ...fromForm(), view: name }) }, about.title);
    panels[name] = buildPanel(name, about);
  }
  at("tabs").append(...Object.values(tabs));
  at("tabs").addEventListener("keydown", moveTab);
}

function buildPanel(name, about) {
  const tools = make("div", { class: "tools" });
  const both = [0, 1].map(() => {
    const head = make("header", {});
    return { head, box: make("section", { class: "column" }, head), slots: [] };
  });
  const grid = make("div", { class: "columns" }, both.map(({ box }) => box));
  const look = { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, tabindex: "0", hidden: true };
  at("panels").append(make("section", look, make("p", { class: "about" }, about.about), tools, grid));
  return { name, about, tools, grid, columns: both };
}

/** Mark the tab of the view; leave out those that a model has nothing to show in, and say why. */
function chooseTab(every) {
  const kinds = every.map(({ model }) => model.kind);
  const unfit = (name) => every.every(({ model }) => cannotShow(name, model));
  if (!PANELS[state.view] || unfit(state.view)) state.view = "result";
  const both = every.length > 1;
  for (const [name, tab] of Object.entries(tabs)) {
    tab.hidden = unfit(name);
    tab.setAttribute("aria-selected", String(name === state.view));
    tab.tabIndex = name === state.view ? 0 : -1;
    at(`panel-${name}`).hidden = name !== state.view;
    panels[name].grid.classList.toggle("side-by-side", both && !PANELS[name].together);
    panels[name].columns[1].box.hidden = !both;
  }
  const left = tabs[state.view].offsetLeft - at("tabs").offsetLeft;
  at("tabs").scrollTo({ left: left - at("tabs").clientWidth / 2 });
  refill(at("unfit"), kinds.length === 1 ? UNFIT[kinds[0]] : null);
}

function cannotShow(name, model) {
  const { own, texts } = PANELS[name];
  return (!own && !model.views.includes(name)) || (texts && (readsFiles(model) || model.second_source !== null));
}

function moveTab(event) {
  const shown = Object.keys(tabs).filter((name) => !tabs[name].hidden);
  const here = shown.indexOf(state.view);
  const next = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: shown.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const name = shown[(next + shown.length) % shown.length];
  go({ ...fromForm(), view: name });
  tabs[name].focus();
}

// -- the beginning ----------------------------------------------------------------------------------------------------

function buildTheme() {
  const root = document.documentElement;
  const change = (theme) => {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // It holds until the page is left, then.
    }
  };
  at("theme").append(choice("Theme", ["system", "light", "dark"], root.dataset.theme ?? "system", change));
}

function listen() {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go(fromForm(), true);
  });
  sendOnEnter(form, () => columns()[0].model);
  at("model").addEventListener("change", () => chooseModel(at("model").value));
  at("beside").addEventListener("change", () => {
    go({ ...fromForm(), model2: at("beside").value, prefix2: "", off2: "" });
  });
  at("language").addEventListener("change", () => go(fromForm()));
  listenForFiles(() => models.length && go({ ...fromForm(), prefix: "", prefix2: "" }));
  listenForKey(start);
  window.addEventListener("popstate", () => {
    state = fromFragment(location.hash);
    if (models.length) show();
  });
  window.addEventListener("resize", redrawSoon);
}

let resizing = 0;

/** Pictures take the width of their column, so they are drawn again when it changes. */
function redrawSoon() {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    for (const { slots } of panels[state.view].columns) {
      for (const slot of slots) if (slot.draw && slot.key && slot.width !== slot.element.clientWidth) slot.draw();
    }
  }, 150);
}

async function start() {
  try {
    ({ models } = await ask("v1/models"));
  } catch (error) {
    return trouble(error);
  }
  form.hidden = at("tabs").hidden = false;
  at("docs").hidden = hasKey(); // a link cannot send one
  await show();
}

buildTheme();
buildTabs();
listen();
start();
