"""Find repeated pairs.

    pairs       the same source and target (and languages) as an earlier pair
    targets     an earlier source with another target, where only the first target is kept
    near        a pair both of whose sides are nearly those of an earlier pair that is kept: without regard to case,
                accents and punctuation, and for sentences with a Levenshtein similarity of at least 0.85

Without `near`, texts are compared as `data check` does: in Unicode form NFC, without regard to extra spaces. Words that
share a stem are no near-duplicates here: only a split must keep them together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rapidfuzz.distance import Levenshtein

from dragoman.core.types import Example
from dragoman.data.quality.survey import hash_pair
from dragoman.data.selection.similarity import NEAR, find_similar, fold_text, is_word

Targets = Literal["all", "first"]
MAX_COMPARED_TARGETS = 50  # of one source

Reason = Literal["repeated pair", "another target", "near-duplicate"]


def find_duplicates(examples: Iterable[Example], *, targets: Targets = "all", near: bool = False) -> dict[int, Reason]:
    """The rows to leave out, in file order, and why; the first of equals stays.

    With targets="first" a source keeps its first target alone; with `near`, of nearly equal pairs only one stays.
    """
    examples = list(examples)
    reasons: dict[int, Reason] = {}
    pairs: set[int] = set()
    sources: set[int] = set()
    for row, example in enumerate(examples):
        source, pair = hash_pair(example, "nfc")
        if pair in pairs:
            reasons[row] = "repeated pair"
        elif targets == "first" and source in sources:
            reasons[row] = "another target"
        pairs.add(pair)
        sources.add(source)
    if near:
        _add_near(examples, reasons)
    return dict(sorted(reasons.items()))


def _add_near(examples: list[Example], reasons: dict[int, Reason]) -> None:
    folded = [fold_text(example.source) for example in examples]
    texts = sorted(set(folded))
    number = {text: row for row, text in enumerate(texts)}
    near: list[list[int]] = [[text] for text in range(len(texts))]
    links = find_similar(texts)
    for left, right in zip(links.left.tolist(), links.right.tolist(), strict=True):
        if not (is_word(texts[left]) and is_word(texts[right])):
            near[left].append(right)
            near[right].append(left)
    kept: dict[tuple[int, str, str, str], list[str]] = {}  # targets by source, second source and languages
    for row, example in enumerate(examples):
        if row in reasons:
            continue
        others = (fold_text(example.second_source), example.source_lang or "", example.target_lang or "")
        target, text = fold_text(example.target or ""), number[folded[row]]
        earlier = (other for each in near[text] for other in kept.get((each, *others), ())[-MAX_COMPARED_TARGETS:])
        if any(_is_near(target, other) for other in earlier):
            reasons[row] = "near-duplicate"
        else:
            kept.setdefault((text, *others), []).append(target)


def _is_near(target: str, other: str) -> bool:
    if target == other:
        return True
    is_sentence = not (is_word(target) and is_word(other))
    return is_sentence and Levenshtein.normalized_similarity(target, other, score_cutoff=NEAR) > 0
