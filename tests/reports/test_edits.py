"""Alignments and confusions, against tables worked out by hand and against an independent edit distance."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from dragoman.reports.edits import Column, Confusion, align, count_confusions, count_edits, split_units

units = st.lists(st.sampled_from("abc"), max_size=7)


def edit_distance(a: list[str], b: list[str]) -> int:
    """Levenshtein's definition, by recursion."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


@given(units, units)
def test_an_alignment_has_as_few_edits_as_possible_and_spells_both_sides(
    output: list[str], reference: list[str]
) -> None:
    columns = align(output, reference)
    assert count_edits(columns) == edit_distance(output, reference)
    assert [column.reference for column in columns if column.reference] == reference
    assert [column.output for column in columns if column.output] == output


@given(st.lists(st.tuples(units, units), max_size=6))
def test_confusions_add_up_to_all_edits(pairs: list[tuple[list[str], list[str]]]) -> None:
    alignments = [align(*pair) for pair in pairs]
    confusions = count_confusions(alignments)
    assert sum(confusion.count for confusion in confusions) == sum(map(count_edits, alignments))
    for confusion in confusions:
        for index in confusion.examples:
            assert Column(confusion.reference, confusion.output) in alignments[index]
    assert [confusion.count for confusion in confusions] == sorted((c.count for c in confusions), reverse=True)


def test_a_table_of_confusions_worked_out_by_hand() -> None:
    pairs = [("ʃ ɒ k s", "ʃː ɒ k"), ("ʃ a", "ʃː a"), ("a k", "a k"), ("a", "a k")]
    confusions = count_confusions([align(output.split(), reference.split()) for output, reference in pairs])
    assert confusions == [
        Confusion("ʃː", "ʃ", 2, 2, (0, 1)),
        Confusion("", "s", 1, 0, (0,)),
        Confusion("k", "", 1, 3, (3,)),
    ]
    assert [str(confusion) for confusion in confusions] == ["ʃː → ʃ", "s added", "k missing"]


def test_units_are_characters_or_what_stands_between_spaces() -> None:
    assert split_units("a bc", "character") == ["a", " ", "b", "c"]
    assert split_units(" AA  B ", "phoneme") == ["AA", "B"]
