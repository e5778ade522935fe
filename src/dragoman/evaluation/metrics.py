"""Hypotheses and references → a score from 0 to 100 (error rates and CIDEr may exceed it), by way of sums.

    statistics(hypotheses, references) → (N, F)      what each item adds: its edits and its reference's length, say
    score(Σ_n statistics) → the score of the corpus

Every metric here is a function of a sum over items. So a resampled or a partial corpus costs one sum and no new look at
the text, which is what the bootstrap and quality by length are made of.

`references[n]` are the accepted references of item n: one or more, not as many for every item. What becomes of several:
BLEU, chrF and TER follow sacreBLEU; CIDEr is a mean over them; all others take the reference that is kindest to the
hypothesis.

N items, F statistics for each.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import sacrebleu
from pydantic import Field
from rapidfuzz.distance import LCSseq, Levenshtein

from dragoman.core.errors import DataError
from dragoman.core.registry import Registry
from dragoman.evaluation.cider import cider_d

Array = npt.NDArray[np.float64]


class Metric(Protocol):
    """What every metric can do; its options are the keyword-only parameters of its constructor."""

    @property
    def label(self) -> str:
        """The name to print, such as "BLEU"."""
        ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def signature(self) -> str | None:
        """sacreBLEU's signature, once something was scored (it counts the references); None for other metrics."""
        ...

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
        """(N, F): what each item adds to the corpus."""
        ...

    def score(self, totals: Array) -> Array:
        """Summed statistics (…, F) → scores (…)."""
        ...


metrics: Registry[Metric] = Registry("metric")


def corpus(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The score of a whole corpus."""
    return float(metric.score(metric.statistics(hypotheses, references).sum(axis=0)))


def check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Refuse what has no score: nothing at all, sides of unequal length, an item without a reference."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"there are {len(hypotheses)} hypotheses and references for {len(references)} items; there must be as many"
        )
    if not hypotheses:
        raise DataError("there is nothing to score; give at least one hypothesis and its reference")
    for number, accepted in enumerate(references, start=1):
        if isinstance(accepted, str):  # its characters would pass for references
            raise TypeError(f"the references of item {number} are a str; give a list of texts, even for one reference")
        if not accepted:
            raise DataError(f"item {number} has no reference; every item needs at least one (which may be empty)")


# -- what sacreBLEU computes -------------------------------------------------------------------------------------------


class Sacre:
    """A metric of sacreBLEU, so that its numbers compare with everyone else's."""

    def __init__(self, scorer: Any, label: str, higher_is_better: bool) -> None:
        self._scorer, self.label, self.higher_is_better = scorer, label, higher_is_better

    @property
    def signature(self) -> str | None:
        known = hasattr(self._scorer, "num_refs")  # set when references are first seen
        return str(self._scorer.get_signature()) if known else None

    # sacreBLEU has statistics, and scores made from them, only under private names (for its own significance tests).
    # They are used in the next two methods and nowhere else; a test holds the result equal to its `corpus_score`.

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
        check(hypotheses, references)
        streams = list(zip_longest(*references))  # reference by reference; sacreBLEU skips the None of shorter lists
        return np.array(self._scorer._extract_corpus_statistics(hypotheses, streams), dtype=np.float64)

    def score(self, totals: Array) -> Array:
        rows = totals.reshape(-1, totals.shape[-1]).tolist()
        scores = [self._scorer._compute_score_from_stats(row).score for row in rows]
        return np.array(scores, dtype=np.float64).reshape(totals.shape[:-1])


Tokenization = Literal["13a", "intl", "zh", "char", "none"]
Smoothing = Literal["exp", "floor", "add-k", "none"]


def scorer_up_to(order: int, tokenize: Tokenization, lowercase: bool, smooth: Smoothing) -> sacrebleu.BLEU:
    """sacreBLEU's scorer of n-grams up to `order` words."""
    # `force` drops only a warning about tokenized text, which training would repeat at every validation.
    return sacrebleu.BLEU(
        tokenize=tokenize, lowercase=lowercase, smooth_method=smooth, force=True, max_ngram_order=order
    )


@metrics.register("bleu")
class BLEU(Sacre):
    """Shared n-grams up to 4 words, with a penalty for brevity (Papineni et al. 2002), as sacreBLEU computes it."""

    def __init__(self, *, tokenize: Tokenization = "13a", lowercase: bool = False, smooth: Smoothing = "exp") -> None:
        super().__init__(scorer_up_to(4, tokenize, lowercase, smooth), "BLEU", True)


@metrics.register("bleu1")
class BLEU1(Sacre):
    """BLEU of single words alone, as captions are scored besides."""

    def __init__(self, *, tokenize: Tokenization = "13a", lowercase: bool = False, smooth: Smoothing = "exp") -> None:
        super().__init__(scorer_up_to(1, tokenize, lowercase, smooth), "BLEU-1", True)


@metrics.register("bleu2")
class BLEU2(Sacre):
    """BLEU of n-grams up to 2 words."""

    def __init__(self, *, tokenize: Tokenization = "13a", lowercase: bool = False, smooth: Smoothing = "exp") -> None:
        super().__init__(scorer_up_to(2, tokenize, lowercase, smooth), "BLEU-2", True)


@metrics.register("bleu3")
class BLEU3(Sacre):
    """BLEU of n-grams up to 3 words."""

    def __init__(self, *, tokenize: Tokenization = "13a", lowercase: bool = False, smooth: Smoothing = "exp") -> None:
        super().__init__(scorer_up_to(3, tokenize, lowercase, smooth), "BLEU-3", True)


@metrics.register("chrf")
class CHRF(Sacre):
    """F2 of shared character n-grams up to 6 (Popović 2015), as sacreBLEU computes it; word_order 2 is chrF++."""

    def __init__(self, *, word_order: Annotated[int, Field(ge=0, le=2)] = 0, lowercase: bool = False) -> None:
        super().__init__(sacrebleu.CHRF(word_order=word_order, lowercase=lowercase), "chrF" + "+" * word_order, True)


@metrics.register("ter")
class TER(Sacre):
    """Edits of words, shifts of blocks included, per reference word (Snover et al. 2006), as sacreBLEU computes it."""

    def __init__(self, *, normalized: bool = False, case_sensitive: bool = False) -> None:
        super().__init__(sacrebleu.TER(normalized=normalized, case_sensitive=case_sensitive), "TER", False)


# -- what is a share of a whole ----------------------------------------------------------------------------------------


def percentage(totals: Array) -> Array:
    """100 · Σ part / Σ whole; over a whole of nothing, 100 if there is any part of it and 0 if not (as TER has it)."""
    part, whole = totals[..., 0], totals[..., 1]
    share = np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), part > 0)
    return np.asarray(100.0 * share, dtype=np.float64)


class Ratio(ABC):
    """The percentage of a whole, both summed over the items."""

    label: str
    higher_is_better: bool
    signature: str | None = None

    @abstractmethod
    def item(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        """(part, whole) of one item."""

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
        check(hypotheses, references)
        pairs = zip(hypotheses, references, strict=True)
        return np.array([self.item(hypothesis, accepted) for hypothesis, accepted in pairs], dtype=np.float64)

    def score(self, totals: Array) -> Array:
        return percentage(totals)


def fewest_edits(
    units: Callable[[str], Sequence[str]], hypothesis: str, references: Sequence[str]
) -> tuple[float, float]:
    """Insertions, deletions and substitutions of units (Levenshtein), and how many units the reference has.

    Of several references the one with the fewest edits per unit counts; an empty one is taken for one unit long there.
    """
    found = units(hypothesis)
    candidates = [(Levenshtein.distance(wanted, found), len(wanted)) for wanted in map(units, references)]
    return min(candidates, key=lambda candidate: candidate[0] / max(candidate[1], 1))


@metrics.register("wer")
class WER(Ratio):
    """Word error rate: edits per reference word; words are what whitespace separates."""

    label = "WER"
    higher_is_better = False

    def item(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        return fewest_edits(str.split, hypothesis, references)


@metrics.register("cer")
class CER(Ratio):
    """Character error rate: edits per reference character; spaces count, except around the text (as jiwer does)."""

    label = "CER"
    higher_is_better = False

    def item(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        return fewest_edits(str.strip, hypothesis, references)


@metrics.register("per")
class PER(Ratio):
    """Phoneme error rate: edits per reference phoneme; phonemes are what whitespace separates."""

    label = "PER"
    higher_is_better = False

    def item(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        return fewest_edits(str.split, hypothesis, references)


@metrics.register("exact")
class Exact(Ratio):
    """The share of items that are equal to one of their references, character for character."""

    label = "exact match"
    higher_is_better = True

    def item(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        return float(hypothesis in references), 1.0


@metrics.register("accuracy")
class Accuracy(Ratio):
    """Token accuracy: the share of reference positions that hold the same token in the hypothesis.

    Tokens are what whitespace separates. Nothing is aligned: one token too many at the front makes all that follow
    wrong, and what comes after the reference's last position is not looked at. An empty reference is one position,
    right if the hypothesis is empty too.
    """

    label = "accuracy"
    higher_is_better = True

    def item(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        found = hypothesis.split()
        candidates = []
        for reference in references:
            wanted = reference.split()
            right = sum(x == y for x, y in zip(wanted, found, strict=False)) if wanted else int(not found)
            candidates.append((right, max(len(wanted), 1)))
        return max(candidates, key=lambda candidate: candidate[0] / candidate[1])


# -- ROUGE -------------------------------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """The lower-cased runs of letters and digits, not stemmed.

    The usual rouge_score package keeps only a–z and 0–9. Here the letters and digits of every script count, and the
    marks that belong to them (accents, vowel signs). A script without spaces has to be segmented first.
    """
    kept = (c if c.isalnum() or unicodedata.category(c).startswith("M") else " " for c in text.lower())
    return "".join(kept).split()


Overlap = Callable[[list[str], list[str]], tuple[int, int, int]]  # shared, in the hypothesis, in the reference


def best_f1(overlap: Overlap, hypothesis: str, references: Sequence[str]) -> float:
    """F1 of what hypothesis and reference share (Lin 2004); of several references the best."""

    def f1(shared: int, in_found: int, in_wanted: int) -> float:
        return 2.0 * shared / (in_found + in_wanted) if shared else 0.0  # = 2PR / (P + R)

    found = words(hypothesis)
    return max(f1(*overlap(found, words(reference))) for reference in references)


def shared_ngrams(n: int, found: list[str], wanted: list[str]) -> tuple[int, int, int]:
    """How many n-grams are in both sides (the smaller count of each), in the hypothesis, in the reference."""
    counts = [Counter(zip(*(side[i:] for i in range(n)), strict=False)) for side in (found, wanted)]
    return (counts[0] & counts[1]).total(), counts[0].total(), counts[1].total()


def longest_in_common(found: list[str], wanted: list[str]) -> tuple[int, int, int]:
    """How long the longest common subsequence is, the hypothesis, the reference."""
    return LCSseq.similarity(found, wanted), len(found), len(wanted)


@metrics.register("rouge1")
class Rouge1(Ratio):
    """ROUGE-1: F1 of single words, averaged over items."""

    label = "ROUGE-1"
    higher_is_better = True

    def item(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        return best_f1(partial(shared_ngrams, 1), hypothesis, references), 1.0


@metrics.register("rouge2")
class Rouge2(Ratio):
    """ROUGE-2: F1 of pairs of neighboring words, averaged over items."""

    label = "ROUGE-2"
    higher_is_better = True

    def item(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        return best_f1(partial(shared_ngrams, 2), hypothesis, references), 1.0


@metrics.register("rougel")
class RougeL(Ratio):
    """ROUGE-L: F1 of the longest common subsequence of words, averaged over items."""

    label = "ROUGE-L"
    higher_is_better = True

    def item(self, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
        return best_f1(longest_in_common, hypothesis, references), 1.0


# -- captions ----------------------------------------------------------------------------------------------------------


@metrics.register("cider")
class CIDEr:
    """CIDEr-D (Vedantam et al. 2015), averaged over items and times 100, as papers print it: 1000 is the best.

    Words are those of ROUGE. How much an n-gram weighs depends on all the references that are scored together.
    """

    label = "CIDEr-D"
    higher_is_better = True
    signature = None

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
        check(hypotheses, references)
        scores = cider_d([words(text) for text in hypotheses], [[words(text) for text in some] for some in references])
        return np.array([(score, 1.0) for score in scores], dtype=np.float64)

    def score(self, totals: Array) -> Array:
        return percentage(totals)
