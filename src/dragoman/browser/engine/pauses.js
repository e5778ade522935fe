/* Pauses of a long computation: other events get their turn, and a caller can cancel it. */

const PAUSE_EVERY = 40; // milliseconds

/** A function to await between steps; it throws the signal's reason once that is aborted. */
export function pauseRegularly(signal = null) {
  let last = performance.now();
  return async function pause() {
    signal?.throwIfAborted();
    if (performance.now() - last < PAUSE_EVERY) return;
    await new Promise((resolve) => setTimeout(resolve));
    last = performance.now();
    signal?.throwIfAborted();
  };
}
