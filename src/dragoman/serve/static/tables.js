/* Tables in files: one source on each line, TSV, or CSV; and the same rows with more columns.

     file ─readTable→ {name, kind: lines|tsv|csv, rows: [[cell, …], …], header: whether the first row has names, …}
     table, names, [[result, …], …] ─formatTable→ text */

const MAX_BYTES = 32_000_000;
const DELIMITERS = [",", ";", "\t"];
const ROLES = {
  source: "source src input word words lemma text sentence question query".split(" "),
  target: "target tgt output ipa phonemes pronunciation translation reference answer".split(" "),
};
const NAMES = new Set([...ROLES.source, ...ROLES.target, "id", "lang", "language"]);

/** Read a file; an Error says what is wrong with it. */
export async function readTable(file) {
  if (/\.(xlsx?|ods)$/i.test(file.name)) throw new Error(`${file.name} is a spreadsheet; save it as CSV`);
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is too large for a page; use dragoman predict`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not UTF-8; save it as text or CSV in UTF-8`);
  }
  const table = parseTable(text, file.name);
  if (!table.rows.length) throw new Error(`${file.name} is empty`);
  return table;
}

export function parseTable(text, name) {
  const bom = text.startsWith("\uFEFF");
  const whole = bom ? text.slice(1) : text;
  const newline = whole.includes("\r\n") ? "\r\n" : "\n";
  const table = { name, bom, newline, mark: "" };
  if (/\.csv$/i.test(name)) Object.assign(table, { kind: "csv" }, csvRows(whole));
  else Object.assign(table, tabRows(whole));
  table.width = table.rows.reduce((most, row) => Math.max(most, row.length), 0);
  table.header = hasNames(table);
  return table;
}

function tabRows(text) {
  const lines = text.split("\n").map((line) => line.replace(/\r$/, ""));
  if (lines.at(-1) === "") lines.pop();
  const kind = lines.some((line) => line.includes("\t")) ? "tsv" : "lines";
  return { kind, rows: lines.map((line) => line.split("\t")) };
}

/** `sep=;` in a first line names the separator; else it is the one that most of the first lines have. */
function csvRows(text) {
  const mark = /^sep=([,;\t])\r?\n/.exec(text);
  const body = mark ? text.slice(mark[0].length) : text;
  const first = body.split("\n", 50).map((line) => line.replace(/"(?:[^"]|"")*"/g, ""));
  const having = (sign) => first.filter((line) => line.includes(sign)).length;
  const delimiter = mark?.[1] ?? DELIMITERS.reduce((best, sign) => (having(sign) > having(best) ? sign : best));
  return { delimiter, mark: mark?.[0] ?? "", rows: quotedRows(body, delimiter) };
}

/** Quotes belong to a field that begins with one; inside, a quote is doubled, and a line break is part of the field. */
function quotedRows(text, delimiter) {
  const rows = [];
  let row = [];
  let at = 0;
  while (at < text.length) {
    let cell = "";
    if (text[at] === '"') {
      let end = text.indexOf('"', at + 1);
      while (end >= 0 && text[end + 1] === '"') end = text.indexOf('"', end + 2);
      if (end < 0) throw new Error(`the quote in row ${rows.length + 1} is never closed`);
      cell = text.slice(at + 1, end).replaceAll('""', '"');
      at = end + 1;
    }
    let end = at;
    while (end < text.length && text[end] !== delimiter && text[end] !== "\n") end += 1;
    row.push(cell + text.slice(at, end).replace(/\r$/, ""));
    at = end + 1;
    if (text[end] === delimiter && at < text.length) continue;
    if (text[end] === delimiter) row.push(""); // the last cell of the file
    rows.push(row);
    row = [];
  }
  return rows;
}

/** Whether the first row names the columns: known names, or those of a spreadsheet's table. */
function hasNames({ kind, rows }) {
  const first = (rows[0] ?? []).map((cell) => cell.trim().toLowerCase());
  if (kind === "lines" || first.length < 2 || first.includes("") || new Set(first).size < first.length) return false;
  return kind === "csv" || first.some((cell) => NAMES.has(cell));
}

/** What the columns are called. */
export function columnNames({ rows, width, header }) {
  return Array.from({ length: width }, (_, i) => (header && rows[0][i]?.trim()) || `column ${i + 1}`);
}

/** Which column is most likely the source, or the target: by its name, else the first, or the one after the source. */
export function columnFor(table, role) {
  const names = columnNames(table).map((name) => name.trim().toLowerCase());
  const named = (of) => names.findIndex((name) => ROLES[of].includes(name));
  const source = Math.max(0, named("source"));
  if (role === "source") return source;
  return named("target") >= 0 ? named("target") : Math.min(source + 1, table.width - 1);
}

/** The cells of a column, without the name of the header. */
export function columnOf({ rows, header }, index) {
  return rows.slice(header ? 1 : 0).map((row) => row[index] ?? "");
}

/** The first rows of a table, as many as there are results, with the columns `names` after their own. */
export function formatTable(table, names, results) {
  const { rows, header, width, kind, bom, newline, mark } = table;
  const padded = (row) => Array.from({ length: width }, (_, i) => row[i] ?? "");
  const body = rows.slice(header ? 1 : 0);
  const lines = results.map((cells, i) => [...padded(body[i]), ...cells]);
  if (header) lines.unshift([...padded(rows[0]), ...freeNames(rows[0], names)]);
  const line = kind === "csv" ? (cells) => cells.map((cell) => quoted(cell, table.delimiter)).join(table.delimiter) : tabLine;
  return (bom ? "\uFEFF" : "") + mark + lines.map((cells) => line(cells) + newline).join("");
}

/** Names that the table has already are numbered: prediction (2). */
function freeNames(taken, names) {
  return names.map((name) => {
    let free = name;
    for (let number = 2; taken.includes(free); number += 1) free = `${name} (${number})`;
    return free;
  });
}

function quoted(cell, delimiter) {
  return [delimiter, '"', "\n", "\r"].some((sign) => cell.includes(sign)) ? `"${cell.replaceAll('"', '""')}"` : cell;
}

const ESCAPES = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** A cell with tabs or line breaks is escaped, as `dragoman predict` does it. */
function tabLine(cells) {
  return cells.map((cell) => (/[\n\r\t]/.test(cell) ? cell.replace(/[\\\n\r\t]/g, (sign) => ESCAPES[sign]) : cell)).join("\t");
}
