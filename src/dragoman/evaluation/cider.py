"""CIDEr-D: the agreement of a caption with several reference captions of the same image (Vedantam et al. 2015).

    g(s)_w = count of w in s · ln(N / items whose references have w)              for each n-gram w, n = 1 … 4
    sim_n(c, r) = exp(−(|c| − |r|)² / 2σ²) · Σ_w min(g(c)_w, g(r)_w) g(r)_w / (‖g(c)‖ ‖g(r)‖)
    CIDEr-D(c) = 10 · mean over n and references r of sim_n(c, r)

An n-gram in the references of every image has weight ln 1 = 0, so a set of one item always scores 0. The minimum of the
counts and the length penalty prevent a caption from scoring by repeating words.

c candidate, r reference, N items, σ = 6. Counts are not divided by the length of a text, as in the authors' program.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

ORDER, SIGMA = 4, 6.0

Ngram = tuple[str, ...]
Vectors = list[dict[Ngram, float]]  # for each n, the weights of a text's n-grams
Frequencies = tuple[float, dict[Ngram, float]]  # ln N, and ln of the document frequency of each n-gram


def cider_d(candidates: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> list[float]:
    """The score of each item, 0 to 10; document frequencies are taken from these references."""
    frequencies = document_frequencies(references)
    return [
        item_score(candidate, several, frequencies) for candidate, several in zip(candidates, references, strict=True)
    ]


def count_ngrams(words: Sequence[str], n: int) -> Counter[Ngram]:
    """The counts of all n-grams of a text."""
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


def document_frequencies(references: Sequence[Sequence[Sequence[str]]]) -> Frequencies:
    """ln N, and for each n-gram ln of the number of items whose references contain it."""
    items: Counter[Ngram] = Counter()
    for several in references:
        items.update({w for words in several for n in range(1, ORDER + 1) for w in count_ngrams(words, n)})
    return math.log(len(references)), {w: math.log(count) for w, count in items.items()}


def tfidf_vectors(words: Sequence[str], frequencies: Frequencies) -> Vectors:
    """The TF-IDF vectors g of a text, one for each n."""
    log_items, log_frequencies = frequencies
    return [
        {w: count * (log_items - log_frequencies.get(w, 0.0)) for w, count in count_ngrams(words, n).items()}
        for n in range(1, ORDER + 1)
    ]


def item_score(candidate: Sequence[str], several: Sequence[Sequence[str]], frequencies: Frequencies) -> float:
    """The CIDEr-D score of one candidate."""
    candidate_vectors, total = tfidf_vectors(candidate, frequencies), 0.0
    for reference in several:
        length_penalty = math.exp(-((len(candidate) - len(reference)) ** 2) / (2 * SIGMA**2))
        total += length_penalty * sum(map(clipped_cosine, candidate_vectors, tfidf_vectors(reference, frequencies)))
    return 10.0 * total / (ORDER * len(several))


def clipped_cosine(c: dict[Ngram, float], r: dict[Ngram, float]) -> float:
    """Σ_w min(c_w, r_w) r_w / (‖c‖ ‖r‖), 0 if one of them is zero."""
    norms = math.sqrt(sum(x * x for x in c.values()) * sum(x * x for x in r.values()))
    return sum(min(x, r[w]) * r[w] for w, x in c.items() if w in r) / norms if norms else 0.0
