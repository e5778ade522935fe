/* The small things every view is made of: elements, numbers as Python prints them, tokens made visible, a tip beside
   what is pointed at, and the table behind a picture.

   Text from data becomes a text node or a data-/aria- attribute, never markup: there is no innerHTML in these files. */

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const LABEL_FONT = "12px system-ui, sans-serif"; // as views.css has it: labels are measured before they are drawn
const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });
const ruler = document.createElement("canvas").getContext("2d");
let choices = 0;

/** How to draw each view: name → [title, draw(root, data, actions)]. The module of a view adds its own. */
export const VIEWS = {};

/** An HTML element; an attribute that is a function listens to the event of that name. */
export function make(tag, attributes = {}, ...children) {
  return setUp(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function shape(tag, attributes = {}, ...children) {
  return setUp(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

/** A text of a picture, its middle at the height y; `style` are class names, at-middle and at-end among them. */
export function lettering(style, x, y, text) {
  return shape("text", { class: style, x, y }, text);
}

/** The canvas of a picture; a label and a table repeat its content. */
export function drawing(style, width, height, ...children) {
  return shape("svg", { class: style, width, height, "aria-hidden": "true" }, ...children);
}

function setUp(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(2).filter((child) => child != null && child !== false));
  return element;
}

/** New content for `root`. What had the focus and which tables stood open is kept, by the data-key of each. */
export function refill(root, ...children) {
  const focused = root.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const open = [...root.querySelectorAll("details[open]")].map((details) => details.dataset.key);
  hideTip(root);
  root.replaceChildren(...children.flat(2).filter((child) => child != null && child !== false));
  for (const element of root.querySelectorAll("[data-key]")) {
    if (open.includes(element.dataset.key) && element.tagName === "DETAILS") element.open = true;
    if (focused !== undefined && element.dataset.key === focused) element.focus();
  }
}

// -- numbers and tokens -----------------------------------------------------------------------------------------------

/** A number as Python's f"{x:.3f}" prints it. toFixed rounds ties away from zero (0.125 → 0.13), Python to even. */
export function fixed(x, digits) {
  if (x == null) return "–";
  const size = Math.abs(x);
  const sign = x < 0 || Object.is(x, -0) ? "-" : "";
  const longer = size.toFixed(digits + 1);
  const tie = longer.endsWith("5") && Number.isInteger(size * 2 ** (digits + 1)); // only such numbers can be halfway
  const below = longer.slice(0, -1).replace(/\.$/, "");
  return sign + (tie && "02468".includes(below.at(-1)) ? below : size.toFixed(digits));
}

/** The probability of a log-probability, as people say it. */
export function percent(logP) {
  if (logP == null) return "–";
  const share = 100 * Math.exp(logP);
  return share < 0.05 ? "<\u00A00.1\u00A0%" : `${fixed(share, 1)}\u00A0%`;
}

/** A token with everything that does not print as itself spelled out: ␣, <001B>, <202E>, ◌ under a lone mark. */
export function visible(token) {
  const shown = Array.from(token, (sign) => {
    if (sign === " ") return "␣";
    if (!/[\p{C}\p{Z}\u{FE00}-\u{FE0F}\u{E0100}-\u{E01EF}]/u.test(sign)) return sign;
    return `<${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`;
  }).join("");
  return /^\p{M}/u.test(shown) ? `◌${shown}` : shown;
}

export function textWidth(text) {
  ruler.font = LABEL_FONT;
  return ruler.measureText(text).width;
}

/** The beginning of a text that is at most `width` pixels wide, with … where something is missing. */
export function cut(text, width) {
  if (textWidth(text) <= width) return text;
  let kept = "";
  for (const { segment } of graphemes.segment(text)) {
    if (textWidth(`${kept}${segment}…`) > width) break;
    kept += segment;
  }
  return `${kept}…`;
}

/** A name in the singular or the plural. */
export function counted(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

// -- parts of a page --------------------------------------------------------------------------------------------------

/** The attributes by which a reader, or a test, finds a value: what it is, and of what. */
function named(field, of) {
  const which = Object.entries(of).map(([name, x]) => [`data-${name}`, x]);
  return { "data-field": field, ...Object.fromEntries(which) };
}

/** A value in running text; `of` says which one it is: {index: 3}. */
export function value(field, text, of = {}) {
  return make("span", named(field, of), text);
}

/** A token in running text: set apart, in its own direction. */
export function token(text) {
  return make("bdi", { class: "token" }, visible(text));
}

/** What a model read or wrote, as it is. */
export function passage(text, field, of = {}) {
  return make("bdi", { class: "passage", dir: "auto", ...named(field, of) }, text === "" ? "(empty)" : text);
}

/** A cell of a table, with the name of what it holds. */
export function cell(field, content, of = {}) {
  return make("td", named(field, of), content);
}

/** A table; the first cell of each row is its heading. Columns that are null or false are left out. */
export function table(caption, headings, rows) {
  const top = headings.filter((heading) => heading != null && heading !== false);
  const lines = rows.map((row) => make("tr", {}, row.map(inRow)));
  const head = make("thead", {}, make("tr", {}, top.map(inTop)));
  return make("table", {}, make("caption", {}, caption), head, make("tbody", {}, lines));
}

function inTop(heading) {
  return heading === "" ? make("td") : make("th", { scope: "col" }, heading); // a header without a text is none
}

function inRow(content, index) {
  if (content == null || content === false) return null;
  if (index === 0) return make("th", { scope: "row" }, content);
  return content instanceof HTMLTableCellElement ? content : make("td", {}, content);
}

/** A box that scrolls by itself where its content is wider than the page. */
export function scrolling(label, ...children) {
  return make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, ...children);
}

/** A table whose rows become blocks, each cell after its heading, where it would be wider than its place. */
export function stacked(label, content) {
  const headings = [...content.tHead.rows[0].cells].map(({ textContent }) => textContent);
  for (const { cells } of content.tBodies[0].rows) {
    Array.from(cells).forEach((one, i) => one.setAttribute("data-heading", headings[i]));
  }
  return make("div", { class: "stacked", tabindex: "0", role: "group", "aria-label": label }, content);
}

/** A picture whose parts the arrow keys select. */
export function picture(label, content) {
  const ariaLabel = `${label}. The arrow keys move over it; the numbers are in the table below.`;
  return make("div", { class: "scroll", role: "img", tabindex: "0", "aria-label": ariaLabel, "data-key": label }, content);
}

/** A picture with its title and what belongs to it. */
export function figure(title, style, ...children) {
  return make("figure", { class: style }, make("h3", {}, title), ...children);
}

/** Names with what belongs to them: [name, content] pairs; what is not there is left out. */
export function texts(...lines) {
  const parts = lines.filter(Boolean).map(([name, content]) => [make("dt", {}, name), make("dd", {}, content)]);
  return make("dl", { class: "texts" }, parts);
}

/** The table behind a picture, built when it is opened: 48 heads of 60 × 60 would be 172,800 cells. */
export function behind(build, title = "as a table") {
  const details = make("details", { class: "behind", "data-key": title }, make("summary", {}, title));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(scrolling(title, build()));
  });
  return details;
}

/** A few options of which one holds. */
export function choice(legend, options, chosen, change) {
  const name = `choice-${choices++}`;
  const buttons = options.map((option) => {
    const input = make("input", {
      type: "radio",
      name,
      value: option,
      checked: option === chosen,
      "data-key": `${legend}: ${option}`,
      change: () => change(option),
    });
    return make("label", {}, input, make("span", {}, option));
  });
  return make("fieldset", { class: "choice" }, make("legend", {}, legend), buttons);
}

/** A box to tick; `ariaLabel` names it where the label alone would not. */
export function tick(label, checked, change, ariaLabel = label) {
  const attrs = { type: "checkbox", checked, "data-key": ariaLabel, "aria-label": ariaLabel };
  const input = make("input", { ...attrs, change: () => change(input.checked) });
  return make("label", { class: "tick" }, input, label);
}

// -- the tip ----------------------------------------------------------------------------------------------------------

/** Say what a part of a picture is: a title and [name, text] pairs. Screen readers hear it. */
export function showTip(near, part, title, pairs) {
  const box = part.getBoundingClientRect();
  const root = near.closest(".dragoman") ?? document.body;
  const tip = root.querySelector(":scope > .tip") ?? root.appendChild(make("div", { class: "tip", role: "status" }));
  const lines = pairs.map(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]);
  tip.replaceChildren(make("strong", {}, title), make("dl", {}, lines));
  tip.hidden = false;
  const left = Math.min(box.right + 12, window.innerWidth - tip.offsetWidth - 8);
  const below = box.bottom + 10;
  const above = box.top - tip.offsetHeight - 10;
  tip.style.setProperty("left", `${Math.max(8, left)}px`);
  tip.style.setProperty("top", `${below + tip.offsetHeight < window.innerHeight ? below : Math.max(8, above)}px`);
}

export function hideTip(near) {
  const tip = (near.closest(".dragoman") ?? document.body).querySelector(":scope > .tip");
  if (tip) tip.hidden = true;
}

/** Scroll a box, not the page, until a part of its content (in the box's own coordinates) is seen. */
export function reveal(box, left, right) {
  if (left < box.scrollLeft) box.scrollLeft = left;
  else if (right > box.scrollLeft + box.clientWidth) box.scrollLeft = right - box.clientWidth;
}
