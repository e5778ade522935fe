/* Length rules: log p of a sequence of n tokens, </s> included → the score by which hypotheses are compared.

     none   log p          mean   log p / n          power   log p / n^α          gnmt   log p / ((5 + n) / 6)^α */

const LENGTH_RULES = {
  none: () => (logP) => logP,
  mean: () => (logP, n) => logP / n,
  power:
    ({ alpha, uncounted }) =>
    (logP, n) =>
      logP / Math.max(n - uncounted, 1) ** alpha,
  gnmt:
    ({ alpha }) =>
    (logP, n) =>
      logP / ((5 + n) / 6) ** alpha,
};

const LENGTH_RULE_DEFAULTS = { power: { alpha: 1, uncounted: 0 }, gnmt: { alpha: 0.6 } };

/** A rule by its name, or as {name, alpha, …}; `length_penalty` replaces α, and makes none and mean a power. */
export function buildLengthRule(part, lengthPenalty = null) {
  const { name, ...own } = typeof part === "string" ? { name: part } : part;
  if (!(name in LENGTH_RULES)) {
    throw new Error(`no length rule called '${name}' (there is ${Object.keys(LENGTH_RULES).join(", ")})`);
  }
  const used = lengthPenalty !== null && (name === "none" || name === "mean") ? "power" : name;
  const options = { ...LENGTH_RULE_DEFAULTS[used], ...own };
  if (lengthPenalty !== null) options.alpha = lengthPenalty;
  return LENGTH_RULES[used](options);
}

/** GNMT's coverage term Σ_j log min(Σ_t a_tj, 1) of the total attention to each source position. */
export function logCoverage(coverage) {
  let sum = 0;
  for (const total of coverage) sum += Math.log(Math.min(Math.max(total, 1e-6), 1)); // log 0 would rank all alike
  return sum;
}
