/* What the page shows, as one flat object that is also the fragment of its address: a view can be shared by its link.

     #view=steps&model=rnn&source=dragoman&prefix=17.4~17.4.9

   What is as it was at the beginning is left out. `model2`, `prefix2` and `off2` are those of the second column. */

const LONGEST = 8000; // characters of a value: an address that holds a whole file is no longer one to share

export const BEGINNING = {
  view: "result",
  model: "", // the first
  model2: "", // none
  source: null, // the model's example; of files, which are no part of the address, see media.js
  second_source: null, // the same of a second source
  reference: "",
  language: "", // that of the model's example
  beam: 5,
  nbest: 3,
  of: "output", // or the reference: what is aligned, and whose gradients
  side: "encoder", // whose positions
  texts: null, // of the sentence space; null: examples of the model
  pairs: null, // of quality
  metric: "", // the first of those that fit the model
  sources: null, // of the probes; null: made of the vocabulary
  prefix: "", // every beginning that was forced, the last of them holds: ids with dots, beginnings with ~
  prefix2: "",
  off: "", // heads, with dots in their names, so with commas
  off2: "",
};

export function fromFragment(fragment) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const state = { ...BEGINNING };
  for (const [name, start] of Object.entries(BEGINNING)) {
    if (!given.has(name)) continue;
    const text = given.get(name);
    state[name] = typeof start === "number" ? (whole(text) ?? start) : text;
  }
  return state;
}

export function toFragment(state) {
  const changed = Object.entries(state).filter(([name, x]) => x !== BEGINNING[name] && String(x).length <= LONGEST);
  return `#${new URLSearchParams(changed)}`;
}

/** A positive whole number, or null. */
export function whole(text) {
  return /^[1-9]\d{0,5}$/.test(text) ? Number(text) : null;
}

/** The beginnings that were forced one after the other, each a list of ids. */
export function trail(text) {
  const ids = (one) => one.split(".").filter((id) => /^\d{1,9}$/.test(id)).map(Number);
  return text ? text.split("~").map(ids).filter((beginning) => beginning.length) : [];
}

export function fromTrail(beginnings) {
  return beginnings.map((ids) => ids.join(".")).join("~");
}

/** Lines that are not blank. */
export function linesOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

/** Pairs, one on a line: source, then a tab or |||, then the reference. */
export function pairsOf(text) {
  return linesOf(text).map((line) => {
    const [source, ...rest] = line.split(/\t|\|\|\|/);
    return { source: source.trim(), target: rest.length ? rest.join(" ").trim() : null };
  });
}
