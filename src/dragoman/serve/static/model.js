/* What the description of a model means for a form: its example, its languages, whether its sources are one line. */

const ONE_LINE = new Set(["characters", "symbols", "words"]); // tokenizers of sources that are words and phrases

/** The kept validation pair of a model; nothing where none is kept: a source made of its vocabulary is no example. */
export function exampleOf({ views, example }) {
  return views.includes("examples") ? example : {};
}

/** The languages to name to a model that knows several. */
export function languagesFor({ languages, example }, chosen) {
  if (!languages.length) return {};
  return { source_lang: example.source_lang, target_lang: languages.includes(chosen) ? chosen : example.target_lang };
}

export function isOneLine({ source, kind, shape }) {
  return source === "text" && kind !== "language model" && ONE_LINE.has(shape.source_tokenizer);
}

/** Enter sends the form of a one-line model, with Shift it begins a line; of long texts Ctrl or ⌘ with Enter sends it. */
export function sendOnEnter(form, model) {
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || event.target.tagName === "BUTTON") return;
    const sends = event.ctrlKey || event.metaKey || (isOneLine(model()) && !event.shiftKey);
    if (!sends || event.target.tagName !== "TEXTAREA") return;
    event.preventDefault();
    form.requestSubmit();
  });
}
