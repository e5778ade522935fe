"""What BPE and unigram share: learning from odd texts, the way through sentencepiece and back, and broken models."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import DataError, ModelError, PartError
from dragoman.core.registry import Part
from dragoman.core.types import UNK
from dragoman.text.sentencepiece_model import SentencePieceTokenizer, split_symbols, split_words
from dragoman.text.tokenizers import tokenizers

KINDS = pytest.mark.parametrize("kind", ["bpe", "unigram"])
CORPUS = ["the cat sat on the mat", "the dog sat  there", "naïve café in 東京"] * 4
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0▁"))


def learned(kind: str, lines: list[str] = CORPUS, **options: object) -> SentencePieceTokenizer:
    tokenizer = tokenizers.build(Part(kind, options))
    tokenizer.learn(lines, ["<to:de>"])
    assert isinstance(tokenizer, SentencePieceTokenizer)
    return tokenizer


LEARNED = {kind: learned(kind) for kind in ("bpe", "unigram")}


@KINDS
@given(text=TEXT)
@settings(deadline=None, max_examples=100)
def test_any_text_comes_back_exactly_with_byte_fallback(kind: str, text: str) -> None:
    tokenizer = LEARNED[kind]
    ids = tokenizer.encode(text)
    assert UNK not in ids
    assert tokenizer.decode(ids) == text


@KINDS
@pytest.mark.parametrize("text", [" ", "  the  cat ", "\tthe\ncat\u3000", "a\0b", "\u2585", "<0x41>", "\ufffd"])
def test_spaces_and_odd_characters_survive(kind: str, text: str) -> None:
    assert LEARNED[kind].decode(LEARNED[kind].encode(text)) == text


@KINDS
def test_the_mark_in_a_text_becomes_a_space(kind: str) -> None:
    assert LEARNED[kind].encode("the▁cat") == LEARNED[kind].encode("the cat")


@KINDS
def test_pieces_show_the_mark_and_the_numbers_of_bytes(kind: str) -> None:
    tokenizer = LEARNED[kind]
    pieces = tokenizer.pieces(tokenizer.encode("the ж"))
    assert pieces[0].startswith("▁")
    assert pieces[-2:] == ["<0xD0>", "<0xB6>"]


@KINDS
def test_a_run_of_unknown_characters_is_one_unk_without_byte_fallback(kind: str) -> None:
    tokenizer = learned(kind, byte_fallback=False)
    ids = tokenizer.encode("cat жжж")
    assert ids.count(UNK) == 1
    assert tokenizer.decode(ids) == "cat ⁇"


def test_words_are_split_before_every_space_marker() -> None:
    assert split_words("a  dog ") == ["▁a", "▁", "▁dog", "▁"]
    assert split_words(" ") == ["▁", "▁"]
    assert split_words("") == []


# -- learning ----------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    "lines",
    [
        ["a"],
        ["ab"],
        ["hello"],
        ["<s> </s> <unk> <pad> <to:de> <0x41>"],
        ["\u2585 only"],
        ["a\0b"],
        ["a\tb", "c\nd"],
        ["\ud800 half"],
        ["", "x"],
        ["\n", "\r", "\u3000", "\x85"],
    ],
)
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_a_tiny_corpus_gives_a_smaller_vocabulary(kind: str, lines: list[str], byte_fallback: bool) -> None:
    tokenizer = learned(kind, lines, size=8000, byte_fallback=byte_fallback)
    assert len(tokenizer) < 310
    assert tokenizer.encode("a")


@KINDS
@given(lines=st.lists(st.one_of(st.text(max_size=30), st.text("ab <s>0x4▁\t\u2585", max_size=30)), max_size=5))
@settings(deadline=None, max_examples=60)
def test_any_texts_are_learned_or_refused_as_empty(kind: str, lines: list[str]) -> None:
    blank = not any(line.strip(" \t▁\u2585") for line in lines)  # all that is never learned
    if blank:
        with pytest.raises(DataError, match="empty"):
            learned(kind, lines)
        return
    tokenizer = learned(kind, lines)
    for line in lines:
        assert tokenizer.decode(tokenizer.encode(line)) == line.replace("▁", " ")


@KINDS
@pytest.mark.parametrize("lines", [[], [""], ["", "  ", "\t", "▁"]])
def test_empty_texts_are_refused_in_one_sentence(kind: str, lines: list[str]) -> None:
    with pytest.raises(DataError, match=f"the {kind} tokenizer has nothing to learn from"):
        learned(kind, lines)


@KINDS
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_a_size_below_the_characters_is_refused_with_the_least_that_works(kind: str, byte_fallback: bool) -> None:
    characters = len(set("".join(CORPUS)) - {" "}) + 1  # the space is the mark
    least = 5 + 256 * byte_fallback + characters
    with pytest.raises(PartError, match=rf"size {least - 1} is too small .* more than {least}\b"):
        learned(kind, size=least - 1, byte_fallback=byte_fallback)
    assert len(learned(kind, size=least + 1, byte_fallback=byte_fallback)) <= least + 1


@KINDS
def test_the_size_is_kept_where_the_texts_allow_it(kind: str) -> None:
    lines = [f"{a}{b}{c}" for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwx"]
    assert len(learned(kind, [*lines, *lines], size=320)) == 320


@KINDS
def test_the_letters_of_a_special_in_the_texts_are_learned(kind: str) -> None:
    tokenizer = learned(kind, ["<s> x </s> <unk> <to:de>"] * 5, byte_fallback=False)
    for text in ("<s> x", "</s>", "<unk>", "<to:de>"):
        assert UNK not in tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@KINDS
def test_a_word_longer_than_sentencepiece_can_hold_is_learned_in_parts(kind: str) -> None:
    long = "".join(chr(97 + (i * i + i // 7) % 23) for i in range(70_000))  # 65,536 characters would end the process
    tokenizer = learned(kind, [long, "the cat"], size=400)
    assert tokenizer.decode(tokenizer.encode(long)) == long


@KINDS
@pytest.mark.parametrize("line", ["word ab cdef", "word"])
def test_lines_that_repeat_are_learned_in_good_time(kind: str, line: str) -> None:
    assert len(learned(kind, [*[line] * 20_000, "x"])) < 310  # from the lines, unigram would take minutes


@KINDS
def test_the_order_of_the_lines_changes_nothing(kind: str) -> None:
    assert learned(kind, CORPUS[::-1]).to_files() == LEARNED[kind].to_files()


@KINDS
def test_the_pieces_are_those_that_sentencepiece_learns_from_the_lines(kind: str) -> None:
    stems, ends = ["walk", "talk", "jump", "window", "house", "light"], ["", "s", "ed", "ing", "er", "ers"]
    lines = [f"{a}{x} the {b}{y}" for a in stems for b in stems for x in ends for y in ends]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=80,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokenizer = learned(kind, lines, size=82, byte_fallback=False)  # two more: <pad> and the tag
    assert set(tokenizer.scores) == {theirs.id_to_piece(i) for i in range(3, len(theirs))}
    assert tokenizer.pieces(tokenizer.encode(lines[8])) == theirs.encode(lines[8], out_type=str)


def test_words_are_counted_as_often_as_they_occur() -> None:
    def count(lines: list[str], extra_symbols: list[str]) -> dict[str, int]:
        tokenizer = tokenizers.build(Part("bpe"))
        return split_symbols(Counter(word for line in lines for word in tokenizer.learning_units(line)), extra_symbols)

    assert count(["a  b\ta", "b▁c\u2585", ""], []) == {"a": 2, "b": 2, "c": 1}
    assert count(["x<s> <to:de>", "<to:fr>"], ["<to:de>"]) == {"x<": 1, "s>": 1, "<": 1, "to:de>": 1, "<to:fr>": 1}


@KINDS
def test_a_long_line_is_not_skipped(kind: str) -> None:
    tokenizer = learned(kind, ["word " * 5000 + "ж"], byte_fallback=False)
    assert UNK not in tokenizer.encode("ж")


@KINDS
def test_an_error_of_the_reader_comes_through(kind: str) -> None:
    def lines():
        yield "fine"
        raise DataError("is not UTF-8", "pairs.tsv", 2)

    with pytest.raises(DataError, match=r"pairs\.tsv:2: is not UTF-8"):
        tokenizers.build(Part(kind)).learn(lines())


@KINDS
def test_learning_prints_nothing(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    learned(kind)
    with pytest.raises(PartError):
        learned(kind, size=10)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@KINDS
def test_rare_characters_are_left_to_the_bytes_below_full_coverage(kind: str) -> None:
    lines = ["common letters only here"] * 50 + ["ж"]
    assert "ж" in learned(kind, lines).scores
    assert "ж" not in learned(kind, lines, character_coverage=0.99).scores


@KINDS
def test_a_tag_may_hold_a_comma_or_a_quote(kind: str) -> None:
    tags = ["<to:zh,tw>", '<to:"x">', "<to:a b>"]
    tokenizer = tokenizers.build(Part(kind))
    tokenizer.learn(CORPUS, tags)
    assert [tokenizer.vocabulary.symbol_id(tag) for tag in tags] == [4, 5, 6]
    assert not {4, 5, 6} & set(tokenizer.encode(" ".join(tags)))


# -- broken models -----------------------------------------------------------------------------------------------------


def with_model(files: dict[str, bytes], model: bytes) -> dict[str, bytes]:
    """Files whose checksum is right, so that the model itself is read."""
    content = json.loads(files["tokenizer.json"]) | {"sha256": hashlib.sha256(model).hexdigest()}
    return {"tokenizer.json": json.dumps(content).encode(), "tokenizer.model": model}


@KINDS
@pytest.mark.parametrize("keep", [0, 1, 100, -1, -50])
def test_a_truncated_model_is_refused_by_its_checksum(kind: str, keep: int) -> None:
    files = LEARNED[kind].to_files()
    with pytest.raises(ModelError, match=r"tokenizer\.model is not the model"):
        tokenizers.build(Part(kind)).restore({**files, "tokenizer.model": files["tokenizer.model"][:keep]})


@KINDS
@pytest.mark.parametrize("model", [b"", b"garbage", b"\x80\x04N."])
def test_a_file_that_is_no_model_is_refused_even_with_its_checksum(kind: str, model: bytes) -> None:
    with pytest.raises(ModelError, match="not a sentencepiece model"):
        tokenizers.build(Part(kind)).restore(with_model(LEARNED[kind].to_files(), model))


@KINDS
def test_a_missing_model_is_named(kind: str) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.model of the .* is missing"):
        tokenizers.build(Part(kind)).restore({"tokenizer.json": LEARNED[kind].to_files()["tokenizer.json"]})


@KINDS
def test_a_model_with_other_tags_or_bytes_is_refused(kind: str) -> None:
    files = LEARNED[kind].to_files()
    content = json.loads(files["tokenizer.json"])
    for change in ({"extra": ["<to:fr>"]}, {"extra": []}, {"byte_fallback": False}, {"extra": ["<to:de>", "<0x00>"]}):
        changed = {**files, "tokenizer.json": json.dumps(content | change).encode()}
        with pytest.raises(ModelError, match="do not belong together"):
            tokenizers.build(Part(kind)).restore(changed)


@KINDS
@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ({"user_defined_symbols": ["<to:de>"]}, "do not belong together"),  # it would be found in text
        ({"control_symbols": ["<to:de>"], "split_by_whitespace": False}, "span a space"),
    ],
)
def test_a_model_that_breaks_our_promises_is_refused(kind: str, option: dict[str, object], complaint: str) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type=kind,
        vocab_size=500,
        hard_vocab_limit=False,
        byte_fallback=True,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
        **option,
    )
    with pytest.raises(ModelError, match=complaint):
        tokenizers.build(Part(kind)).restore(with_model(LEARNED[kind].to_files(), model.getvalue()))
