/* Failure probes: what was checked, how often it went wrong, whether that is more than the limit, and examples. */

import { VIEWS, cell, counted, fixed, make, passage, refill, stacked, table } from "./dom.js";

VIEWS.probes = ["Probes", drawProbes];

function drawProbes(root, { checks }) {
  const failed = checks.filter((check) => check.failed).length;
  const all = counted(checks.length, "check");
  const verdict = failed ? `${failed} of ${all} did not pass.` : `${all} passed.`;
  refill(
    root,
    make("p", { class: "verdict", "data-kind": failed ? "failed" : "passed", "data-field": "verdict" }, verdict),
    stacked("Checks", checksTable(checks)),
    checks.map((check) => [check.table && countsTable(check), check.examples.length > 0 && examplesOf(check)]),
  );
}

function checksTable(checks) {
  const rows = checks.map((check) => {
    const of = { check: check.name };
    const [style, result] = check.failed ? ["fail", "✗ failed"] : ["pass", "✓ passed"];
    return [
      check.name,
      cell("failed", make("b", { class: style }, result), of),
      cell("count", `${check.count} of ${check.of}`, of),
      cell("share", fixed(check.of ? check.count / check.of : null, 2), of),
      cell("limit", fixed(check.limit, 2), of),
      cell("sentence", check.sentence, of),
    ];
  });
  return table("Checks", ["check", "result", "found", "share", "limit", "what it means"], rows);
}

/** What a check counts besides: pronouns by item, say. */
function countsTable({ name, table: { columns, rows } }) {
  const lines = rows.map((row, i) => row.map((x, j) => (j ? cell("counts", `${x}`, { row: i, column: j }) : `${x}`)));
  return stacked(name, table(`${name}, counted`, columns, lines));
}

function examplesOf({ name, failed, examples }) {
  const rows = examples.map((example, index) => {
    const of = { check: name, index };
    const [source, output] = [passage(example.source), passage(example.output)];
    return [`${index + 1}`, cell("source", source, of), cell("output", output, of), cell("detail", example.detail, of)];
  });
  const title = `Examples of ${name}`;
  const summary = make("summary", {}, `${name}: ${counted(examples.length, "example")}`);
  const lines = stacked(title, table(title, ["", "source", "output", "detail"], rows));
  return make("details", { class: "behind", "data-key": title, open: failed }, summary, lines);
}
