"""Both sides of a pair: tags, </s>, joint and separate vocabularies, and the files of a model folder."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codec_learning import learn_codec

from dragoman.core.errors import DataError, ModelError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, UNK, Example
from dragoman.text import codec
from dragoman.text.codec import Codec

SOURCES, TARGETS = ["dragon", "dogma"], ["D R AE1 G AH0 N", "D AA1 G M AH0"]


def separate() -> Codec:
    return learn_codec(Part("characters"), Part("symbols"), False, "nfc", SOURCES, TARGETS, ["<to:de>", "<to:fr>"])


def test_a_source_is_tags_then_tokens_then_the_end() -> None:
    both = separate()
    ids = both.encode_source(Example("dog", target_lang="fr"))
    assert both.source.pieces(ids) == ["<to:fr>", "d", "o", "g", "</s>"]
    assert ids[0] == 5


def test_a_target_is_tokens_then_the_end_and_comes_back() -> None:
    both = separate()
    ids = both.encode_target(Example("", "D AE1 G"))
    assert both.target.pieces(ids) == ["D", "AE1", "G", "</s>"]
    assert both.decode([BOS, *ids, PAD, PAD]) == "D AE1 G"
    assert both.decode([UNK]) == "⁇"


def test_an_empty_line_still_has_its_end() -> None:
    assert separate().encode_source(Example("")) == [EOS]
    assert separate().encode_target(Example("", "")) == [EOS]


def test_tags_belong_to_the_source_alone_unless_the_vocabulary_is_joint() -> None:
    both = separate()
    assert not both.is_joint
    assert both.target.vocabulary.symbol_id("<to:de>") is None
    joint = learn_codec(Part("bytes"), Part("bytes"), True, "nfc", SOURCES, TARGETS, ["<to:de>"])
    assert joint.is_joint
    assert joint.source is joint.target
    assert joint.target.vocabulary.symbol_id("<to:de>") == 4


def test_a_joint_vocabulary_learns_from_both_sides() -> None:
    joint = learn_codec(Part("characters"), Part("characters"), True, "nfc", ["ab"], ["cd"], [])
    assert joint.decode(joint.encode_phrase("abcd")) == "abcd"


def test_an_unknown_tag_is_an_error_with_file_and_line() -> None:
    with pytest.raises(DataError, match=r"^new\.tsv:7: the language tag <to:nl>"):
        separate().encode_source(Example("dog", target_lang="nl", file="new.tsv", line=7))
    with pytest.raises(DataError, match=r"^the language tag <to:nl>"):
        separate().encode_source(Example("dog", target_lang="nl"))


def test_both_sides_are_normalized_in_learning_and_in_use() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    both = learn_codec(Part("characters"), Part("words"), False, "nfc", [decomposed], [decomposed], [])
    assert both.encode_source(Example(composed)) == both.encode_source(Example(decomposed))
    assert both.encode_phrase(decomposed) == both.encode_phrase(composed)
    assert both.decode(both.encode_phrase(decomposed)) == composed
    raw = learn_codec(Part("characters"), Part("words"), False, "none", [decomposed], [decomposed], [])
    assert raw.decode(raw.encode_phrase(decomposed)) == decomposed


def test_a_generator_samples_the_side_that_samples_and_leaves_the_other_alone() -> None:
    lines = ["the lower lands", "the slower hands"] * 3
    both = learn_codec(Part("bpe", {"dropout": 0.5}), Part("words"), False, "nfc", lines, lines, [])
    assert both.is_stochastic
    example, usual = Example(lines[0]), Codec.encode_source(both, Example(lines[0]))
    drawn = {tuple(both.encode_source(example, np.random.default_rng(seed))) for seed in range(20)}
    assert len(drawn) > 1
    assert {both.source.decode(ids) for ids in drawn} == {both.source.decode(usual)} == {lines[0]}
    assert both.encode_phrase(lines[0], rng=np.random.default_rng(0)) == both.encode_phrase(lines[0])
    assert not separate().is_stochastic


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["unigram", "characters"])
def test_a_codec_comes_back_from_its_files(kind: str, joint: bool) -> None:
    part = Part(kind)
    before = learn_codec(part, part, joint, "nfkc", SOURCES, TARGETS, ["<to:de>"])
    files = before.to_files()
    assert {name.split(".")[0] for name in files} == ({"joint"} if joint else {"source", "target"})
    after = codec.build_codec(part, part, joint, "nfkc").restore(files)
    assert (after.is_joint, after.fingerprint) == (joint, before.fingerprint)
    example = Example("dogma ﬁ", target_lang="de")
    assert after.encode_source(example) == before.encode_source(example)
    assert after.encode_phrase(TARGETS[0]) == before.encode_phrase(TARGETS[0])


def test_the_fingerprint_tells_codecs_apart_and_nothing_else() -> None:
    part = Part("characters")

    def fingerprint(sources: list[str] = SOURCES, normalization: str = "nfc", joint: bool = False) -> str:
        return learn_codec(part, part, joint, normalization, sources, TARGETS, []).fingerprint

    assert fingerprint() == fingerprint()
    different = {
        fingerprint(),
        fingerprint([*SOURCES, "zebra"]),
        fingerprint(normalization="nfd"),
        fingerprint(joint=True),
    }
    assert len(different) == 4


def test_dropout_does_not_change_the_fingerprint() -> None:
    calm, wild = (
        learn_codec(Part("bpe", options), Part("symbols"), False, "nfc", SOURCES, TARGETS, [])
        for options in ({}, {"dropout": 0.2})
    )
    assert calm.fingerprint == wild.fingerprint


def test_missing_files_of_a_side_are_named() -> None:
    files = {name: data for name, data in separate().to_files().items() if name.startswith("source.")}
    with pytest.raises(ModelError, match="files of the target tokenizer are missing"):
        codec.build_codec(Part("characters"), Part("symbols"), False, "nfc").restore(files)


# -- words that only the source knows ------------------------------------------------------------------------------


def copying(count: int = 2, **options: object) -> Codec:
    lines = ["meets , whom today"] * 2
    return learn_codec(Part("words", options), Part("words"), True, "nfc", lines, [], codec.copy_slot_symbols(count))


def test_unknown_words_of_a_source_are_numbered_on_both_sides_and_read_as_themselves() -> None:
    both, source = copying(), "Zora meets Quill , Zora"
    ids = both.encode_source(Example(source))
    assert both.source.pieces(ids) == ["<copy:0>", "▁meets", "<copy:1>", "▁,", "<copy:0>", "</s>"]
    target = both.encode_target(Example(source, "Quill , whom Zora meets"))
    assert both.target.pieces(target)[0] == "<copy:1>"
    assert both.decode(target, source) == "Quill , whom Zora meets"


def test_an_unknown_word_that_the_source_lacks_or_has_no_number_for_stays_unknown() -> None:
    both = copying(1)
    assert both.decode(both.encode_phrase("Quill meets Zora", "Zora meets Quill"), "Zora meets Quill") == (
        "⁇ meets Zora"
    )
    assert both.target.pieces(both.encode_phrase("Zora"))[0] == "<unk>"
    assert both.decode(both.encode_phrase("today"), "Zora") == "today"


def test_without_numbers_nothing_changes() -> None:
    none, source = copying(0), "Zora meets Quill"
    assert none.encode_source(Example(source)).count(UNK) == 2
    assert none.decode(none.encode_phrase(source, source), source) == "⁇ meets ⁇"


def test_numbered_words_keep_their_letters_where_the_vocabulary_is_in_lower_case() -> None:
    both = copying(lowercase=True)
    assert both.decode(both.encode_source(Example("Zora MEETS")), "Zora MEETS") == "Zora meets"


def test_copy_slots_stay_unused_where_nothing_is_unknown() -> None:
    joint = learn_codec(Part("bytes"), Part("bytes"), True, "nfc", ["ab"], ["ab"], codec.copy_slot_symbols(2))
    assert joint.encode_source(Example("ab")) == joint.encode_target(Example("ab", "ab"))
    assert joint.decode(joint.encode_phrase("ab"), source="ab") == "ab"
