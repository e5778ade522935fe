"""What a model has never seen: counts and first lines, for every kind of tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec_learning import learn_codec

from dragoman.core.registry import Part
from dragoman.core.types import UNK, Example
from dragoman.text.codec import Codec
from dragoman.text.scripts import main_script, script_of
from dragoman.text.unseen import UnseenCounter, find_unseen, format_unit

TEXTS = ["the old dog", "a new day", "two dogs, one day"]


def codec_of(kind: str, texts: Sequence[str] = TEXTS, symbols: Sequence[str] = (), **options: object) -> Codec:
    part = Part(kind, options)
    return learn_codec(part, part, True, "nfc", list(texts), list(texts), list(symbols))


def test_unseen_characters_are_counted_with_their_first_line() -> None:
    report = find_unseen(codec_of("characters"), ["old dog", "жук", "dog", "ж old ж"])
    assert report.counts == Counter({"ж": 3, "у": 1, "к": 1})
    assert report.lines == {"ж": 2, "у": 2, "к": 2}
    assert (report.line_count, report.first_line) == (2, 2)
    assert report.scripts == Counter({"Cyrillic": 2})


def test_the_sentence_names_counts_lines_and_scripts() -> None:
    report = find_unseen(codec_of("characters"), ["old", "жж", "ж"])
    assert report.sentence() == (
        "2 lines have characters that the model has never seen: ж (3×, first in line 2); "
        "it knows no letter of the Cyrillic script"
    )
    assert find_unseen(codec_of("characters"), ["dog", "x"]).sentence() == (
        "line 2 has characters that the model has never seen: x (1×)"
    )


def test_nothing_unseen_is_false_and_says_nothing() -> None:
    report = find_unseen(codec_of("characters"), TEXTS)
    assert not report
    assert report.sentence() == ""


def test_lines_are_those_of_the_examples() -> None:
    report = find_unseen(codec_of("characters"), [Example("dog", line=7), Example("x", line=9)])
    assert report.lines == {"x": 9}


@pytest.mark.parametrize(
    ("kind", "sources", "expected"),
    [
        ("words", ["the old cat, the cat", "a cat"], {"cat": 3}),
        ("symbols", ["two dogs one", "two dogs, day"], {"dogs": 1}),
    ],
)
def test_words_and_symbols_are_whole(kind: str, sources: list[str], expected: dict[str, int]) -> None:
    known = codec_of(kind)
    assert find_unseen(known, sources).counts == Counter(expected)
    assert find_unseen(known, ["a q"]).unit == kind.removesuffix("s")


def test_lower_case_tokenizers_know_upper_case_words() -> None:
    assert not find_unseen(codec_of("words", lowercase=True), ["The OLD Dog"])
    assert find_unseen(codec_of("words"), ["The"]).counts == Counter({"The": 1})


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_subwords_report_characters_that_are_unknown_or_bytes(kind: str) -> None:
    unknown = find_unseen(codec_of(kind, size=40, byte_fallback=False), ["dog ж", "god day"])
    assert (unknown.counts, unknown.spelled_in_bytes) == (Counter({"ж": 1}), False)
    in_bytes = find_unseen(codec_of(kind, size=300, byte_fallback=True), ["dog ж", "god day"])
    assert (in_bytes.counts, in_bytes.spelled_in_bytes) == (Counter({"ж": 1}), True)
    assert in_bytes.sentence().endswith("it knows no letter of the Cyrillic script; it reads them as bytes")


def test_bytes_are_unseen_only_where_the_training_data_have_no_such_byte() -> None:
    codec = codec_of("bytes")
    assert not find_unseen(codec, ["жук"])
    counts = Counter(piece for text in TEXTS for piece in codec.source.pieces(codec.source.encode(text)))
    assert find_unseen(codec, ["dog жx"], counts).counts == Counter({"ж": 1, "x": 1})


def test_a_token_of_another_models_vocabulary_without_count_is_unseen() -> None:
    codec = codec_of("characters")
    assert find_unseen(codec, ["dog"], {"d": 4, "o": 2}).counts == Counter({"g": 1})


def test_rare_words_that_were_left_out_of_the_vocabulary_are_not_called_never_seen() -> None:
    sentence = find_unseen(codec_of("words", min_count=3), ["old day"]).sentence()
    assert sentence == "line 1 has words that the model does not know: old (1×)"


def test_words_with_a_copy_slot_are_not_reported() -> None:
    assert not find_unseen(codec_of("words", symbols=["<copy:0>"]), ["cat"])


def test_normalization_comes_first() -> None:
    assert not find_unseen(codec_of("characters", ["é"]), ["e\u0301"])


def test_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.text.unseen.MAX_DISTINCT", 2)
    report = find_unseen(codec_of("characters"), ["x", "q", "ж", "x"])
    assert report.counts == Counter({"x": 2, "q": 1})
    assert report.line_count == 4


def test_a_language_model_reads_with_the_targets_tokenizer() -> None:
    codec = learn_codec(Part("characters"), Part("characters"), False, "nfc", ["ab"], ["cd"], [])
    assert find_unseen(codec, ["cd"], side="target").counts == Counter()
    assert find_unseen(codec, ["cd"]).counts == Counter({"c": 1, "d": 1})


@given(st.lists(st.text(alphabet="dogaxж é\t", max_size=12), max_size=8))
def test_a_source_is_reported_exactly_if_its_ids_have_an_unknown_one(sources: list[str]) -> None:
    codec = codec_of("characters")
    counter = UnseenCounter(codec)
    unknown = [UNK in codec.encode_source(Example(source)) for source in sources]
    for source, is_unknown in zip(sources, unknown, strict=True):
        before = counter.report.line_count
        counter.add(source, 1)
        assert counter.report.line_count - before == is_unknown
    assert counter.report.counts.total() == sum(codec.encode_source(Example(source)).count(UNK) for source in sources)


def test_scripts_of_letters() -> None:
    samples = {
        "a": "Latin",
        "ß": "Latin",
        "ж": "Cyrillic",
        "ώ": "Greek",
        "中": "Han",
        "あ": "Hiragana",
        "ア": "Katakana",
    }
    samples |= {"한": "Hangul", "ह": "Devanagari", "ب": "Arabic", "א": "Hebrew", "ა": "Georgian", "Ａ": "Latin"}
    samples |= {"1": "", ",": "", " ": ""}
    assert {character: script_of(character) for character in samples} == samples


def test_the_main_script_is_that_of_most_letters() -> None:
    assert main_script("жук the beetle") == "Latin"
    assert main_script("123") == ""


def test_invisible_units_are_shown_by_their_code_points() -> None:
    assert format_unit("\u0301") == "U+0301"
    assert format_unit("\t") == "U+0009"
    assert format_unit(" ") == "the space"
    assert format_unit("é") == "é"
