"""Metrics: hypotheses and references → a score from 0 to 100 (error rates and CIDEr may exceed it).

    statistics(hypotheses, references) → (N, F)      of each item, such as its edits and its reference's length
    score(Σ_n statistics) → the score of the corpus

Every metric here is a function of a sum over items. So the score of a resampled or partial corpus needs one sum and no
text; the bootstrap and scores by length build on that.

`references[n]` are the accepted references of item n, one or more. With several, BLEU, chrF and TER follow sacreBLEU;
CIDEr is a mean over them; all others take the reference that is best for the hypothesis.

N items, F statistics for each.
"""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import zip_longest
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import sacrebleu
import sacrebleu.metrics.base
from pydantic import Field
from rapidfuzz.distance import LCSseq, Levenshtein

from dragoman.core.errors import DataError, UserError
from dragoman.core.registry import Part, Registry
from dragoman.evaluation.cider import cider_d, count_ngrams

Array = npt.NDArray[np.float64]


class Metric(Protocol):
    """The interface of all metrics; the options are the keyword-only parameters of what is registered."""

    label: str  # the short name to print, such as "BLEU"
    name: str  # the full name
    unit: str  # "%" or "points"
    higher_is_better: bool
    description: str  # one sentence for a reader who does not know the metric

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


@dataclass(frozen=True)
class MetricInfo:
    """What is printed about a metric. The docstring of what is registered says it: `Full name: one sentence.`"""

    label: str
    name: str
    unit: str
    higher_is_better: bool
    description: str

    @classmethod
    def from_docstring(cls, docstring: str | None, label: str, unit: str, higher_is_better: bool) -> MetricInfo:
        """Read name and sentence from the first line of a docstring."""
        name, _, description = (docstring or "").split("\n", 1)[0].partition(": ")
        return cls(label, name, unit, higher_is_better, description)

    def extend_docstring(self, docstring: str | None) -> str:
        """Return the docstring with unit and direction in its first line, for `dragoman list metrics`."""
        first, *rest = inspect.cleandoc(docstring or "").split("\n", 1)
        direction = "higher" if self.higher_is_better else "lower"
        return "\n".join([f"{first.removesuffix('.')} ({self.unit}, {direction} is better).", *rest])


def parse_metrics(given: str | Sequence[str | Part]) -> list[Part]:
    """Turn names, in a list or separated by commas, into metrics; "all" gives all. UserError for an unknown name."""
    names = [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else list(given)
    if names == ["all"]:
        names = [*metrics.names]
    parts = [Part(name) if isinstance(name, str) else name for name in names]
    for part in parts:
        if part.name not in metrics.names:
            raise UserError(f"metrics: {metrics.unknown_name_message(part.name)}")
    return parts


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

    def __init__(self, scorer: sacrebleu.metrics.base.Metric, info: MetricInfo) -> None:
        self._scorer = scorer
        self.label, self.name, self.unit = info.label, info.name, info.unit
        self.higher_is_better, self.description = info.higher_is_better, info.description

    @property
    def signature(self) -> str | None:
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


def register_sacrebleu(
    name: str, label: str, unit: str, *, higher_is_better: bool
) -> Callable[[Callable[..., sacrebleu.metrics.base.Metric]], None]:
    """Register the decorated function, options → a scorer of sacreBLEU, as a metric."""

    def add(build_scorer: Callable[..., sacrebleu.metrics.base.Metric]) -> None:
        info = MetricInfo.from_docstring(build_scorer.__doc__, label, unit, higher_is_better)

        @wraps(build_scorer)
        def build(**options: Any) -> SacreBLEUMetric:
            plus = "+" * options.get("word_order", 0)  # of chrF
            return SacreBLEUMetric(build_scorer(**options), replace(info, label=label + plus))

        build.__doc__ = info.extend_docstring(build_scorer.__doc__)
        metrics.register(name)(build)

    return add


def register_bleu(name: str, label: str, order: int, docstring: str) -> None:
    """Register BLEU of n-grams up to `order` words."""

    def build(*, tokenize: Tokenization = "13a", lowercase: bool = False, smooth: Smoothing = "exp") -> sacrebleu.BLEU:
        # `force` only suppresses a warning about tokenized text, which every validation would repeat.
        return sacrebleu.BLEU(
            tokenize=tokenize, lowercase=lowercase, smooth_method=smooth, force=True, max_ngram_order=order
        )

    build.__doc__ = docstring
    register_sacrebleu(name, label, "points", higher_is_better=True)(build)


BLEU = """Bilingual evaluation understudy: precision of n-grams up to 4 words, times a brevity penalty, by sacreBLEU.

Papineni et al. 2002.
"""
register_bleu("bleu", "BLEU", 4, BLEU)
register_bleu("bleu1", "BLEU-1", 1, "BLEU of single words: their precision, times a brevity penalty, as for captions.")
register_bleu("bleu2", "BLEU-2", 2, "BLEU of n-grams up to 2 words: their precision, times a brevity penalty.")
register_bleu("bleu3", "BLEU-3", 3, "BLEU of n-grams up to 3 words: their precision, times a brevity penalty.")


@register_sacrebleu("chrf", "chrF", "points", higher_is_better=True)
def chrf(*, word_order: Annotated[int, Field(ge=0, le=2)] = 0, lowercase: bool = False) -> sacrebleu.CHRF:
    """Character n-gram F-score: F2 of n-grams up to 6 characters, by sacreBLEU.

    Popović 2015; word_order 2 is chrF++.
    """
    return sacrebleu.CHRF(word_order=word_order, lowercase=lowercase)


@register_sacrebleu("ter", "TER", "%", higher_is_better=False)
def ter(*, normalized: bool = False, case_sensitive: bool = False) -> sacrebleu.TER:
    """Translation edit rate: word edits and shifts of phrases per reference word, by sacreBLEU.

    Snover et al. 2006.
    """
    return sacrebleu.TER(normalized=normalized, case_sensitive=case_sensitive)


# -- percentages -------------------------------------------------------------------------------------------------------


@dataclass
class PercentageMetric:
    """A percentage: 100 · Σ part / Σ whole; for a whole of 0, 100 if the part is positive, else 0 (as in TER)."""

    label: str
    name: str
    unit: str
    higher_is_better: bool
    description: str
    measure: Callable[[Sequence[str], Sequence[Sequence[str]]], Iterable[tuple[float, float]]]
    signature: str | None = None

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Array:
        """(N, 2): part and whole of each item."""
        check_inputs(hypotheses, references)
        return np.array(list(self.measure(hypotheses, references)), dtype=np.float64)

    def score(self, totals: Array) -> Array:
        """Summed part and whole (…, 2) → percentages (…)."""
        part, whole = totals[..., 0], totals[..., 1]
        share = np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), part > 0)
        return np.asarray(100.0 * share, dtype=np.float64)


ItemMeasure = Callable[[str, Sequence[str]], tuple[float, float]]


def register_percentage(
    name: str, label: str, *, higher_is_better: bool, unit: str = "%"
) -> Callable[[ItemMeasure], ItemMeasure]:
    """Register the decorated function, (hypothesis, references) → (part, whole) of one item, as a percentage."""

    def add(measure_item: ItemMeasure) -> ItemMeasure:
        info = MetricInfo.from_docstring(measure_item.__doc__, label, unit, higher_is_better)

        def build() -> PercentageMetric:
            return PercentageMetric(**vars(info), measure=partial(map, measure_item))

        build.__doc__ = info.extend_docstring(measure_item.__doc__)
        metrics.register(name)(build)
        return measure_item

    return add


def min_edit_counts(
    units: Callable[[str], Sequence[str]], hypothesis: str, references: Sequence[str]
) -> tuple[float, float]:
    """The edits (Levenshtein distance) in units (words, characters) to the nearest reference, and its units."""
    output = units(hypothesis)
    candidates = [(Levenshtein.distance(reference, output), len(reference)) for reference in map(units, references)]
    return min(candidates, key=lambda candidate: candidate[0] / max(candidate[1], 1))


@register_percentage("wer", "WER", higher_is_better=False)
def word_error_rate(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """Word error rate: inserted, deleted and changed words per reference word; whitespace separates words."""
    return min_edit_counts(str.split, hypothesis, references)


@register_percentage("cer", "CER", higher_is_better=False)
def character_error_rate(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """Character error rate: inserted, deleted and changed characters per reference character; spaces count.

    Those around the text do not, as in jiwer.
    """
    return min_edit_counts(str.strip, hypothesis, references)


@register_percentage("per", "PER", higher_is_better=False)
def phoneme_error_rate(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """Phoneme error rate: inserted, deleted and changed phonemes per reference phoneme; whitespace separates them."""
    return min_edit_counts(str.split, hypothesis, references)


@register_percentage("exact", "exact match", higher_is_better=True)
def exact_match(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """Exact match: the share of outputs that are equal to one of their references, character for character."""
    return float(hypothesis in references), 1.0


@register_percentage("ser", "SER", higher_is_better=False)
def sequence_error_rate(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """Sequence error rate: the share of outputs with any error, that is, equal to none of their references.

    100 minus exact match. It is not the word error rate, which counts edits.
    """
    return float(hypothesis not in references), 1.0


@register_percentage("accuracy", "accuracy", higher_is_better=True)
def token_accuracy(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """Token accuracy: the share of reference positions that hold the same token in the output; nothing is aligned.

    Tokens are separated by whitespace. An extra token at the front makes all that follow wrong. An
    empty reference counts as one position, which is right if the hypothesis is empty, too.
    """
    output = hypothesis.split()
    candidates = []
    for reference in map(str.split, references):
        correct = sum(x == y for x, y in zip(reference, output, strict=False)) if reference else int(not output)
        candidates.append((correct, max(len(reference), 1)))
    return max(candidates, key=lambda candidate: candidate[0] / candidate[1])


# -- ROUGE -------------------------------------------------------------------------------------------------------------


def rouge_words(text: str) -> list[str]:
    """The words of a text for ROUGE: lower-cased runs of letters and digits, not stemmed.

    The rouge_score package keeps only a–z and 0–9. Here those of every script count, with their combining marks.
    """
    kept = (c if c.isalnum() or unicodedata.category(c).startswith("M") else " " for c in text.lower())
    return "".join(kept).split()


Overlap = Callable[[list[str], list[str]], tuple[int, int, int]]  # shared, in the hypothesis, in the reference


def best_f1(overlap: Overlap, hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """The F1 of the overlap of hypothesis and reference (Lin 2004), for the best of several references, and 1."""

    def f1(shared: int, in_hypothesis: int, in_reference: int) -> float:
        return 2.0 * shared / (in_hypothesis + in_reference) if shared else 0.0  # = 2PR / (P + R)

    words = rouge_words(hypothesis)
    return max(f1(*overlap(words, rouge_words(reference))) for reference in references), 1.0


def count_shared_ngrams(n: int, hypothesis: list[str], reference: list[str]) -> tuple[int, int, int]:
    """The number of shared n-grams (the smaller count of each), of those in the hypothesis, and in the reference."""
    counts = [count_ngrams(words, n) for words in (hypothesis, reference)]
    return (counts[0] & counts[1]).total(), counts[0].total(), counts[1].total()


@register_percentage("rouge1", "ROUGE-1", higher_is_better=True, unit="points")
def rouge1(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """Recall-oriented understudy, single words: F1 of the words in both output and reference, averaged over items."""
    return best_f1(partial(count_shared_ngrams, 1), hypothesis, references)


@register_percentage("rouge2", "ROUGE-2", higher_is_better=True, unit="points")
def rouge2(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """Recall-oriented understudy, word pairs: F1 of the shared pairs of neighboring words, averaged over items."""
    return best_f1(partial(count_shared_ngrams, 2), hypothesis, references)


@register_percentage("rougel", "ROUGE-L", higher_is_better=True, unit="points")
def rouge_l(hypothesis: str, references: Sequence[str]) -> tuple[float, float]:
    """Recall-oriented understudy, subsequences: F1 of the longest common subsequence of words, averaged over items."""

    def common_subsequence(output: list[str], reference: list[str]) -> tuple[int, int, int]:
        return LCSseq.similarity(output, reference), len(output), len(reference)

    return best_f1(common_subsequence, hypothesis, references)


# -- captions ----------------------------------------------------------------------------------------------------------


def _measure_cider(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Iterable[tuple[float, float]]:
    """Consensus-based image description evaluation: CIDEr-D, the agreement with several captions; 1000 is the best.

    Vedantam et al. 2015, averaged over items and times 100, as in papers. Words are those of ROUGE. The weight of an
    n-gram depends on all references that are scored together.
    """
    candidates = list(map(rouge_words, hypotheses))
    scores = cider_d(candidates, [list(map(rouge_words, several)) for several in references])
    return [(score, 1.0) for score in scores]


CIDER = MetricInfo.from_docstring(_measure_cider.__doc__, "CIDEr-D", "points", True)


@metrics.register("cider")
def cider() -> PercentageMetric:
    return PercentageMetric(**vars(CIDER), measure=_measure_cider)


cider.__doc__ = CIDER.extend_docstring(_measure_cider.__doc__)
