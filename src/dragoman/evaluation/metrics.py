"""Metrics: hypotheses and references → a score from 0 to 100 (error rates and CIDEr may exceed it).

    statistics(hypotheses, references) → (N, F)      of each item, such as its edits and its reference's length
    score(Σ_n statistics) → the score of the corpus

Every metric here is a function of a sum over items. So the score of a resampled or partial corpus
needs one sum and no text; the bootstrap and scores by length build on that.

`references[n]` are the accepted references of item n, one or more. With several, BLEU, chrF and TER
follow sacreBLEU; CIDEr is a mean over them; all others take the reference that is best for the
hypothesis.

N items, F statistics for each.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Annotated, Literal, Protocol

import numpy as np
import numpy.typing as npt
import sacrebleu
import sacrebleu.metrics.base
from pydantic import Field
from rapidfuzz.distance import LCSseq, Levenshtein

from dragoman.core.errors import DataError
from dragoman.core.registry import Registry
from dragoman.evaluation.cider import cider_d, count_ngrams

Array = npt.NDArray[np.float64]


class Metric(Protocol):
    """The interface of all metrics; the options are the keyword-only parameters of the constructor."""

    @property
    def label(self) -> str:
        """The name to print, such as "BLEU"."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher score is better."""
        ...

    @property
    def signature(self) -> str | None:
        """sacreBLEU's signature, after the first scoring (it counts the references); None for other metrics."""
        ...

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
        """(N, F): the statistics of each item."""
        ...

    def score(self, totals: Array) -> Array:
        """Summed statistics (…, F) → scores (…)."""
        ...


metrics: Registry[Metric] = Registry("metric")


def corpus_score(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The score of a whole corpus."""
    return float(metric.score(metric.statistics(hypotheses, references).sum(axis=0)))


def check_inputs(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise DataError for no items, unequal numbers of items, or an item without a reference; TypeError for a str."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"there are {len(hypotheses)} hypotheses, but references for {len(references)} items; give equal numbers"
        )
    if not hypotheses:
        raise DataError("there is nothing to score; give at least one hypothesis and its reference")
    for number, accepted in enumerate(references, start=1):
        if isinstance(accepted, str):  # its characters would pass for references
            raise TypeError(f"the references of item {number} are a str; give a list of texts, even for one reference")
        if not accepted:
            raise DataError(f"item {number} has no reference; every item needs at least one (which may be empty)")


# -- metrics of sacreBLEU ----------------------------------------------------------------------------------------------


class SacreBLEUMetric:
    """A metric that sacreBLEU computes, so that scores are comparable with published ones."""

    def __init__(self, scorer: sacrebleu.metrics.base.Metric, label: str, higher_is_better: bool) -> None:
        self._scorer, self.label, self.higher_is_better = scorer, label, higher_is_better

    @property
    def signature(self) -> str | None:
        """sacreBLEU's signature, after the first scoring; None before."""
        is_known = hasattr(self._scorer, "num_refs")  # set when references are first seen
        return str(self._scorer.get_signature()) if is_known else None

    # In sacreBLEU, statistics and scores from statistics are private methods (for its own significance tests). Only the
    # next two methods use them; a test compares the result with sacreBLEU's `corpus_score`.

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
        """(N, F): sacreBLEU's statistics of each item."""
        check_inputs(hypotheses, references)
        streams = list(zip_longest(*references))  # reference by reference; sacreBLEU skips the None of shorter lists
        return np.array(self._scorer._extract_corpus_statistics(hypotheses, streams), dtype=np.float64)

    def score(self, totals: Array) -> Array:
        """Summed statistics (…, F) → sacreBLEU's scores (…)."""
        rows = totals.reshape(-1, totals.shape[-1]).tolist()
        scores = [self._scorer._compute_score_from_stats(row).score for row in rows]
        return np.array(scores, dtype=np.float64).reshape(totals.shape[:-1])


Tokenization = Literal["13a", "intl", "zh", "char", "none"]
Smoothing = Literal["exp", "floor", "add-k", "none"]


def bleu_scorer(order: int, tokenize: Tokenization, lowercase: bool, smooth: Smoothing) -> sacrebleu.BLEU:
    """sacreBLEU's BLEU scorer with n-grams up to `order` words."""
    # `force` only suppresses a warning about tokenized text, which every validation would repeat.
    return sacrebleu.BLEU(
        tokenize=tokenize, lowercase=lowercase, smooth_method=smooth, force=True, max_ngram_order=order
    )


@metrics.register("bleu")
class BLEU(SacreBLEUMetric):
    """Precision of n-grams up to 4 words, with a brevity penalty (Papineni et al. 2002), by sacreBLEU."""

    def __init__(self, *, tokenize: Tokenization = "13a", lowercase: bool = False, smooth: Smoothing = "exp") -> None:
        super().__init__(bleu_scorer(4, tokenize, lowercase, smooth), "BLEU", True)


@metrics.register("bleu1")
class BLEU1(SacreBLEUMetric):
    """BLEU of single words, as reported for captions."""

    def __init__(self, *, tokenize: Tokenization = "13a", lowercase: bool = False, smooth: Smoothing = "exp") -> None:
        super().__init__(bleu_scorer(1, tokenize, lowercase, smooth), "BLEU-1", True)


@metrics.register("bleu2")
class BLEU2(SacreBLEUMetric):
    """BLEU of n-grams up to 2 words."""

    def __init__(self, *, tokenize: Tokenization = "13a", lowercase: bool = False, smooth: Smoothing = "exp") -> None:
        super().__init__(bleu_scorer(2, tokenize, lowercase, smooth), "BLEU-2", True)


@metrics.register("bleu3")
class BLEU3(SacreBLEUMetric):
    """BLEU of n-grams up to 3 words."""

    def __init__(self, *, tokenize: Tokenization = "13a", lowercase: bool = False, smooth: Smoothing = "exp") -> None:
        super().__init__(bleu_scorer(3, tokenize, lowercase, smooth), "BLEU-3", True)


@metrics.register("chrf")
class CHRF(SacreBLEUMetric):
    """F2 of character n-grams up to 6 (Popović 2015), by sacreBLEU; word_order 2 is chrF++."""

    def __init__(self, *, word_order: Annotated[int, Field(ge=0, le=2)] = 0, lowercase: bool = False) -> None:
        super().__init__(sacrebleu.CHRF(word_order=word_order, lowercase=lowercase), "chrF" + "+" * word_order, True)


@metrics.register("ter")
class TER(SacreBLEUMetric):
    """Translation edit rate: word edits and block shifts per reference word (Snover et al. 2006), by sacreBLEU."""

    def __init__(self, *, normalized: bool = False, case_sensitive: bool = False) -> None:
        super().__init__(sacrebleu.TER(normalized=normalized, case_sensitive=case_sensitive), "TER", False)


# -- percentages -------------------------------------------------------------------------------------------------------


def percentage(totals: Array) -> Array:
    """100 · Σ part / Σ whole; for a whole of 0, 100 if the part is positive, else 0 (as in TER)."""
    part, whole = totals[..., 0], totals[..., 1]
    share = np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), part > 0)
    return np.asarray(100.0 * share, dtype=np.float64)


class PercentageMetric(ABC):
    """A percentage: 100 · part / whole, both summed over the items."""

    label: str
    higher_is_better: bool
    signature: str | None = None

    @abstractmethod
    def part_and_whole(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """(part, whole) of one item."""

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
        """(N, 2): part and whole of each item."""
        check_inputs(hypotheses, references)
        pairs = zip(hypotheses, references, strict=True)
        return np.array([self.part_and_whole(hypothesis, accepted) for hypothesis, accepted in pairs], dtype=np.float64)

    def score(self, totals: Array) -> Array:
        """Summed part and whole (…, 2) → percentages (…)."""
        return percentage(totals)


def min_edit_counts(
    units: Callable[[str], Sequence[str]], hypothesis: str, references: Sequence[str]
) -> tuple[float, float]:
    """The Levenshtein distance in units (words, characters), and the number of units of the reference.

    Of several references the one with the fewest edits per unit counts; an empty one counts as one unit long.
    """
    output = units(hypothesis)
    candidates = [(Levenshtein.distance(reference, output), len(reference)) for reference in map(units, references)]
    return min(candidates, key=lambda candidate: candidate[0] / max(candidate[1], 1))


@metrics.register("wer")
class WER(PercentageMetric):
    """Word error rate: edits per reference word; words are separated by whitespace."""

    label = "WER"
    higher_is_better = False

    def part_and_whole(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """The word edits, and the words of the best reference."""
        return min_edit_counts(str.split, hypothesis, references)


@metrics.register("cer")
class CER(PercentageMetric):
    """Character error rate: edits per reference character; spaces count, except around the text (as jiwer does)."""

    label = "CER"
    higher_is_better = False

    def part_and_whole(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """The character edits, and the characters of the best reference, both stripped."""
        return min_edit_counts(str.strip, hypothesis, references)


@metrics.register("per")
class PER(PercentageMetric):
    """Phoneme error rate: edits per reference phoneme; phonemes are separated by whitespace."""

    label = "PER"
    higher_is_better = False

    def part_and_whole(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """The phoneme edits, and the phonemes of the best reference."""
        return min_edit_counts(str.split, hypothesis, references)


@metrics.register("exact")
class ExactMatch(PercentageMetric):
    """The share of items that are equal to one of their references, character for character."""

    label = "exact match"
    higher_is_better = True

    def part_and_whole(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """1 if the hypothesis equals a reference, and 1."""
        return float(hypothesis in references), 1.0


@metrics.register("accuracy")
class Accuracy(PercentageMetric):
    """Token accuracy: the share of reference positions that hold the same token in the hypothesis.

    Tokens are separated by whitespace. Nothing is aligned: an extra token at the front makes all
    that follow wrong, and tokens after the end of the reference are ignored. An empty reference
    counts as one position, which is right if the hypothesis is empty, too.
    """

    label = "accuracy"
    higher_is_better = True

    def part_and_whole(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """The correct positions, and the positions of the best reference."""
        output = hypothesis.split()
        candidates = []
        for reference in map(str.split, references):
            correct = sum(x == y for x, y in zip(reference, output, strict=False)) if reference else int(not output)
            candidates.append((correct, max(len(reference), 1)))
        return max(candidates, key=lambda candidate: candidate[0] / candidate[1])


# -- ROUGE -------------------------------------------------------------------------------------------------------------


def rouge_words(text: str) -> list[str]:
    """The words of a text for ROUGE: lower-cased runs of letters and digits, not stemmed.

    The rouge_score package keeps only a–z and 0–9. Here the letters and digits of every script
    count, with their combining marks (accents, vowel signs). A script without spaces must be
    segmented first.
    """
    kept = (c if c.isalnum() or unicodedata.category(c).startswith("M") else " " for c in text.lower())
    return "".join(kept).split()


Overlap = Callable[[list[str], list[str]], tuple[int, int, int]]  # shared, in the hypothesis, in the reference


def best_f1(overlap: Overlap, hypothesis: str, references: Sequence[str]) -> float:
    """The F1 of the overlap of hypothesis and reference (Lin 2004), for the best of several references."""

    def f1(shared: int, in_hypothesis: int, in_reference: int) -> float:
        return 2.0 * shared / (in_hypothesis + in_reference) if shared else 0.0  # = 2PR / (P + R)

    words = rouge_words(hypothesis)
    return max(f1(*overlap(words, rouge_words(reference))) for reference in references)


def count_shared_ngrams(n: int, hypothesis: list[str], reference: list[str]) -> tuple[int, int, int]:
    """The number of shared n-grams (the smaller count of each), of those in the hypothesis, and in the reference."""
    counts = [count_ngrams(words, n) for words in (hypothesis, reference)]
    return (counts[0] & counts[1]).total(), counts[0].total(), counts[1].total()


def longest_common_subsequence(hypothesis: list[str], reference: list[str]) -> tuple[int, int, int]:
    """The lengths of the longest common subsequence, of the hypothesis, and of the reference."""
    return LCSseq.similarity(hypothesis, reference), len(hypothesis), len(reference)


@metrics.register("rouge1")
class Rouge1(PercentageMetric):
    """ROUGE-1: F1 of single words, averaged over items."""

    label = "ROUGE-1"
    higher_is_better = True

    def part_and_whole(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """The F1 of words with the best reference, and 1."""
        return best_f1(partial(count_shared_ngrams, 1), hypothesis, references), 1.0


@metrics.register("rouge2")
class Rouge2(PercentageMetric):
    """ROUGE-2: F1 of pairs of neighboring words, averaged over items."""

    label = "ROUGE-2"
    higher_is_better = True

    def part_and_whole(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """The F1 of word pairs with the best reference, and 1."""
        return best_f1(partial(count_shared_ngrams, 2), hypothesis, references), 1.0


@metrics.register("rougel")
class RougeL(PercentageMetric):
    """ROUGE-L: F1 of the longest common subsequence of words, averaged over items."""

    label = "ROUGE-L"
    higher_is_better = True

    def part_and_whole(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """The F1 of the longest common subsequence of words with the best reference, and 1."""
        return best_f1(longest_common_subsequence, hypothesis, references), 1.0


# -- captions ----------------------------------------------------------------------------------------------------------


@metrics.register("cider")
class CIDEr:
    """CIDEr-D (Vedantam et al. 2015), averaged over items and times 100, as in papers: 1000 is the best.

    Words are those of ROUGE. The weight of an n-gram depends on all references that are scored together.
    """

    label = "CIDEr-D"
    higher_is_better = True
    signature = None

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
        """(N, 2): the CIDEr-D score of each item, 0 to 10, and 1."""
        check_inputs(hypotheses, references)
        scores = cider_d(
            [rouge_words(text) for text in hypotheses], [[rouge_words(text) for text in some] for some in references]
        )
        return np.array([(score, 1.0) for score in scores], dtype=np.float64)

    def score(self, totals: Array) -> Array:
        """Summed statistics (…, 2) → 100 · mean score (…)."""
        return percentage(totals)
