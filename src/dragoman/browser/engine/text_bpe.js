/* Byte-pair encoding: a text starts as its characters; the best-scored neighbors merge first, the leftmost of equals.

     ▁ l o w e r → ▁ lo w e r → ▁ low e r → ▁ low er → ▁low er

   Candidates wait in a heap as one number each, rank · 2²⁷ + the index of the left symbol, so that a text of n characters
   takes n log n. */

const MAX_SYMBOLS = 2 ** 27;

/** Splits texts by merges. `pieces`: names and scores of what may be merged; `splitSymbols`: a text → its first symbols
    and whether each may merge; `unused`: pieces that are only a step to others, and are taken apart in the end. */
export function bpeSplitter(pieces, scores, splitSymbols, unused) {
  const order = [...new Set(scores)].sort((a, b) => b - a); // the best first
  const rankOfScore = new Map(order.map((score, rank) => [score, rank]));
  const ranks = new Map(pieces.map((piece, i) => [piece, rankOfScore.get(scores[i])]));

  return (text) => {
    const [symbols, mayMerge] = splitSymbols(text); // "" for a symbol that was merged into the one on its left
    const before = Int32Array.from(symbols, (_, i) => i - 1);
    const after = Int32Array.from(symbols, (_, i) => i + 1);
    const parts = new Map(); // of unused pieces: the two that were merged
    const heap = [];

    const rankAt = (left) => {
      const right = after[left];
      if (right >= symbols.length || !mayMerge(left) || !mayMerge(right)) return undefined;
      return ranks.get(symbols[left] + symbols[right]);
    };
    const addCandidate = (left) => {
      const rank = left < 0 ? undefined : rankAt(left);
      if (rank !== undefined) pushToHeap(heap, rank * MAX_SYMBOLS + left);
    };

    for (let i = 0; i + 1 < symbols.length; i++) addCandidate(i);
    while (heap.length > 0) {
      const candidate = popFromHeap(heap);
      const left = candidate % MAX_SYMBOLS;
      if (symbols[left] === "" || rankAt(left) !== (candidate - left) / MAX_SYMBOLS) continue; // merged since
      const right = after[left];
      const merged = symbols[left] + symbols[right];
      if (unused.has(merged)) parts.set(merged, [symbols[left], symbols[right]]);
      [symbols[left], symbols[right]] = [merged, ""];
      after[left] = after[right];
      if (after[left] < symbols.length) before[after[left]] = left;
      addCandidate(before[left]);
      addCandidate(left);
    }
    const split = symbols.filter((symbol) => symbol !== "");
    return parts.size > 0 ? split.flatMap((piece) => takeApart(piece, parts)) : split;
  };
}

function takeApart(piece, parts) {
  return parts.get(piece)?.flatMap((part) => takeApart(part, parts)) ?? [piece];
}

// -- a heap of numbers, the smallest on top: heap[i] ≤ heap[2i + 1], heap[2i + 2] ---------------------------------------

function pushToHeap(heap, number) {
  let i = heap.length;
  while (i > 0) {
    const parent = (i - 1) >> 1;
    if (heap[parent] <= number) break;
    heap[i] = heap[parent];
    i = parent;
  }
  heap[i] = number;
}

function popFromHeap(heap) {
  const top = heap[0];
  const number = heap.pop();
  const size = heap.length;
  if (size === 0) return top;
  let i = 0;
  for (;;) {
    let child = 2 * i + 1;
    if (child >= size) break;
    if (child + 1 < size && heap[child + 1] < heap[child]) child += 1;
    if (heap[child] >= number) break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = number;
  return top;
}
