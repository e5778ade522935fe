/* Stacked recurrent layers: h_t = f(x_t, h_{t-1}).

     rnn_tanh   h = tanh(W x + U h')              rnn_relu the same with max(0, ·)
     gru        r, z = σ(W x + U h')              h = (1 − z) ⊙ n + z ⊙ h'
                reset after:  n = tanh(W x + r ⊙ (U h'))      reset before: n = tanh(W x + U (r ⊙ h'))
     lstm       i, f, o = σ(W x + U h')    g = tanh(W x + U h')    c = f ⊙ c' + i ⊙ g    h = o ⊙ tanh(c)

   A bidirectional layer has the states of its two directions side by side. From the layer `residual` on, counted from
   1, a layer's input is added to its output.

   A cell has inputs W (its product runs for all positions at once) and update(p, at, h, c, k): k new states in place
   from the projected inputs p, which begin at `at`. */

import { relu, sigmoid } from "./activations.js";
import { FloatBuffer, concatenateRows } from "./tensors.js";

const CELLS = { rnn_tanh: simpleCell(Math.tanh), rnn_relu: simpleCell(relu), gru: gruCell, lstm: lstmCell };

function simpleCell(f) {
  return function buildSimpleCell(W, U) {
    function update(p, at, h, c, k) {
      const u = U.apply(h, k);
      for (let i = 0; i < h.length; i++) h[i] = f(p[at + i] + u[i]);
    }
    return { W, width: U.columns, update };
  };
}

function gruCell(W, U) {
  const d = U.columns;
  function update(p, at, h, c, k) {
    const u = U.apply(h, k); // (k, 3D): r, z, n
    for (let i = 0; i < k; i++) {
      const [pRow, uRow] = [at + 3 * i * d, 3 * i * d];
      for (let j = 0; j < d; j++) {
        const r = sigmoid(p[pRow + j] + u[uRow + j]);
        const z = sigmoid(p[pRow + d + j] + u[uRow + d + j]);
        const n = Math.tanh(p[pRow + 2 * d + j] + r * u[uRow + 2 * d + j]);
        h[i * d + j] = (1 - z) * n + z * h[i * d + j];
      }
    }
  }
  return { W, width: d, update };
}

function lstmCell(W, U) {
  const d = U.columns;
  function update(p, at, h, c, k) {
    const u = U.apply(h, k); // (k, 4D): i, f, g, o
    for (let i = 0; i < k; i++) {
      const [pRow, uRow] = [at + 4 * i * d, 4 * i * d];
      for (let j = 0; j < d; j++) {
        const input = sigmoid(p[pRow + j] + u[uRow + j]);
        const forget = sigmoid(p[pRow + d + j] + u[uRow + d + j]);
        const g = Math.tanh(p[pRow + 2 * d + j] + u[uRow + 2 * d + j]);
        const output = sigmoid(p[pRow + 3 * d + j] + u[uRow + 3 * d + j]);
        const cell = forget * c[i * d + j] + input * g;
        c[i * d + j] = cell;
        h[i * d + j] = output * Math.tanh(cell);
      }
    }
  }
  return { W, width: d, update };
}

/** A GRU as the papers write it, n = tanh(W x + U (r ⊙ h')). */
function resetBeforeCell(weights) {
  const [W, U, Un] = [weights.linear("W"), weights.linear("U"), weights.linear("Un")];
  const [d, resetState] = [Un.columns, new FloatBuffer()];
  function update(p, at, h, c, k) {
    const u = U.apply(h, k); // (k, 2D): r, z
    const rh = resetState.take(k * d);
    for (let i = 0; i < k; i++) {
      for (let j = 0; j < d; j++) rh[i * d + j] = sigmoid(p[at + 3 * i * d + j] + u[2 * i * d + j]) * h[i * d + j];
    }
    const un = Un.apply(rh, k);
    for (let i = 0; i < k; i++) {
      for (let j = 0; j < d; j++) {
        const z = sigmoid(p[at + (3 * i + 1) * d + j] + u[(2 * i + 1) * d + j]);
        const n = Math.tanh(p[at + (3 * i + 2) * d + j] + un[i * d + j]);
        h[i * d + j] = (1 - z) * n + z * h[i * d + j];
      }
    }
  }
  return { W, width: d, update };
}

/** The one or two cells of a layer, forward and backward. */
function buildCells(weights, { cell, reset }) {
  if (reset === "before") {
    return [0, 1].filter((i) => weights.hasBelow(`cells.${i}`)).map((i) => resetBeforeCell(weights.at(`cells.${i}`)));
  }
  return ["", "_reverse"]
    .filter((direction) => weights.at("rnn").has(`weight_ih_l0${direction}`))
    .map((direction) => {
      const W = weights.linear("rnn", `weight_ih_l0${direction}`, `bias_ih_l0${direction}`);
      return CELLS[cell](W, weights.linear("rnn", `weight_hh_l0${direction}`, `bias_hh_l0${direction}`));
    });
}

class RecurrentLayer {
  constructor(weights, options) {
    this.cells = buildCells(weights, options);
    this.hasCellState = options.cell === "lstm";
    this.d = this.cells.length * this.cells[0].width;
    this.output = new FloatBuffer();
  }

  /** The whole sequence from a state of zeros: x (n, D_in) → y (n, D), and the state {h, c} of the last position. */
  forward(x, n) {
    const { d, cells } = this;
    const y = this.output.take(n * d);
    const final = { h: new Float32Array(d), c: this.hasCellState ? new Float32Array(d) : null };
    cells.forEach(({ W, width, update }, direction) => {
      const p = W.apply(x, n);
      const [h, c] = [new Float32Array(width), new Float32Array(width)];
      for (let i = 0; i < n; i++) {
        const position = direction === 0 ? i : n - 1 - i;
        update(p, position * W.rows, h, c, 1);
        y.set(h, position * d + direction * width);
      }
      final.h.set(h, direction * width);
      final.c?.set(c, direction * width);
    });
    return { y, final };
  }

  /** One step forward of k hypotheses: x (k, D_in), states h and c in place. */
  step(x, k, h, c) {
    const { W, update } = this.cells[0];
    update(W.apply(x, k), 0, h, c, k);
  }
}

/** `options`: cell, reset, layers and residual of the encoder or decoder. */
export class RecurrentStack {
  constructor(weights, options) {
    this.layers = Array.from(
      { length: options.layers },
      (_, i) => new RecurrentLayer(weights.at(`layers.${i}`), options),
    );
    this.d = this.layers.at(-1).d;
    this.residual = options.residual ?? 0;
    this.inputs = this.layers.map(() => new FloatBuffer());
  }

  addsInput(layer) {
    return this.residual > 0 && this.residual <= layer + 1;
  }

  /** The whole sequence from zeros: x (n, D_in) → the top layer's y (n, D), and the final {h, c} of every layer. */
  forward(x, n) {
    let y = x;
    const final = this.layers.map((layer, i) => {
      const input = y;
      const result = layer.forward(input, n);
      y = result.y;
      if (this.addsInput(i)) for (let j = 0; j < y.length; j++) y[j] += input[j];
      return result.final;
    });
    return { y, final };
  }

  /** One step of k hypotheses, x (k, D_in) → (k, D); every layer also reads c (k, D_c), if given. */
  step(x, k, states, c = null, contextWidth = 0) {
    let y = x;
    this.layers.forEach((layer, i) => {
      const width = y.length / k;
      const inputs = c === null ? y : concatenateRows([[y, width], [c, contextWidth]], k, this.inputs[i]);
      layer.step(inputs, k, states[i].h.x, states[i].c?.x ?? null);
      if (!this.addsInput(i)) {
        y = states[i].h.x;
        return;
      }
      const sum = layer.output.take(k * layer.d);
      for (let j = 0; j < sum.length; j++) sum[j] = y[j] + states[i].h.x[j];
      y = sum;
    });
    return y;
  }
}
