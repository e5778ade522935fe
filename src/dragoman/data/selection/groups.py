"""Group pairs whose sources are equal or similar, so that a split can keep them together.

    sources ─fold→ distinct texts ─find_similar, equal targets→ links ─merge, the strongest first→ groups

Equal sources are always one group, and so are forms of one lemma (a source of a word and grammatical tags is compared
without the tags). Weaker links could chain a whole file together (a–b–c–…), so groups grow from the strongest link to
the weakest and stop at a limit, √N pairs by default: the threshold tightens by itself where texts are dense.

The result does not depend on the order of the pairs.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.core.types import Example
from dragoman.data.selection import similarity
from dragoman.data.selection.similarity import Ints, Links, TagSide

TAGGED_SHARE = 0.8  # of the sources with tags at one end: the task is inflection
FILE_SHARE = 0.9  # of the sources that are names of files, which are not compared
MIN_TARGET = 12  # characters of a sentence's target; a shorter one may be a label
MAX_SAME_TARGET = 20  # sentences that share a target; what more share is a label, too
SAME_TARGET_STRENGTH = 0.95
MIN_LIMIT, MAX_LIMIT = 5, 200  # pairs in a group of similar sources


@dataclass(frozen=True)
class ComparedPairs:
    """The distinct folded sources of N pairs in alphabetical order, and the links between them."""

    texts: list[str]
    rows: Ints  # (N,): the text of each pair
    links: Links
    unit: str  # what the sources are: "words", "sentences" or "sources"
    languages: list[str]  # of both sides, for each pair
    lengths: Ints  # (N,): characters of both sides

    @property
    def sizes(self) -> Ints:
        """(T,): how many pairs each text has."""
        return np.bincount(self.rows, minlength=len(self.texts))


def compare_pairs(examples: Iterable[Example], keys: Sequence[Hashable] | None = None) -> ComparedPairs:
    """Compare the sources of pairs (of texts alone, the texts) or, if there are any, only their `keys`."""
    sources: list[str] = []
    targets: list[str] = []
    languages: list[str] = []
    names: dict[str, str] = {}  # each name of languages once
    lengths = array("q")
    for example in examples:
        source, target = example.source, example.target or ""
        sources.append(f"{source}\n{example.second_source}" if example.second_source else source or target)
        targets.append(target if source else "")
        language = f"{example.source_lang or ''}→{example.target_lang or ''}"
        languages.append(names.setdefault(language, language))
        lengths.append(len(source) + len(target))
    if keys is not None:
        if len(keys) != len(sources):
            raise ValueError(f"there are {len(keys)} keys for {len(sources)} pairs")
        folded, compares, side = [repr(key) for key in keys], False, None
    else:
        compares = not _nearly_all(map(similarity.is_file_name, sources), len(sources), FILE_SHARE)
        side = _find_common_tag_side(sources)
        folded = [_fold(source, side) for source in sources] if compares else sources
    texts = sorted(set(folded))
    number = {text: row for row, text in enumerate(texts)}
    rows = np.fromiter((number[text] for text in folded), np.int64, len(folded))
    links, unit = similarity.join_links([]), "sources"
    if compares and texts:
        links = similarity.find_similar(texts)
        if side is None:
            links = similarity.join_links([links, _link_same_targets(texts, rows, targets)])
        words = sum(map(similarity.is_word, texts))
        unit = "words" if words > 0.5 * len(texts) else "sentences"
    return ComparedPairs(texts, rows, links, unit, languages, np.array(lengths, np.int64))


def _fold(source: str, side: TagSide | None) -> str:
    return similarity.fold_text(source if side is None else similarity.drop_tags(source, side))


def _nearly_all(holds: Iterable[bool], count: int, share: float) -> bool:
    """Whether this share of `count` values hold; most answers need only a few of them."""
    missing = 0
    for each in holds:
        missing += not each
        if missing > (1 - share) * count:
            return False
    return True


def _find_common_tag_side(sources: Sequence[str]) -> TagSide | None:
    """The end at which nearly all sources have grammatical tags, if they do."""
    sides: tuple[TagSide, TagSide] = ("end", "start")
    for side in sides:
        if sources and _nearly_all(
            (similarity.find_tag_side(source) == side for source in sources), len(sources), TAGGED_SHARE
        ):
            return side
    return None


def _link_same_targets(texts: Sequence[str], rows: Ints, targets: Sequence[str]) -> Links:
    """Links between sentences that have a target in common: two ways to ask for one answer."""
    by_target: dict[str, set[int]] = {}
    for row, target in zip(rows.tolist(), targets, strict=True):
        if len(target) >= MIN_TARGET and not similarity.is_word(texts[row]):
            by_target.setdefault(target.casefold(), set()).add(row)
    shared = [sorted(same) for same in by_target.values() if 1 < len(same) <= MAX_SAME_TARGET]
    left = np.array([same[0] for same in shared for _ in same[1:]], np.int64)
    right = np.array([row for same in shared for row in same[1:]], np.int64)
    return Links(left, right, np.full(len(left), SAME_TARGET_STRENGTH))


def default_limit(pairs: int) -> int:
    """The most pairs in a group of similar sources."""
    return min(max(math.isqrt(pairs), MIN_LIMIT), MAX_LIMIT)


def merge_similar(compared: ComparedPairs, limit: int) -> Ints:
    """(T,): the group of each text, named by its first one; groups of several texts have at most `limit` pairs."""
    links, sizes = compared.links, compared.sizes.tolist()
    groups = list(range(len(sizes)))

    def find(text: int) -> int:
        while groups[text] != text:
            groups[text] = groups[groups[text]]
            text = groups[text]
        return text

    order = np.lexsort((links.right, links.left, -links.strength))
    for left, right in zip(links.left[order].tolist(), links.right[order].tolist(), strict=True):
        a, b = sorted((find(left), find(right)))
        if a != b and sizes[a] + sizes[b] <= limit:
            groups[b] = a
            sizes[a] += sizes[b]
    return np.array([find(text) for text in range(len(sizes))], np.int64)
