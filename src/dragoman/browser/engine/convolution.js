/* The gated convolution of the convolutional encoder and decoder.

     GLU(W [h_i; …; h_{i+k−1}] + b)      where GLU([a; b]) = a ∘ σ(b)          addScaled(a, b) = (a + b)·√½ */

import { sigmoid } from "./activations.js";
import { FloatBuffer } from "./tensors.js";

/** Windows of k neighbors → one vector of the same width each. */
export class GatedConvolution {
  constructor(weights, d, kernel) {
    Object.assign(this, { d, kernel, W: weights.linear("W"), windows: new FloatBuffer(), output: new FloatBuffer() });
  }

  /** Room for n windows (n, D · k), which `writeWindow` fills. */
  takeWindows(n) {
    return this.windows.take(n * this.d * this.kernel);
  }

  /** Write vector j of window i, the D numbers of h at `from` (zeros if h is null); weights have k numbers per feature. */
  writeWindow(windows, i, j, h, from) {
    const { d, kernel } = this;
    const start = i * d * kernel + j;
    for (let feature = 0; feature < d; feature++) {
      windows[start + feature * kernel] = h === null ? 0 : h[from + feature];
    }
  }

  /** (n, D · k) → (n, D) */
  convolve(windows, n) {
    const { d } = this;
    const z = this.W.apply(windows, n); // (n, 2D)
    const y = this.output.take(n * d);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < d; j++) y[i * d + j] = z[2 * i * d + j] * sigmoid(z[(2 * i + 1) * d + j]);
    }
    return y;
  }

  /** A whole sequence h (n, D), with zeros outside of it; window i begins `before` positions before i. */
  forward(h, n, before) {
    const windows = this.takeWindows(n);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < this.kernel; j++) {
        const position = i + j - before;
        this.writeWindow(windows, i, j, position >= 0 && position < n ? h : null, position * this.d);
      }
    }
    return this.convolve(windows, n);
  }
}

/** a ← (a + b)·√½, in place */
export function addScaled(a, b) {
  for (let i = 0; i < a.length; i++) a[i] = (a[i] + b[i]) * Math.SQRT1_2;
  return a;
}
