/* Data that a page holds as text: base64 of bytes, which may be compressed → the bytes.

     text ─ base64 → bytes ─ gzip? → bytes of a known size, whose hash is checked by those who use them */

import { pauseRegularly } from "../engine/pauses.js";

const CHUNK = 1 << 18; // characters, a multiple of 4
const DAMAGED = "the file was cut short or changed; get it again";

/** The bytes of a block: {encoding: "gzip" | "none", size}. `onProgress` hears the fraction of the text that was read. */
export async function decodeBlock(text, { encoding, size }, onProgress = () => {}) {
  const bytes = new Uint8Array(size);
  let end = 0;
  function append(chunk) {
    if (end + chunk.length > size) throw new Error(DAMAGED);
    bytes.set(chunk, end);
    end += chunk.length;
  }
  try {
    const reader = decodeText(text, encoding, onProgress).getReader();
    for (let next = await reader.read(); !next.done; next = await reader.read()) append(next.value);
  } catch (error) {
    throw new Error(error instanceof RangeError ? error.message : DAMAGED);
  }
  return bytes;
}

/** A stream of the bytes, so that no more than a chunk is there twice. */
function decodeText(text, encoding, onProgress) {
  const pause = pauseRegularly();
  let at = 0;
  const decoded = new ReadableStream({
    async pull(controller) {
      await pause();
      const chunk = text.slice(at, at + CHUNK).trim();
      at += CHUNK;
      onProgress(Math.min(1, at / text.length));
      if (chunk) controller.enqueue(Uint8Array.from(atob(chunk), (character) => character.charCodeAt(0)));
      if (at >= text.length) controller.close();
    },
  });
  return encoding === "gzip" ? decoded.pipeThrough(new DecompressionStream("gzip")) : decoded;
}
