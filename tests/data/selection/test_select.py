"""Duplicates, filters and samples: which rows they choose."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.selection.test_split import make_words

from dragoman.core.errors import UserError
from dragoman.core.types import Example
from dragoman.data.selection.duplicates import find_duplicates
from dragoman.data.selection.filter import LengthRange, find_unusable
from dragoman.data.selection.sample import sample_pairs

# -- duplicates --------------------------------------------------------------------------------------------------------

small_pairs = st.lists(
    st.builds(Example, st.text("ab ", max_size=3), st.text("xy", max_size=2), st.sampled_from([None, "de"])),
    max_size=30,
)


@given(small_pairs)
def test_of_equal_pairs_the_first_stays(examples):
    reasons = find_duplicates(examples)
    seen, repeated = set(), set()
    for row, e in enumerate(examples):
        key = (" ".join(e.source.split()), e.target, e.source_lang)
        if key in seen:
            repeated.add(row)
        seen.add(key)
    assert reasons == dict.fromkeys(sorted(repeated), "repeated pair")


@given(small_pairs)
def test_with_first_target_each_source_is_left_once_in_each_language(examples):
    reasons = find_duplicates(examples, targets="first")
    left = [(" ".join(e.source.split()), e.source_lang) for row, e in enumerate(examples) if row not in reasons]
    assert len(left) == len(set(left))
    assert set(left) == {(" ".join(e.source.split()), e.source_lang) for e in examples}


def test_near_duplicates_are_alike_on_both_sides():
    examples = [
        Example("the black dog is running on the green grass", "der schwarze Hund läuft auf dem grünen Gras"),
        Example("The brown dog is running on the green grass.", "der braune Hund läuft auf dem grünen Gras"),
        Example("the black dog is running on the green grass!", "ein Hund rennt"),  # another translation
        Example("walk", "laufen"),
        Example("walks", "laufen"),  # another form is another word
        Example("Walk", "Laufen"),
    ]
    assert find_duplicates(examples) == {}
    assert find_duplicates(examples, near=True) == {1: "near-duplicate", 5: "near-duplicate"}


def test_a_chain_of_near_duplicates_keeps_what_is_not_near_to_anything_kept():
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    chain = [" ".join(["other"] * i + words[i:]) for i in range(len(words))]
    left = [
        e for row, e in enumerate(map(Example, chain)) if row not in find_duplicates(map(Example, chain), near=True)
    ]
    assert 2 <= len(left) < len(chain)


# -- filters -----------------------------------------------------------------------------------------------------------


def parallel(count: int, seed: int = 1) -> list[Example]:
    """Sentences of two made-up languages with different letters' habits."""
    rng = random.Random(seed)
    here, there = make_words(300), [word.replace("a", "ij").replace("o", "sch") + "en" for word in make_words(300)]
    picks = [rng.choices(range(300), k=rng.randint(6, 9)) for _ in range(count)]
    return [Example(" ".join(here[i] for i in p), " ".join(there[i] for i in p)) for p in picks]


GOOD = parallel(400)


def rules_of(*bad: Example, **options) -> list[str | None]:
    """The rule that finds each bad pair among good ones."""
    found = find_unusable([*GOOD, *bad], **options)
    assert not {row for row in found.rows if row < len(GOOD)}
    return [found.rows.get(len(GOOD) + i) for i in range(len(bad))]


def test_each_rule_finds_what_it_is_for_and_no_good_pair():
    source, target = GOOD[0].source, GOOD[0].target
    assert rules_of(
        Example("  ", target),
        Example(source, ""),
        Example(source, target.split()[0]),
        Example(source, source),
        Example(source, target + "\ufffd"),
        Example(source, target + " fÃ¼r"),
        Example("".join(chr(0x430 + ord(c) % 32) if c != " " else c for c in source), target),
        Example(target, source),
        Example(source, GOOD[1].source),
        Example(source, target),
    ) == [
        "blank", "blank", "ratio", "identical", "characters", "characters", "script", "language", "language", None,
    ]  # fmt: skip


def test_length_limits_count_words_where_there_are_spaces_and_characters_elsewhere():
    long = Example(" ".join(["word"] * 20), " ".join(["worden"] * 20))
    assert rules_of(long, limits=LengthRange(2, 10)) == ["length"]
    assert rules_of(long, limits=LengthRange(2, 20)) == [None]
    words = [Example("a" * n, "b" * n) for n in range(1, 8)]
    assert set(find_unusable(words, limits=LengthRange(3, 5)).rows) == {0, 1, 5, 6}


def test_a_task_of_copying_keeps_its_identical_pairs_unless_the_rule_is_named():
    examples = [Example(word, word if i % 2 else word + "s") for i, word in enumerate(make_words(200))]
    found = find_unusable(examples)
    assert found.rows == {}
    assert "identical: 50%" in found.notes[0]
    assert find_unusable(examples, ["identical"]).counts() == {"identical": 100}


def test_only_the_named_rules_apply_and_unknown_ones_are_an_error():
    assert rules_of(Example("", "x"), Example("x", "x\ufffd"), rules=["characters"]) == [None, "characters"]
    with pytest.raises(UserError, match="no rule 'lenght'; did you mean 'length'"):
        find_unusable(GOOD, ["lenght"])


def test_texts_alone_are_no_blank_pairs():
    texts = [Example("", example.source) for example in GOOD] + [Example("", " ")]
    assert find_unusable(texts).rows == {400: "blank"}


# -- samples -----------------------------------------------------------------------------------------------------------


@given(small_pairs.filter(bool), st.data(), st.booleans())
def test_a_sample_has_the_requested_number_of_rows_in_file_order(examples, data, diverse):
    count = data.draw(st.integers(1, len(examples)))
    rows = sample_pairs(examples, count, diverse=diverse)
    assert len(set(rows)) == count
    assert rows == sorted(rows)
    assert set(rows) <= set(range(len(examples)))


def test_a_sample_has_every_language_in_its_share():
    examples = [Example(w, "x", lang) for lang, n in (("de", 600), ("fr", 300), ("is", 100)) for w in make_words(n)]
    counts = Counter(examples[row].source_lang for row in sample_pairs(examples, 100))
    assert all(abs(counts[lang] - n) <= 1 for lang, n in (("de", 60), ("fr", 30), ("is", 10)))


def test_half_a_sample_does_not_depend_on_the_order():
    examples = [Example(word, "x") for word in make_words(200)]
    chosen = {examples[row].source for row in sample_pairs(examples, 50)}
    backwards = examples[::-1]
    assert {backwards[row].source for row in sample_pairs(backwards, 50)} == chosen


def test_a_diverse_sample_has_more_different_words_than_a_random_one():
    rng = random.Random(4)
    common, rare = make_words(20), make_words(2_000, seed=9)
    sentences = [rng.choices(common, k=8) for _ in range(900)] + [rng.choices(rare, k=8) for _ in range(100)]
    rng.shuffle(sentences)
    examples = [Example(" ".join(words), "x") for words in sentences]

    def distinct(rows: list[int]) -> int:
        return len({word for row in rows for word in sentences[row]})

    assert distinct(sample_pairs(examples, 50, diverse=True)) > 2.5 * distinct(sample_pairs(examples, 50))


def test_a_sample_larger_than_the_file_is_an_error():
    with pytest.raises(UserError, match="there are 3 pairs"):
        sample_pairs([Example("a"), Example("b"), Example("c")], 4)
