/* Lines over a common axis: marks and a band of the interval for each series, counts as bars below, a cursor.

     series: [{name, points: [{x, y, low?, high?, count?}]}]     ticks: [{x, label}], or from the numbers themselves

   Series differ by color (Okabe and Ito's, which color-blind readers can tell apart) and by the shape of the marks. */

import { cut, drawing, fixed, hideTip, lettering, make, picture, reveal, shape, showTip, textWidth } from "./dom.js";

// Paths around (0, 0), about 8 pixels wide: circle, square, diamond, triangles, plus, cross.
const MARKS = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
  "M-3.5-3.5h7v7h-7z",
  "M0-5L5 0L0 5L-5 0z",
  "M0-4.5L4.5 4h-9z",
  "M0 4.5L4.5-4h-9z",
  "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
  "M-4.5-3L-3-4.5L0-1.5L3-4.5L4.5-3L1.5 0L4.5 3L3 4.5L0 1.5L-3 4.5L-4.5 3L-1.5 0z",
];
const PLOT = { top: 26, bottom: 256 };
const COUNTS_HIGH = 44;

/** The names of the series beside their marks. */
export function legend(names) {
  const items = names.map((name, i) => {
    const sample = drawing("", 26, 14, strokeOf("line", i, "M0 7h26"), markOf(i, "13 7"));
    return make("li", {}, sample, make("bdi", {}, name));
  });
  return make("ul", { class: "legend" }, items);
}

/** A chart {element, moveCursor(x)}. A tip says `title(x)` and, of every series with a point there, `text(point)`. */
export function lineChart({ label, across, up, series, ticks, title, text, width, counts = false, marks = true }) {
  const frame = frameOf(series, ticks, Math.max(280, Math.min(width || 640, 720)), counts);
  const cursor = shape("path", { class: "cursor", visibility: "hidden" });
  const lines = series.map(({ points }, i) => seriesOf(frame, points, i, marks));
  const parts = [axesOf(frame, across, up), counts && countsOf(frame, series), lines, cursor];
  const svg = drawing("chart", frame.width, frame.height, ...parts);
  const element = picture(label, svg);
  const moveCursor = (x) => {
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("d", `M${frame.x(x)} ${PLOT.top}V${PLOT.bottom}`);
  };
  followPoints(element, svg, frame, (x, line) => {
    const here = series.map(({ name, points }) => [name, points.find((point) => point.x === x)]);
    const rows = here.filter(([, point]) => point).map(([name, point]) => [name, text(point)]);
    showTip(element, line, title(x), rows);
  });
  return { element, moveCursor };
}

/** A point in words: its value, its interval and what it stands on. */
export function pointText({ y, low, high, count }, digits) {
  const interval = low == null || high == null ? "" : ` [${fixed(low, digits)}, ${fixed(high, digits)}]`;
  return `${fixed(y, digits)}${interval}${count == null ? "" : ` · n ${count}`}`;
}

// -- axes -------------------------------------------------------------------------------------------------------------

/** Round numbers from `low` to `high`, `count` or so of them. */
function roundTicks(low, high, count) {
  const raw = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((times) => times * power >= raw) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step);
}

/** A tick with the decimals that tell it from the next, or with an exponent. */
function tickText(x, ticks) {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : Math.abs(x) || 1;
  if (step < 1e-4 || Math.abs(x) >= 1e6) return x === 0 ? "0" : x.toExponential().replace(/(\.\d\d)\d+/, "$1");
  return x.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
}

/** The scales, x and y from numbers to pixels, and the margin around the plot. */
function frameOf(series, ticks, width, counts) {
  const points = series.flatMap((one) => one.points);
  const xs = [...new Set(points.map((point) => point.x))].sort((a, b) => a - b);
  const ys = points.flatMap(({ y, low, high }) => [y, low, high]).filter((y) => y != null);
  const least = ys.reduce((a, b) => Math.min(a, b), ys[0] ?? 0);
  const most = ys.reduce((a, b) => Math.max(a, b), ys[0] ?? 1);
  const margin = (most - least || Math.abs(most) || 1) * 0.06;
  const [from, to] = [least >= 0 && least < 3 * margin ? 0 : least - margin, most + margin];
  const levels = roundTicks(from, to, 5);
  const left = 16 + Math.max(...levels.map((level) => textWidth(tickText(level, levels))), 20);
  const pad = ticks ? Math.min(40, width / (2 * (xs.length + 1))) : 8;
  const span = width - left - 2 * pad - 8;
  const x = (at) => (xs.length > 1 ? left + pad + ((at - xs[0]) / (xs.at(-1) - xs[0])) * span : (left + width) / 2);
  const y = (at) => PLOT.bottom - ((at - from) / (to - from)) * (PLOT.bottom - PLOT.top);
  const steep = Boolean(ticks) && (width - left) / ticks.length < 56; // tick labels that would touch are turned
  const height = PLOT.bottom + (steep ? 76 : 44) + (counts ? COUNTS_HIGH + 18 : 0);
  return { width, height, left, xs, levels, ticks, steep, x, y };
}

function axesOf(frame, across, up) {
  const { left, width, height, levels, steep } = frame;
  const lines = levels.map((level) => shape("path", { class: "grid", d: `M${left} ${frame.y(level)}H${width - 4}` }));
  const values = levels.map((level) => lettering("faint at-end", left - 8, frame.y(level), tickText(level, levels)));
  const names = (frame.ticks ?? numberTicks(frame)).map(({ x, label }) => {
    const name = lettering(steep ? "faint at-end" : "faint at-middle", 0, 0, label);
    name.setAttribute("transform", `translate(${frame.x(x)} ${PLOT.bottom + 14})${steep ? " rotate(-45)" : ""}`);
    return name;
  });
  const titles = [lettering("faint", 0, 8, up), lettering("faint at-end", width - 4, height - 8, cut(across, width))];
  const axis = shape("path", { class: "axis", d: `M${left} ${PLOT.bottom}H${width - 4}` });
  return [...lines, axis, ...values, ...names, ...titles];
}

function numberTicks({ xs, width }) {
  const values = roundTicks(xs[0] ?? 0, xs.at(-1) ?? 1, Math.max(2, Math.floor(width / 110)));
  return values.map((x) => ({ x, label: tickText(x, values) }));
}

// -- what is drawn ----------------------------------------------------------------------------------------------------

function strokeOf(style, index, d) {
  const path = shape("path", { class: style, d });
  path.style.setProperty("--series", `var(--series-${index % MARKS.length})`);
  return path;
}

function markOf(index, point) {
  const mark = strokeOf("mark", index, MARKS[index % MARKS.length]);
  mark.setAttribute("transform", `translate(${point})`);
  return mark;
}

function seriesOf(frame, points, index, marks) {
  const at = (x, y) => `${frame.x(x).toFixed(1)} ${frame.y(y).toFixed(1)}`;
  const known = points.filter(({ y }) => y != null);
  const wide = known.filter(({ low, high }) => low != null && high != null);
  const band = [...wide.map(({ x, high }) => at(x, high)), ...wide.toReversed().map(({ x, low }) => at(x, low))];
  // A band between close points is easy to miss, and one point alone has none: the interval is a line, too.
  const whiskers = wide.map(({ x, low, high }) => strokeOf("whisker", index, `M${at(x, low)}L${at(x, high)}`));
  return shape(
    "g",
    {},
    wide.length > 0 && strokeOf("band", index, `M${band.join("L")}z`),
    known.length > 0 && strokeOf("line", index, `M${known.map(({ x, y }) => at(x, y)).join("L")}`),
    whiskers,
    marks && known.map(({ x, y }) => markOf(index, at(x, y))),
  );
}

/** How many examples stand behind each point; models that were scored on the same pairs share their bars. */
function countsOf(frame, series) {
  const counts = new Map();
  for (const { points } of series)
    for (const { x, count } of points) counts.set(x, Math.max(count, counts.get(x) ?? 0));
  const most = Math.max(1, ...counts.values());
  const floor = frame.height - 24;
  const bars = [...counts].map(([x, count]) => {
    const high = Math.max(1, (count / most) * (COUNTS_HIGH - 14));
    const bar = shape("rect", { class: "bar", x: frame.x(x) - 9, y: floor - high, width: 18, height: high });
    return [bar, lettering("faint at-middle", frame.x(x), floor - high - 9, count)];
  });
  return shape("g", {}, bars);
}

/** The pointer and the arrow keys move a line over the values that have a point. */
function followPoints(box, svg, frame, show) {
  let at = null;

  function moveTo(index) {
    at = index;
    svg.querySelector(".lit")?.remove();
    if (at == null) return hideTip(box);
    const x = frame.x(frame.xs[at]);
    const line = shape("path", { class: "lit", d: `M${x} ${PLOT.top}V${PLOT.bottom}` });
    svg.append(line);
    show(frame.xs[at], line);
  }

  svg.addEventListener("pointermove", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    const away = frame.xs.map((value) => Math.abs(frame.x(value) - x));
    const nearest = away.indexOf(away.reduce((a, b) => Math.min(a, b), Infinity));
    if (nearest >= 0 && nearest !== at) moveTo(nearest);
  });
  svg.addEventListener("pointerleave", () => moveTo(null));
  box.addEventListener("blur", () => moveTo(null));
  box.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") moveTo(null);
    if (!by || !frame.xs.length) return;
    event.preventDefault();
    moveTo(at == null ? 0 : Math.min(frame.xs.length - 1, Math.max(0, at + by)));
    reveal(box, frame.x(frame.xs[at]) - 40, frame.x(frame.xs[at]) + 40);
  });
}
