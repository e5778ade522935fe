"""Marks are in a translation exactly once, nested as they were, whatever the translation and the attention are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.documents.segments import (
    Alignment,
    Mark,
    Segment,
    Translation,
    needs_alignment,
    pair_marks,
    place_marks,
)
from dragoman.data.documents.translation import (
    SentenceResult,
    join_sentences,
    sentences_to_translate,
    split_segment,
    token_spans,
)

TEXTS = st.text("ab .,\n\t漢é🙂", max_size=30)
KINDS = st.sampled_from(["open", "close", "point"])


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    text = draw(TEXTS)
    positions = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    keys = st.integers(0, 1)
    marks = [(Mark(draw(KINDS), position, i, draw(st.booleans())), draw(keys)) for i, position in enumerate(positions)]
    return Segment(text, pair_marks(marks))


@st.composite
def translations(draw: st.DrawFn, segment: Segment) -> Translation:
    text = draw(st.one_of(TEXTS, st.just(segment.text)))
    if draw(st.booleans()):
        return Translation(text)

    def spans(of: str) -> list[tuple[int, int]]:
        ends = sorted(draw(st.lists(st.integers(0, len(of)), max_size=5)))
        return list(zip([0, *ends], ends, strict=False))

    source, target = spans(segment.text), spans(text)
    values = st.floats(0, 1, width=32)
    weights = [[draw(values) for _ in source] for _ in target]
    return Translation(
        text, [Alignment(source, target, np.array(weights, np.float32).reshape(len(target), len(source)))]
    )


def nesting(marks: list[Mark]) -> list[tuple[object, ...]]:
    """For each mark, the pairs that it stands in; raises for what is not well-formed."""
    stack: list[Mark] = []
    inside = []
    for mark in marks:
        if mark.kind == "close":
            stack.pop()
        inside.append((mark.content, *(one.content for one in stack)))
        if mark.kind == "open":
            stack.append(mark)
    assert not stack
    return inside


def order_of_points(marks: list[Mark]) -> dict[tuple[object, ...], list[object]]:
    """The points in each pair, in order."""
    order: dict[tuple[object, ...], list[object]] = {}
    for mark, (content, *outer) in zip(marks, nesting(marks), strict=True):
        if mark.kind == "point":
            order.setdefault(tuple(outer), []).append(content)
    return order


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_mark_is_lost_doubled_or_moved_into_another_pair(data: st.DataObject) -> None:
    segment = data.draw(segments())
    translation = data.draw(translations(segment))
    output = place_marks(segment, translation)
    marks = [item for item in output if isinstance(item, Mark)]
    assert sorted(nesting(marks)) == sorted(nesting(list(segment.marks)))
    assert order_of_points(marks) == order_of_points(list(segment.marks))
    text = "".join(item for item in output if isinstance(item, str))
    assert text.split() == translation.text.split() or any(mark.is_word for mark in marks)
    assert "".join(text.split()) == "".join(translation.text.split())


@given(segments())
def test_an_unchanged_text_has_its_marks_where_they_were(segment: Segment) -> None:
    length, placed = 0, []
    for item in place_marks(segment, Translation(segment.text)):
        if isinstance(item, str):
            length += len(item)
        else:
            placed.append((length, item))
    assert placed == [(mark.position, mark) for mark in segment.marks]


def attend(segment: Segment, target: str, pairs: dict[str, str]) -> Translation:
    """A translation whose words attend to one source word each."""
    source, words = segment.text.split(), target.split()
    weights = np.array([[float(pairs[word] == other) for other in source] for word in words], np.float32)
    return Translation(target, [Alignment(token_spans(segment.text, source), token_spans(target, words), weights)])


def rendered(segment: Segment, translation: Translation) -> str:
    return "".join(item if isinstance(item, str) else item.content for item in place_marks(segment, translation))


def test_tags_follow_their_words_where_the_order_changes() -> None:
    marks = [Mark("open", 4, "<b>"), Mark("close", 7, "</b>"), Mark("open", 8, "<i>"), Mark("close", 11, "</i>")]
    segment = Segment("the red car", marks)
    translation = attend(segment, "la voiture rouge", {"la": "the", "voiture": "car", "rouge": "red"})
    assert rendered(segment, translation) == "la <i>voiture</i> <b>rouge</b>"


def test_a_point_stands_between_the_words_it_stood_between() -> None:
    segment = Segment("one  two three", [Mark("point", 4, "%d", is_word=True)])
    translation = attend(segment, "eins zwei drei", {"eins": "one", "zwei": "two", "drei": "three"})
    assert rendered(segment, translation) == "eins %d zwei drei"
    at_start = Segment(" files", [Mark("point", 0, "%d", is_word=True)])
    assert rendered(at_start, Translation("Dateien")) == "%d Dateien"
    assert rendered(at_start, Translation(" Dateien")) == "%d Dateien"


def test_a_pair_around_everything_needs_no_attention_and_stays_so() -> None:
    segment = Segment("a word", [Mark("open", 0, "<i>"), Mark("close", 6, "</i>")])
    assert not needs_alignment(segment)
    assert rendered(segment, Translation("ein Wort")) == "<i>ein Wort</i>"
    assert needs_alignment(Segment("a word", [Mark("point", 2, "x")]))


def test_pairs_that_cross_or_have_no_partner_become_points() -> None:
    marks = [("open", "b"), ("open", "i"), ("close", "b"), ("close", "i"), ("close", "u")]
    kinds = [mark.kind for mark in pair_marks([(Mark(kind, 0), key) for kind, key in marks])]  # type: ignore[arg-type]
    assert kinds == ["open", "point", "close", "point", "point"]


@given(TEXTS)
def test_sentences_joined_unchanged_are_the_segment(text: str) -> None:
    pieces = split_segment(Segment(text))
    sentences = sentences_to_translate(pieces)
    assert join_sentences(pieces, [SentenceResult(one) for one in sentences]).text == text
    assert not any("\t" in one or "\n" in one for one in sentences)


def test_tokens_are_found_by_their_letters_and_tags_have_no_place() -> None:
    tokens = ["<to:de>", "▁Hel", "lo", "▁wor", "ld", "</s>"]
    assert token_spans("Hello  world", tokens, 10) == [(10, 10), (10, 13), (13, 15), (17, 20), (20, 22), (10, 10)]
