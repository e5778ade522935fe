"""CIDEr-D: how much a caption agrees with what several people said of the same image (Vedantam et al. 2015).

    g(s)_w = count of w in s · ln(N / items whose references have w)              for each n-gram w, n = 1 … 4
    sim_n(c, r) = exp(−(|c| − |r|)² / 2σ²) · Σ_w min(g(c)_w, g(r)_w) g(r)_w / (‖g(c)‖ ‖g(r)‖)
    CIDEr-D(c) = 10 · mean over n and references r of sim_n(c, r)

What is said of every image says nothing: its weight is ln 1 = 0. So a set of one item scores 0, whatever is said of it.
The smaller count and the difference of lengths keep a caption from winning by saying the same words again and again.

c candidate, r reference, N items, σ = 6. Counts are not divided by the length of a text, as in the authors' program.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

ORDER, SIGMA = 4, 6.0

Ngram = tuple[str, ...]
Vectors = list[dict[Ngram, float]]  # for each n, the weights of a text's n-grams


def cider_d(candidates: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> list[float]:
    """The score of each item, 0 to 10; rare and common are what they are among these references."""
    rarity = rarities(references)
    return [agreement(candidate, several, rarity) for candidate, several in zip(candidates, references, strict=True)]


def ngrams(words: Sequence[str], n: int) -> Counter[Ngram]:
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


def rarities(references: Sequence[Sequence[Sequence[str]]]) -> tuple[float, dict[Ngram, float]]:
    """ln N, and ln of the number of items in whose references an n-gram occurs, once however often it does."""
    items: Counter[Ngram] = Counter()
    for several in references:
        items.update({w for words in several for n in range(1, ORDER + 1) for w in ngrams(words, n)})
    return math.log(len(references)), {w: math.log(count) for w, count in items.items()}


def vectors(words: Sequence[str], rarity: tuple[float, dict[Ngram, float]]) -> Vectors:
    """g for each n."""
    every, known = rarity
    return [
        {w: count * (every - known.get(w, 0.0)) for w, count in ngrams(words, n).items()} for n in range(1, ORDER + 1)
    ]


def agreement(
    candidate: Sequence[str], several: Sequence[Sequence[str]], rarity: tuple[float, dict[Ngram, float]]
) -> float:
    """The score of one candidate."""
    mine, total = vectors(candidate, rarity), 0.0
    for reference in several:
        closeness = math.exp(-((len(candidate) - len(reference)) ** 2) / (2 * SIGMA**2))
        total += closeness * sum(map(similarity, mine, vectors(reference, rarity)))
    return 10.0 * total / (ORDER * len(several))


def similarity(c: dict[Ngram, float], r: dict[Ngram, float]) -> float:
    """Σ_w min(c_w, r_w) r_w / (‖c‖ ‖r‖), 0 where one of them is nothing."""
    size = math.sqrt(sum(x * x for x in c.values()) * sum(x * x for x in r.values()))
    return sum(min(x, r[w]) * r[w] for w, x in c.items() if w in r) / size if size else 0.0
