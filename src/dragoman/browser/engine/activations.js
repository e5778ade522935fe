/* Functions of one number, and the feed-forward layer that is made of them.

     feed   W₂ f(W₁ x + b₁) + b₂         gated: W₂ (f(W₁ x + b₁) ⊙ (W₃ x + b₃)) + b₂ */

export function sigmoid(x) {
  return 1 / (1 + Math.exp(-x));
}

export function relu(x) {
  return x > 0 ? x : 0;
}

function swish(x) {
  return x * sigmoid(x);
}

/** x Φ(x), with Φ the distribution of the normal. */
export function gelu(x) {
  return 0.5 * x * (1 + erf(x * Math.SQRT1_2));
}

function tanhGelu(x) {
  return 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));
}

/** The error function to 1.5e-7 (Abramowitz and Stegun 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  const y = 1 - series * Math.exp(-x * x);
  return x < 0 ? -y : y;
}

const ACTIVATIONS = {
  relu,
  gelu,
  gelu_tanh: tanhGelu,
  swish,
  swiglu: swish,
  geglu: gelu,
  geglu_tanh: tanhGelu,
};

/** W₂ f(W₁ x) with biases; with W₃ where the activation is gated. */
export function buildFeedForward(weights, activation) {
  const f = ACTIVATIONS[activation];
  const [W1, W2] = [weights.linear("W1"), weights.linear("W2")];
  const W3 = weights.hasBelow("W3") ? weights.linear("W3") : null;

  /** x (n, D) → (n, D) */
  return function feedForward(x, n) {
    const h = W1.apply(x, n); // (n, inner)
    const gate = W3 === null ? null : W3.apply(x, n);
    for (let i = 0; i < h.length; i++) h[i] = gate === null ? f(h[i]) : f(h[i]) * gate[i];
    return W2.apply(h, n);
  };
}
