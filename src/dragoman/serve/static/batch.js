/* Predictions for a file: its rows come back with the columns `prediction` and `probability`.

     table ─ predictAll ─→ results ─ formatTable ─→ a file to save       nothing is kept on the server */

import { counted, make, refill } from "../views/dom.js";
import { predictAll } from "./chunks.js";
import { tablePicker } from "./table_picker.js";
import { columnOf, formatTable } from "./tables.js";

const COLUMNS = ["prediction", "probability"];
const DIGITS = 6;

let batch = null; // built once: a long file goes on while other tabs are looked at

/** `request(sources)` is the body that asks the chosen model. */
export function batchTool(request) {
  batch ??= buildBatch();
  batch.request = request;
  return batch.elements;
}

function buildBatch() {
  const start = make("button", { type: "button", class: "main", hidden: true, click: () => run() }, "Predict all");
  const cancel = make("button", { type: "button", hidden: true, click: () => running.abort() }, "Cancel");
  const bar = make("progress", { hidden: true, "aria-label": "Rows that are done" });
  const state = make("p", { class: "note", "data-field": "batch" });
  const ended = make("div", { role: "status" });
  const controls = make("div", { class: "controls" }, start, cancel, bar, state);
  const batch = { request: null, elements: null };
  let [table, column, running] = [null, 0, null];

  const picker = tablePicker("batch", { source: "Sources in" }, (chosen, { source }) => {
    [table, column] = [chosen, source];
    start.hidden = Boolean(running);
    refill(ended);
  });

  async function run() {
    const sources = columnOf(table, column);
    const [ofTable, request] = [table, batch.request];
    let done = [];
    running = new AbortController();
    start.hidden = true;
    cancel.hidden = bar.hidden = false;
    bar.max = sources.length;
    refill(ended);
    const told = ({ done: results, wait }) => {
      done = results;
      bar.value = done.length;
      const busy = wait ? ` · the server is busy; going on in ${counted(wait, "second")}` : "";
      state.textContent = `${done.length} of ${counted(sources.length, "row")}${busy}`;
    };
    told({ done, wait: 0 });
    let trouble = null;
    try {
      await predictAll(sources, request, running.signal, told);
    } catch (error) {
      trouble = error.name === "AbortError" ? "Cancelled." : `Stopped: ${error.message}.`;
    }
    running = null;
    cancel.hidden = bar.hidden = true;
    start.hidden = false;
    state.textContent = "";
    refill(ended, summary(done, sources.length, trouble), done.length > 0 && saveLink(ofTable, done));
  }

  batch.elements = [picker, controls, ended];
  return batch;
}

function summary(done, count, trouble) {
  const refused = done.filter((one) => one.refused);
  const all = `${done.length} of ${counted(count, "row")} done.`;
  const first = refused.length && `${counted(refused.length, "row")} without a prediction: ${refused[0].refused}.`;
  return make("p", { class: trouble ? "refusal" : "" }, [trouble, all, first].filter(Boolean).join(" "));
}

let last = ""; // the file of the last run

function saveLink(table, results) {
  const text = formatTable(table, COLUMNS, results.map(cellsOf));
  URL.revokeObjectURL(last);
  last = URL.createObjectURL(new Blob([text], { type: table.kind === "csv" ? "text/csv" : "text/tab-separated-values" }));
  const [, stem, ending] = /^(.*?)(\.\w+)?$/.exec(table.name);
  const name = `${stem}-predictions${table.kind === "lines" ? ".tsv" : (ending ?? ".tsv")}`;
  return make("p", {}, make("a", { href: last, download: name }, `Save ${name}`));
}

/** As `dragoman predict --probability` has them: exp Σ log p with six digits, 0 for a blank source. */
function cellsOf({ refused, text, log_probs: logProbs }) {
  if (refused) return ["", ""];
  const p = logProbs.length ? Math.exp(logProbs.reduce((sum, x) => sum + x, 0)) : 0;
  return [text, `${Number(p.toPrecision(DIGITS))}`];
}
