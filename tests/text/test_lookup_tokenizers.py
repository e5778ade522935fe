"""Characters, bytes, words and symbols: hand-worked splits, and texts that come back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import DataError, PartError
from dragoman.core.types import UNK
from dragoman.text.tokenizers.bytes import Bytes
from dragoman.text.tokenizers.characters import FEATURE_BUNDLE, Characters
from dragoman.text.tokenizers.symbols import Symbols
from dragoman.text.tokenizers.words import Words

# -- characters --------------------------------------------------------------------------------------------------------


def test_characters_are_one_token_each_and_a_space_can_be_seen() -> None:
    tokenizer = Characters()
    tokenizer.learn(["naïve té"])
    assert tokenizer.pieces(tokenizer.encode("té na")) == ["t", "é", "␣", "n", "a"]


@given(text=st.text())
@settings(deadline=None, max_examples=50)
def test_any_text_of_learned_characters_comes_back_exactly(text: str) -> None:
    tokenizer = Characters(byte_fallback=True)  # so that even an empty text can be learned
    tokenizer.learn([text])
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_character_below_min_count_is_unknown() -> None:
    tokenizer = Characters(min_count=2)
    tokenizer.learn(["aab"])
    assert tokenizer.encode("ab") == [4, UNK]
    assert tokenizer.decode([4, UNK]) == "a⁇"


def test_an_unknown_character_is_spelled_in_bytes_that_show_their_number() -> None:
    tokenizer = Characters(byte_fallback=True)
    tokenizer.learn(["ab"])
    assert tokenizer.pieces(tokenizer.encode("aé")) == ["a", "<0xC3>", "<0xA9>"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("walk V;PST;3SG", "w a l k [V] [PST] [3SG]"),
        ("olmak V;SBJV;NOM(3,SG)", "o l m a k [V] [SBJV] [NOM] [3] [SG]"),
        ("kuća Case=Nom|Number=Sing", "k u ć a [Case=Nom] [Number=Sing]"),
        ("N;PL in  USA; a=b", "[N] [PL] ␣ i n ␣ ␣ U S A ; ␣ a = b"),
        ("PST", "P S T"),
    ],
)
def test_a_bundle_of_features_is_its_features_and_every_other_word_its_characters(text: str, tokens: str) -> None:
    tokenizer = Characters(features=True)
    tokenizer.learn([text])
    ids = tokenizer.encode(text)
    assert " ".join(tokenizer.pieces(ids)) == tokens


@given(text=st.text("aN=|(,) \t\n1"))  # without a ";" nothing is a bundle
@settings(deadline=None, max_examples=200)
def test_a_text_without_bundles_comes_back_exactly_with_features_too(text: str) -> None:
    tokenizer = Characters(byte_fallback=True, features=True)
    tokenizer.learn([text])
    if not any(FEATURE_BUNDLE.fullmatch(word) for word in text.split(" ")):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_bundle_never_seen_is_made_of_features_that_were() -> None:
    tokenizer = Characters(features=True)
    tokenizer.learn(["go V;PST", "be V;PRS;3SG", "he"])
    assert UNK not in tokenizer.encode("go V;PST;3SG")


# -- bytes -------------------------------------------------------------------------------------------------------------


@given(text=st.text())
@settings(deadline=None, max_examples=50)
def test_bytes_are_those_of_utf8_after_the_specials(text: str) -> None:
    tokenizer = Bytes()
    assert tokenizer.encode(text) == [4 + byte for byte in text.encode()]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_need_no_text_to_learn_from_and_have_ids_for_tags() -> None:
    tokenizer = Bytes()
    tokenizer.learn([], ["<to:de>"])
    assert (len(tokenizer), tokenizer.vocabulary.symbol_id("<to:de>"), tokenizer.encode("A")) == (261, 4, [5 + 0x41])


def test_bytes_show_printable_ascii_as_itself() -> None:
    tokenizer = Bytes()
    assert tokenizer.pieces([*tokenizer.encode("a ~é\n"), 2]) == ["a", "␣", "~", "<0xC3>", "<0xA9>", "<0x0A>", "</s>"]


def test_half_a_character_reads_as_the_replacement_character() -> None:
    tokenizer = Bytes()
    assert tokenizer.decode(tokenizer.encode("é")[:1]) == "\ufffd"


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, world!", ["▁Hello", ",", "▁world", "!"]),
        ("  Hello ,\tworld ", ["▁Hello", "▁,", "▁world"]),
        ("don't", ["▁don", "'", "t"]),
        ("(a)...", ["▁(", "a", ")", ".", ".", "."]),
        ("snake_case 3.14", ["▁snake_case", "▁3", ".", "14"]),
        ("हिन्दी e\u0301te\u0301", ["▁हिन्दी", "▁e\u0301te\u0301"]),
        ("a▁b", ["▁a", "▁b"]),
        ("", []),
        (" \t ", []),
    ],
)
def test_words_and_punctuation_are_split_and_remember_their_spaces(text: str, tokens: list[str]) -> None:
    assert Words().split(text) == tokens


@given(text=st.text())
@settings(deadline=None, max_examples=100)
def test_words_come_back_with_single_spaces(text: str) -> None:
    tokenizer = Words()
    tokenizer.learn([text, "x"])
    expected = " ".join(text.replace("▁", " ").split())
    assert UNK not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == expected


@given(text=st.text())
@settings(deadline=None, max_examples=100)
def test_unknown_words_come_back_through_their_bytes(text: str) -> None:
    tokenizer = Words(byte_fallback=True)
    tokenizer.learn(["known words, only"])
    assert tokenizer.decode(tokenizer.encode(f"known {text} words")) == " ".join(
        f"known {text} words".replace("▁", " ").split()
    )


def test_lowercase_reads_every_case_alike() -> None:
    tokenizer = Words(lowercase=True)
    tokenizer.learn(["Hello"])
    assert tokenizer.encode("HELLO") == tokenizer.encode("hello") == [4]


def test_size_keeps_the_most_frequent_words_and_counts_the_specials() -> None:
    tokenizer = Words(size=6)
    tokenizer.learn(["b b a a a c"])
    assert len(tokenizer) == 6
    assert tokenizer.pieces(tokenizer.encode("a b c")) == ["▁a", "▁b", "<unk>"]
    assert tokenizer.decode(tokenizer.encode("a c b")) == "a ⁇ b"


def test_a_size_that_holds_only_specials_is_refused() -> None:
    with pytest.raises(PartError, match="size 4"):
        Words(size=4).learn(["a b"])


# -- symbols -----------------------------------------------------------------------------------------------------------


def test_symbols_are_what_stands_between_spaces() -> None:
    tokenizer = Symbols()
    tokenizer.learn(["D R AE1 G", "D AH0"])
    ids = tokenizer.encode(" D  AE1 ZZ ")
    assert tokenizer.pieces(ids) == ["D", "AE1", "<unk>"]
    assert tokenizer.decode(ids) == "D AE1 ⁇"


def test_a_symbol_that_spells_a_special_is_a_symbol_like_any_other() -> None:
    tokenizer = Symbols()
    tokenizer.learn(["</s> a </s>"], ["<to:de>"])
    assert tokenizer.encode("</s> <to:de>") == [5, UNK]
    assert tokenizer.decode([2, 5, 6]) == "</s> a"


# -- nothing to learn --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Characters, Words, Symbols])
def test_texts_without_a_token_are_refused(kind: type) -> None:
    with pytest.raises(DataError, match="min_count=1"):
        kind().learn([""])
    with pytest.raises(DataError, match="min_count=9"):
        kind(min_count=9).learn(["a b"])


def test_a_lone_surrogate_is_no_unknown_word_where_bytes_stand_for_it() -> None:
    tokenizer = Words(byte_fallback=True)
    tokenizer.learn_from_counts({"a": 1, "b": 1}, [])
    assert tokenizer.unknown_words("a x\ud800 b") == []
    assert tokenizer.decode(tokenizer.encode("a x\ud800 b")) == "a x\ufffd b"
