/* The best tokens of a distribution, without sorting it. */

/** The `count` tokens of the highest log p among size numbers from `start`, best first; of equal ones the first. */
export function topTokens(logP, start, size, count) {
  const n = Math.min(count, size);
  const tokens = new Array(n).fill(-1);
  const values = new Array(n).fill(-Infinity);
  if (n === 0) return { tokens, values };
  let taken = 0;
  for (let token = 0; token < size; token++) {
    const value = logP[start + token];
    if (taken === n && !(value > values[n - 1])) continue;
    let at = taken < n ? taken++ : n - 1;
    for (; at > 0 && value > values[at - 1]; at--) {
      values[at] = values[at - 1];
      tokens[at] = tokens[at - 1];
    }
    values[at] = value;
    tokens[at] = token;
  }
  return { tokens, values };
}
