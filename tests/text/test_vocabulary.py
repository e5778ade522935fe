"""Ids in their order, look-ups that never find a special, counting that does not depend on the order of the input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import ModelError, PartError
from dragoman.core.types import SPECIALS, UNK
from dragoman.text.tokenizers.words import Words
from dragoman.text.vocabulary import BYTE_TOKENS, TOKENIZER_FILE, TokenizerFile, Vocabulary

TAGS = ["<from:en>", "<to:de>"]


def learned(counts: Counter[str], extra: Sequence[str] = (), **options) -> Vocabulary:
    tokenizer = Words(**options)
    tokenizer.learn_from_counts(counts, extra)
    return tokenizer.vocabulary


def test_specials_come_first_then_tags_then_tokens() -> None:
    vocabulary = Vocabulary(["b", "a"], TAGS)
    assert vocabulary.names == ["<pad>", "<s>", "</s>", "<unk>", "<from:en>", "<to:de>", "b", "a"]
    assert [vocabulary.symbol_id(symbol) for symbol in (*SPECIALS, *TAGS)] == [0, 1, 2, 3, 4, 5]
    assert (vocabulary.token_id("b"), vocabulary.token_id("a"), len(vocabulary)) == (6, 7, 8)


def test_bytes_stand_between_tags_and_tokens() -> None:
    vocabulary = Vocabulary(["a"], TAGS, byte_fallback=True)
    assert vocabulary.names[6:262] == list(BYTE_TOKENS)
    assert vocabulary.token_id("a") == 262
    assert vocabulary.fallback_ids("é") == [6 + 0xC3, 6 + 0xA9]
    assert [vocabulary.id_to_byte(i) for i in (5, 6, 261, 262)] == [None, 0, 255, None]


def test_a_text_token_that_spells_a_special_has_an_id_of_its_own() -> None:
    vocabulary = Vocabulary(["<s>", "<to:de>", "<0x41>"], TAGS, byte_fallback=True)
    assert [vocabulary.token_id(token) for token in ("<s>", "<to:de>", "<0x41>")] == [262, 263, 264]
    assert (vocabulary.symbol_id("<s>"), vocabulary.symbol_id("<to:de>"), vocabulary.symbol_id("<0x41>")) == (
        1,
        5,
        None,
    )


@pytest.mark.parametrize("token", [*SPECIALS, *TAGS, "<0x41>"])
def test_text_never_finds_a_special_or_a_tag_or_a_byte(token: str) -> None:
    assert Vocabulary(["a"], TAGS, byte_fallback=True).token_id(token) is None


def test_an_unknown_token_is_unk_where_there_are_no_bytes() -> None:
    assert Vocabulary(["a"]).fallback_ids("東京") == [UNK]


def test_tokens_are_ordered_by_count_and_then_by_spelling() -> None:
    counts = Counter({"rare": 1, "b": 3, "a": 3, "most": 9})
    assert learned(counts).tokens == ["most", "a", "b", "rare"]
    assert learned(counts, min_count=3).tokens == ["most", "a", "b"]
    assert learned(counts, TAGS, size=8).tokens == ["most", "a"]


@given(tokens=st.lists(st.sampled_from("abcdef")), seed=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_the_order_of_the_input_changes_nothing(tokens: list[str], seed) -> None:
    shuffled = list(tokens)
    seed.shuffle(shuffled)
    names = [learned(Counter(each), byte_fallback=True).names for each in (tokens, shuffled)]
    assert names[0] == names[1]


@pytest.mark.parametrize(("byte_fallback", "reserved"), [(False, 6), (True, 262)])
def test_a_size_too_small_for_tokens_is_refused_with_the_number_of_reserved_ids(
    byte_fallback: bool, reserved: int
) -> None:
    with pytest.raises(PartError, match=f"size {reserved} .* take {reserved} ids"):
        learned(Counter("a"), TAGS, size=reserved, byte_fallback=byte_fallback)
    whole = learned(Counter("ab"), TAGS, size=reserved + 1, byte_fallback=byte_fallback)
    assert len(whole) == reserved + 1


@pytest.mark.parametrize(("tokens", "extra"), [(["a", "a"], []), ([], ["<to:de>", "<to:de>"]), ([], ["<s>"])])
def test_a_symbol_cannot_be_there_twice(tokens: list[str], extra: list[str]) -> None:
    with pytest.raises(ValueError, match="twice"):
        Vocabulary(tokens, extra)


def test_specials_and_tags_stand_for_nothing_in_a_text_and_unk_can_be_seen() -> None:
    vocabulary = Vocabulary(["a"], TAGS, byte_fallback=True)
    assert list(vocabulary.surface_parts([0, 1, 262, 2, 5, 6 + 0x41, 3, -1, 999])) == ["a", 0x41, "⁇"]
    assert [vocabulary.name(i) for i in (1, 262, -1, 999)] == ["<s>", "a", "<unk>", "<unk>"]


@given(text=st.text(), cut=st.integers(0, 20))
@settings(deadline=None, max_examples=50)
def test_strings_and_bytes_join_to_the_text_they_were_split_from(text: str, cut: int) -> None:
    head, tail = text[:cut], text[cut:]
    for token, before, after in ((head, "", tail), (tail, head, "")):
        vocabulary = Vocabulary([token], byte_fallback=True)
        ids = [*vocabulary.fallback_ids(before), vocabulary.token_id(token), *vocabulary.fallback_ids(after)]
        assert vocabulary.decode(ids) == text


def test_bytes_that_are_no_text_read_as_replacement_characters() -> None:
    vocabulary = Vocabulary(["a"], byte_fallback=True)
    assert vocabulary.decode([4 + 0xC3, vocabulary.token_id("a"), 4 + 0xFF]) == "\ufffda\ufffd"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"kind": "words"}',
        b'{"kind": "words", "extra": "<to:de>"}',
        b'{"kind": "words", "extra": [], "tokens": [1]}',
        b'{"kind": "words", "extra": [], "tokens": {"a": 1}}',
        b'{"kind": "words", "extra": [], "byte_fallback": "yes"}',
        b'{"kind": "words", "extra": [], "code": "import os"}',
        b'{"kind": "symbols", "extra": []}',
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        TokenizerFile.parse({TOKENIZER_FILE: data}, "words")
    assert str(caught.value).startswith("tokenizer.json")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json of the words tokenizer is missing"):
        TokenizerFile.parse({}, "words")
