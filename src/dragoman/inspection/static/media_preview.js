/* Weights over a source that is no text.

     image, video   the picture once more for each word: gray where weights are small, an edge around the largest
     audio          its spectrogram once, below it a row of weights for each word, aligned in time

   media_preview.py describes the preview; weights are relative to a word's largest. Another source has a map below. */

import { fixed, make, visible } from "./dom.js";
import { heat, heatMap } from "./heat.js";

const [VEIL, THICKEST] = [[107, 114, 128], 0.82]; // as in media_layout.py, which says why

/** What heatMap draws, over the picture of the source where there is one. */
export function sourceMap(preview, map) {
  if (!preview) return heatMap(map);
  const end = preview.first + stateCount(preview);
  const isOther = (_, j) => j < preview.first || j >= end;
  const others = map.columns.filter(isOther);
  const own = map.values.map((row) => row.slice(preview.first, end));
  const shares = own.map(ofPeak);
  const words = map.rows.map((row, i) => {
    const bare = visible(row.replace(/^▁(?=.)/u, ""));
    return others.length ? `${bare} ${Math.round((100 * sumOf(own[i])) / sumOf(map.values[i]))} %` : bare;
  });
  const drawn = preview.kind === "audio" ? soundOf(preview, words, shares) : stripOf(preview, words, shares);
  const values = map.values.map((row) => row.filter(isOther));
  return [drawn, others.length > 0 && heatMap({ ...map, columns: others, values })];
}

function stateCount({ kind, rows, columns, count, frames, per_frame }) {
  return { image: rows * columns, audio: count }[kind] ?? frames.length * per_frame;
}

function sumOf(row) {
  return row.reduce((sum, x) => sum + x, 0);
}

function ofPeak(row) {
  const peak = Math.max(...row);
  return row.map((x) => (peak > 0 ? x / peak : 0));
}

function peakOf(shares) {
  return shares.indexOf(Math.max(...shares));
}

/** A picture from the data, and from nowhere else. */
function seenImage(src) {
  return make("img", { src: /^data:image\/png;base64,/.test(src) && src, alt: "" });
}

// -- images and videos ------------------------------------------------------------------------------------------------

function stripOf(preview, words, shares) {
  const large = make("div", { class: "seen", "aria-hidden": "true" });
  const show = (i) => large.replaceChildren(pictureOf(preview, shares[i]), make("span", { class: "token" }, words[i]));
  const panels = words.map((word, i) => {
    const label = `${word}: looks mostly at ${peakText(preview, shares[i])}`;
    const attrs = { type: "button", class: "panel", "data-key": `word ${i}`, "aria-label": label };
    const content = [pictureOf(preview, shares[i]), make("span", { class: "token" }, word)];
    return make("button", { ...attrs, pointerenter: () => show(i), focus: () => show(i) }, content);
  });
  const all = Array(stateCount(preview)).fill(1);
  large.append(pictureOf(preview, all), make("span", { class: "faint" }, "gray: not looked at; framed: the most"));
  const attrs = { class: preview.kind === "video" ? "strip of-clips" : "strip" };
  return make("div", attrs, large, make("div", { class: "panels" }, panels));
}

/** The pictures side by side, each under a veil of rows × columns. */
function pictureOf(preview, shares) {
  const pictures = preview.frames ?? [preview.src];
  const per = shares.length / pictures.length;
  const columns = preview.columns ?? Math.round(Math.sqrt(per));
  const peak = Math.min(...shares) < 1 ? peakOf(shares) : -1; // the picture itself has none
  const each = pictures.map((src, k) => {
    const veil = veilOf(shares.slice(k * per, (k + 1) * per), columns);
    const strongest = Math.floor(peak / per) === k && cellEdge(peak % per, columns, per / columns);
    return make("span", { class: "picture" }, seenImage(src), veil, strongest);
  });
  return make("span", { class: "pictures" }, each);
}

function cellEdge(cell, columns, rows) {
  const [x, y] = [cell % columns, Math.floor(cell / columns)];
  const sides = [y / rows, 1 - (x + 1) / columns, 1 - (y + 1) / rows, x / columns];
  const edge = make("span", { class: "strongest" });
  edge.style.setProperty("inset", sides.map((share) => `${100 * share}%`).join(" "));
  return edge;
}

function veilOf(shares, columns) {
  const canvas = make("canvas", { class: "veil" });
  [canvas.width, canvas.height] = [columns, shares.length / columns];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  shares.forEach((share, i) => image.data.set([...VEIL, 255 * THICKEST * (1 - share)], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
}

function peakText({ kind, columns, per_frame }, shares) {
  const peak = peakOf(shares);
  const inside = kind === "video" ? peak % per_frame : peak;
  const across = columns ?? Math.round(Math.sqrt(per_frame));
  const cell = across > 1 && `row ${Math.floor(inside / across) + 1}, column ${(inside % across) + 1}`;
  return [kind === "video" && `frame ${Math.floor(peak / per_frame) + 1}`, cell].filter(Boolean).join(", ");
}

// -- audio ------------------------------------------------------------------------------------------------------------

function soundOf(preview, words, shares) {
  const percent = (share) => `${100 * share}%`;
  const mark = make("span", { class: "mark", hidden: true });
  const rows = words.flatMap((word, i) => {
    const [from, to] = spanOf(preview, shares[i]);
    const show = () => {
      mark.hidden = false;
      mark.style.setProperty("left", percent(from));
      mark.style.setProperty("width", percent(to - from));
    };
    const label = `${word}: looks mostly from ${timeOf(preview, from)} to ${timeOf(preview, to)}`;
    const attrs = { type: "button", class: "plain token", "data-key": `word ${i}`, "aria-label": label };
    const image = heat([shares[i]], { low: 0, high: 1 });
    image.style.setProperty("width", percent(preview.count * preview.spans[0][1])); // the last may be cut short
    const lane = make("div", { class: "lane", pointerenter: show }, image);
    return [make("button", { ...attrs, pointerenter: show, focus: show }, word), lane];
  });
  const axis = preview.seconds && make("div", { class: "times" }, ticksOf(preview.seconds, percent));
  const frames = make("div", { class: "frames" }, seenImage(preview.src), mark);
  return make("div", { class: "sound" }, make("span", {}), frames, rows, make("span", {}), axis);
}

/** From where to where a word looked: around its largest weight, while they are at least half of it. */
function spanOf({ spans }, shares) {
  let [low, high] = [peakOf(shares), peakOf(shares)];
  while (shares[low - 1] >= 0.5) low--;
  while (shares[high + 1] >= 0.5) high++;
  return [spans[low][0], spans[high][1]];
}

function timeOf({ seconds }, share) {
  return seconds ? `${fixed(share * seconds, 2)} s` : `${fixed(100 * share, 0)} %`;
}

function ticksOf(seconds, percent) {
  const power = 10 ** Math.floor(Math.log10(seconds / 5));
  const step = power * [1, 2, 5, 10].find((k) => power * k >= (seconds / 5) * (1 - 1e-9));
  return Array.from({ length: Math.floor(seconds / step + 1e-9) + 1 }, (_, i) => {
    const tick = make("span", {}, `${Number((i * step).toPrecision(6))} s`);
    tick.style.setProperty("left", percent((i * step) / seconds));
    return tick;
  });
}
