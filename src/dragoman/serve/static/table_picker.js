/* A place to choose or drop a table, and which of its columns are what.

     tablePicker(key, {source: "Sources in", …}, changed)      changed(table, {source: 0, …}) → a note, with every choice

   One element for each key, so that it outlives what stands around it. */

import { counted, make, refill, tick } from "../views/dom.js";
import { columnFor, columnNames, columnOf, readTable } from "./tables.js";

const pickers = {};

export function tablePicker(key, roles, changed) {
  pickers[key] ??= buildPicker(key, roles);
  pickers[key].changed = changed;
  return pickers[key].element;
}

function buildPicker(key, roles) {
  const choices = make("div", { class: "line" });
  const [trouble, note] = [make("p", { role: "alert" }), make("p", { class: "note" })];
  const file = make("input", { type: "file", class: "unseen", id: `${key}-table`, accept: ".txt,.tsv,.csv,.tab,text/*" });
  const label = make("label", { for: file.id }, "Drop a file here, or choose one: one source on each line, TSV or CSV in UTF-8");
  const drop = make("div", { class: "drop" }, file, label, trouble);
  const picker = { element: make("div", { class: "area picker" }, drop, choices, note), changed: null };

  async function take(chosen) {
    trouble.textContent = "";
    try {
      const table = await readTable(chosen);
      if (table.width < Object.keys(roles).length) throw new Error(`${table.name} has one column, and two are needed`);
      label.textContent = `${table.name}: ${counted(table.rows.length, "row")}. Drop or choose another`;
      offer(table);
    } catch (error) {
      trouble.textContent = error.message;
    }
  }

  /** Selects for the columns; what is likely is chosen already. */
  function offer(table) {
    const columns = Object.fromEntries(Object.keys(roles).map((role) => [role, columnFor(table, role)]));
    const change = () => (note.textContent = picker.changed(table, columns) ?? "");
    const select = ([role, text]) => {
      const options = columnNames(table).map((name, i) => make("option", { value: i, selected: i === columns[role] }, name));
      const box = make("select", { id: `${key}-${role}`, change: () => ((columns[role] = Number(box.value)), change()) }, options);
      return make("div", {}, make("label", { for: box.id }, text), box);
    };
    const turn = (header) => offer({ ...table, header });
    const isTable = table.width > 1;
    refill(
      choices,
      isTable && Object.entries(roles).map(select),
      isTable && tick("the first row has the names of the columns", table.header, turn),
    );
    change();
  }

  file.addEventListener("change", () => {
    if (file.files.length) take(file.files[0]);
    file.value = ""; // the same one may be chosen again
  });
  for (const type of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(type, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      event.stopPropagation(); // not a picture for the form
      drop.classList.toggle("over", type === "dragover");
      if (type === "drop") take(event.dataTransfer.files[0]);
    });
  }
  return picker;
}

/** At most `most` pairs, evenly spread over a table, as lines of the text area; and a sentence where they are not all. */
export function pairLines(table, { source, target }, most) {
  const [sources, targets] = [columnOf(table, source), columnOf(table, target)];
  const all = sources.map((text, i) => `${oneLine(text)} ||| ${oneLine(targets[i])}`);
  const count = Math.min(most, all.length);
  const lines = Array.from({ length: count }, (_, i) => all[Math.floor((i * all.length) / count)]);
  return { lines, note: count < all.length ? `${count} of the ${all.length} pairs of ${table.name}, evenly spread` : "" };
}

function oneLine(text) {
  return text.replace(/\s+/g, " ").trim();
}
