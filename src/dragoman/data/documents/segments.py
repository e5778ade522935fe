"""A segment of a document: text without markup, and the marks (tags, placeholders) that stand in it.

    <b>Hello</b> {name}!   →   text "Hello !"   marks open@0 close@5 point@6
    translation "Salut !"  →   <b>Salut</b> {name}!

`place_marks` puts every mark into a translation: each exactly once, nested as in the source. A pair of marks goes
around the words that the model's attention ties to the words between them: the run of target words that maximizes

    Σ_u (m_u − ½),   m_u: the share of word u's attention that falls on the source text of the pair

and a point goes to the boundary that separates best what it separates in the source. Marks around everything need no
attention. Where there is none, or the text is huge, all marks keep their relative position in the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import regex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Weights = NDArray[np.float32]

MAX_CELLS = 2_000_000  # target words × source characters; a longer text gets its marks by relative position, and so
MAX_MARKS = 1000  # does one with more marks
MAX_NESTED = 50  # pairs; what is nested deeper counts as points

# A word, or one letter of a script without spaces, or another visible character with what is combined with it.
_UNIT = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*+"
    r"|[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*+(?:['’\-][\p{L}\p{N}\p{M}_]++)*+|(?!\s)\X"
)

MarkKind = Literal["open", "close", "point"]


@dataclass(frozen=True, eq=False)
class Mark:
    """A tag or placeholder in a segment, before the character at `position`; `content` is the format's own."""

    kind: MarkKind
    position: int
    content: Any = None
    is_word: bool = False  # it is shown among the words, so spaces around it are kept


@dataclass
class Segment:
    """A piece of text to translate, with its marks in their order, and the line on which it begins (0: unknown)."""

    text: str
    marks: Sequence[Mark] = ()
    line: int = 0


@dataclass(frozen=True)
class Alignment:
    """The attention (T, S) of a sentence's translation, and where its tokens stand in both texts of the segment."""

    source_spans: Sequence[tuple[int, int]]
    target_spans: Sequence[tuple[int, int]]
    weights: Weights


@dataclass
class Translation:
    """The translation of a segment, and the attention of its sentences as far as there is any."""

    text: str
    alignments: Sequence[Alignment] = ()


@dataclass
class _Node:
    """A point, or a pair of marks with what is between them."""

    first: Mark
    last: Mark | None
    children: list[_Node] = field(default_factory=list)

    @property
    def start(self) -> int:
        return self.first.position

    @property
    def end(self) -> int:
        return self.first.position if self.last is None else self.last.position


def is_translatable(text: str) -> bool:
    """Whether a text has a letter at all: numbers and signs stay as they are."""
    return any(character.isalpha() for character in text)


def needs_alignment(segment: Segment) -> bool:
    """Whether a mark stands between two visible characters of a segment, so that attention decides where it goes."""
    text = segment.text
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    return any(start < mark.position < end for mark in segment.marks)


def pair_marks(marks: Sequence[tuple[Mark, object]]) -> list[Mark]:
    """Make points of those opening and closing marks that have no partner with the same key, or cross another pair."""
    open_marks: list[tuple[int, object]] = []
    paired: set[int] = set()
    for i, (mark, key) in enumerate(marks):
        if mark.kind == "open" and len(open_marks) < MAX_NESTED:
            open_marks.append((i, key))
        elif mark.kind == "close" and any(other == key for _, other in open_marks):
            while open_marks[-1][1] != key:
                open_marks.pop()
            paired |= {i, open_marks.pop()[0]}
    return [
        mark if i in paired or mark.kind == "point" else replace(mark, kind="point")
        for i, (mark, _) in enumerate(marks)
    ]


def place_marks(segment: Segment, translation: Translation) -> list[str | Mark]:
    """Return the translation with all marks of the segment: texts and marks in the order of the output."""
    if not segment.marks:
        return [translation.text]
    if translation.text == segment.text:
        return _interleave(segment.text, [(mark.position, mark) for mark in segment.marks])
    units = [match.span() for match in _UNIT.finditer(translation.text)]
    is_small = len(segment.marks) <= MAX_MARKS and len(units) * len(segment.text) <= MAX_CELLS
    if translation.alignments and units and is_small:
        positions = _Placement(segment, translation, units).positions
    else:
        positions = _relative_positions(segment, translation.text, units)
    return _with_spaces(segment, _interleave(translation.text, positions))


def _interleave(text: str, positions: Sequence[tuple[int, Mark]]) -> list[str | Mark]:
    """Cut a text at the positions of marks, which come in the order of the output."""
    output: list[str | Mark] = []
    done = 0
    for position, mark in positions:
        if position > done:
            output.append(text[done:position])
            done = position
        output.append(mark)
    if done < len(text):
        output.append(text[done:])
    return output


def _with_spaces(segment: Segment, output: list[str | Mark]) -> list[str | Mark]:
    """Add the spaces beside placeholders that the source has and the output lacks."""
    if not any(mark.is_word for mark in segment.marks):
        return output
    begins_spaced = [True]  # whether the visible output after each item begins with a space, or ends
    for item in reversed(output):
        is_hidden = not isinstance(item, str) and not item.is_word
        begins_spaced.append(begins_spaced[-1] if is_hidden else isinstance(item, str) and item[0].isspace())
    spaced: list[str | Mark] = []
    ends_spaced = True  # whether the visible output so far ends with a space, or is empty
    for item, follows_spaced in zip(output, begins_spaced[-2::-1], strict=True):
        if isinstance(item, str):
            spaced.append(item)
            ends_spaced = item[-1].isspace()
            continue
        if not item.is_word:
            spaced.append(item)
            continue
        before, after = segment.text[: item.position][-1:], segment.text[item.position :][:1]
        if before.isspace() and not ends_spaced:
            spaced.append(" ")
        elif spaced and isinstance(spaced[-1], str) and spaced[-1].endswith("  "):  # where it was taken out
            spaced[-1] = spaced[-1][:-1]
        spaced.append(item)
        ends_spaced = after.isspace() and not follows_spaced
        if ends_spaced:
            spaced.append(" ")
    return spaced


def _relative_positions(segment: Segment, text: str, units: Sequence[tuple[int, int]]) -> list[tuple[int, Mark]]:
    """Put each mark where it stands in the source, in relation to the length, at the boundary of a word."""
    source = segment.text
    start, end = len(source) - len(source.lstrip()), len(source.rstrip())
    first, last = (units[0][0], units[-1][1]) if units else (0, len(text))
    starts, ends = [unit[0] for unit in units] or [0], [unit[1] for unit in units] or [len(text)]
    positions: list[tuple[int, Mark]] = []
    for mark in segment.marks:
        if mark.position <= start or mark.position >= end:
            position = _outer_position(mark.position, start, end, first, last, len(text))
        else:
            wanted = first + (mark.position - start) / (end - start) * (last - first)
            edges = starts if source[mark.position - 1].isspace() else ends
            i = bisect_left(edges, wanted)
            position = min(edges[max(i - 1, 0) : i + 1], key=lambda edge: abs(edge - wanted))
        positions.append((max(position, positions[-1][0] if positions else 0), mark))
    return positions


def _outer_position(position: int, start: int, end: int, first: int, last: int, length: int) -> int:
    """The position in the target of a mark before or after all visible text, white space beside it included."""
    if position <= start:
        return max(first - (start - position), 0)
    return min(last + (position - end), length)


def _build_tree(marks: Sequence[Mark]) -> list[_Node]:
    root: list[_Node] = []
    stack = [root]
    for mark in marks:
        if mark.kind == "close":
            stack.pop()
            stack[-1][-1].last = mark
            continue
        stack[-1].append(_Node(mark, None))
        if mark.kind == "open":
            stack.append(stack[-1][-1].children)
    return root


class _Placement:
    """Places the marks of a segment by attention, from the outer pairs to the inner ones."""

    def __init__(self, segment: Segment, translation: Translation, units: Sequence[tuple[int, int]]) -> None:
        self.source, self.target, self.units = segment.text, translation.text, units
        self.sums = _attention_sums(len(segment.text), units, translation.alignments)
        self.positions: list[tuple[int, Mark]] = []
        self._place(_build_tree(segment.marks), (0, len(self.source)), (0, len(units)), (0, len(self.target)))

    def _place(
        self, nodes: Sequence[_Node], source: tuple[int, int], units: tuple[int, int], target: tuple[int, int]
    ) -> None:
        """Place the nodes inside a pair (or the text) that spans these source characters, words and characters."""
        placed = self._place_pairs(nodes, source, units)
        spans = self._place_points(nodes, placed, source, units, target)
        for i in sorted(range(len(nodes)), key=lambda i: (spans[i][0], i)):
            node, (start, end) = nodes[i], spans[i]
            self.positions.append((start, node.first))
            if node.last is not None:
                if i in placed:
                    self._place(node.children, (node.start, node.end), placed[i], (start, end))
                else:
                    self.positions += [(start, mark) for mark in _marks_inside(node)]
                self.positions.append((end, node.last))

    def _place_pairs(
        self, nodes: Sequence[_Node], source: tuple[int, int], units: tuple[int, int]
    ) -> dict[int, tuple[int, int]]:
        """Return the run of words of each pair that has some: no two runs share a word."""
        import numpy as np

        first, last = units
        placed: dict[int, tuple[int, int]] = {}
        is_free = np.ones(max(last - first, 0), dtype=bool)
        pairs = [
            i for i, node in enumerate(nodes) if node.last is not None and self.source[node.start : node.end].strip()
        ]
        for i in sorted(pairs, key=lambda i: nodes[i].start - nodes[i].end):
            node = nodes[i]
            is_all = not (self.source[source[0] : node.start] + self.source[node.end : source[1]]).strip()
            if is_all and last > first:
                return {i: units}
            run = _best_run(np.where(is_free, self._share(node.start, node.end, source)[first:last] - 0.5, -np.inf))
            if run is not None:
                is_free[run[0] : run[1]] = False
                placed[i] = (first + run[0], first + run[1])
        return placed

    def _place_points(
        self,
        nodes: Sequence[_Node],
        placed: dict[int, tuple[int, int]],
        source: tuple[int, int],
        units: tuple[int, int],
        target: tuple[int, int],
    ) -> list[tuple[int, int]]:
        """Return the target characters of every node; points keep their order, and stand in no pair beside them."""
        import numpy as np

        text = self.source[source[0] : source[1]]
        visible_start = source[0] + len(text) - len(text.lstrip())
        visible_end = source[0] + len(text.rstrip())
        spans: list[tuple[int, int]] = []
        lowest = units[0]
        for i, node in enumerate(nodes):
            if i in placed:
                start, end = self._characters(*placed[i])
                if placed[i] == units:  # around everything: with the white space that it has in the source
                    start = max(start - max(visible_start - node.start, 0), target[0])
                    end = min(end + max(node.end - visible_end, 0), target[1])
                spans.append((start, end))
                continue
            if node.start <= visible_start or node.start >= visible_end or units[0] >= units[1]:
                first, last = self._characters(*units) if units[0] < units[1] else target
                position = _outer_position(node.start, visible_start, visible_end, first, last, target[1])
                position = max(position, target[0])
                lowest = lowest if node.start <= visible_start else units[1]
            else:
                left = self._share(source[0], node.start, source)[units[0] : units[1]]
                score = np.concatenate([[0.0], np.cumsum(left - 0.5)])
                for start, end in placed.values():
                    score[start + 1 - units[0] : end - units[0]] = -np.inf
                score[: lowest - units[0]] = -np.inf
                boundary = units[0] + int(score.argmax())
                lowest = max(lowest, boundary)
                position = self._boundary(boundary, node.start, units)
            spans.append((position, position))
        return spans

    def _boundary(self, boundary: int, source_position: int, units: tuple[int, int]) -> int:
        """The character position of a boundary between words: at the side of the space where the source has it."""
        follows_text = not self.source[source_position - 1].isspace()
        if boundary >= units[1] or (boundary > units[0] and follows_text):
            return self.units[boundary - 1][1]
        return self.units[boundary][0]

    def _characters(self, first: int, last: int) -> tuple[int, int]:
        return self.units[first][0], self.units[last - 1][1]

    def _share(self, start: int, end: int, within: tuple[int, int]) -> Weights:
        """The share of each word's attention to the characters `within` that falls on [start, end)."""
        import numpy as np

        total = self.sums[:, within[1]] - self.sums[:, within[0]]
        part = self.sums[:, end] - self.sums[:, start]
        even: Weights = np.full_like(total, (end - start) / max(within[1] - within[0], 1))
        np.divide(part, total, out=even, where=total > 1e-6)
        return even


def _marks_inside(node: _Node) -> Iterator[Mark]:
    """Yield all marks between those of a pair, in order."""
    for child in node.children:
        yield child.first
        yield from _marks_inside(child)
        if child.last is not None:
            yield child.last


def _best_run(scores: Weights) -> tuple[int, int] | None:
    """Return (start, end) of the run with the largest sum; None if no sum is positive."""
    best, best_run, total, start = 0.0, None, 0.0, 0
    for i, score in enumerate(scores.tolist()):
        if total <= 0.0:
            total, start = 0.0, i
        total += score
        if total > best:
            best, best_run = total, (start, i + 1)
    return best_run


def _attention_sums(characters: int, units: Sequence[tuple[int, int]], alignments: Sequence[Alignment]) -> Weights:
    """Return Σ_{j < i} of the attention of each target word to source character j, (words, characters + 1)."""
    import numpy as np

    attention: Weights = np.zeros((len(units), characters + 1), dtype=np.float32)
    for alignment in alignments:
        spread = np.zeros((len(alignment.source_spans), characters), dtype=np.float32)
        for i, (start, end) in enumerate(alignment.source_spans):
            spread[i, start:end] = 1.0 / max(end - start, 1)
        for u, (first, last) in enumerate(units):
            for t, (start, end) in enumerate(alignment.target_spans):
                overlap = min(last, end) - max(first, start)
                if overlap > 0:
                    attention[u, 1:] += overlap * (alignment.weights[t] @ spread)
    np.cumsum(attention, 1, out=attention)
    return attention
