/* Unicode as Python has it: normalization, case, white space, UTF-8, and sets of code points.

   JavaScript's texts are UTF-16, Python's are code points; both may hold lone surrogates, which UTF-8 cannot encode. A
   browser may know characters that the Python of the export did not: these are left as they are, and the parts of the
   text between them are normalized (that is exact, since to Python they neither combine nor have a case). */

const FORMS = { nfc: "NFC", nfd: "NFD", nfkc: "NFKC" };
const LONE_SURROGATES = /\p{Surrogate}/gu;
const utf8Encoder = new TextEncoder();
const utf8Decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // a byte order mark is a character like others

// What str.split() of Python takes for white space; \s has U+FEFF, and lacks U+001C to U+001F and U+0085.
const PYTHON_SPACES = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u;

/** A regular expression for one or more characters of a set, given as ranges: how many code points are left out, and how
    many are in it, in turn. */
export function codePointPattern(ranges) {
  const escape = (code) => `\\u{${code.toString(16)}}`;
  let [set, code] = ["", 0];
  for (let i = 0; i < ranges.length; i += 2) {
    const first = code + ranges[i];
    code = first + ranges[i + 1];
    set += `${escape(first)}-${escape(code - 1)}`;
  }
  return new RegExp(`[${set}]+`, "u");
}

/** A text in a Unicode form, unchanged for "none"; what matches `unassigned` is unknown to Python. */
export function normalizeText(text, form, unassigned) {
  return form === "none" ? text : betweenMatches(text, unassigned, (part) => part.normalize(FORMS[form]));
}

/** A text in lower case. */
export function lowercaseText(text, unassigned) {
  return betweenMatches(text, unassigned, (part) => part.toLowerCase());
}

function betweenMatches(text, pattern, change) {
  if (!pattern.test(text)) return change(text);
  const kept = text.match(new RegExp(pattern, "gu"));
  return text.split(pattern).map((part, i) => change(part) + (kept[i] ?? "")).join("");
}

/** Replace lone surrogates by U+FFFD. */
export function replaceSurrogates(text) {
  return text.replace(LONE_SURROGATES, "\ufffd");
}

/** The parts between white space, as str.split() of Python gives them: none is empty. */
export function splitAtSpaces(text) {
  return text.split(PYTHON_SPACES).filter((part) => part !== "");
}

/** A text without white space at its ends. */
export function trimSpaces(text) {
  let [start, end] = [0, text.length];
  while (start < end && PYTHON_SPACES.test(text[start])) start += 1;
  while (start < end && PYTHON_SPACES.test(text[end - 1])) end -= 1; // a pattern for the end takes quadratic time
  return text.slice(start, end);
}

/** Whether a text has nothing but white space. */
export function isBlankText(text) {
  return trimSpaces(text) === "";
}

/** The UTF-8 bytes of a text. */
export function toUtf8(text) {
  return utf8Encoder.encode(text);
}

/** The text of UTF-8 bytes; what is not UTF-8 becomes U+FFFD. */
export function fromUtf8(bytes) {
  return utf8Decoder.decode(bytes);
}

/** The number of UTF-8 bytes of a text. */
export function utf8Length(text) {
  let count = 0;
  for (const character of text) count += codePointLength(character.codePointAt(0));
  return count;
}

/** The number of UTF-8 bytes of a code point. */
export function codePointLength(code) {
  return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}
