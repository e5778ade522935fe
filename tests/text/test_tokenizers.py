"""The promises of every tokenizer, in one table run over all that are registered."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import frozen_tokenizers

from dragoman.core.errors import ModelError
from dragoman.core.registry import Part
from dragoman.core.types import SPECIALS
from dragoman.text.tokenizers import Tokenizer, tokenizers

TAGS = ["<from:en>", "<to:de>"]
CORPUS = [
    "the cat sat on the mat, and the dog sat on the cat.",
    "a dog  and a cat: naïve café 東京 <s> </s> <unk> <to:de> <0x41>",
    "the others sat there and then the dog went to the other mat",
] * 3
SAMPLING = {"bpe": {"dropout": 0.3}, "unigram": {"alpha": 0.2}}
PIECES = sorted(SAMPLING)


def learned(kind: str, **options: Any) -> Tokenizer:
    """A tokenizer of the corpus: learned, or with the file that another program made of it."""
    if kind in frozen_tokenizers.KINDS:
        return frozen_tokenizers.frozen_tokenizer(kind, CORPUS, TAGS)
    size = {"size": 400} if kind in PIECES else {}
    tokenizer = tokenizers.build(Part(kind, {**size, **options}))
    tokenizer.learn(CORPUS, TAGS)
    return tokenizer


LEARNED = {kind: learned(kind, **SAMPLING.get(kind, {})) for kind in tokenizers.names}
EVERY = pytest.mark.parametrize("kind", tokenizers.names)


def test_the_folder_holds_six_kinds_that_are_learned_and_two_that_come_with_imported_models() -> None:
    kinds = ["bpe", "bytes", "characters", "symbols", "unigram", "words"]
    assert tokenizers.names == sorted([*kinds, *frozen_tokenizers.KINDS])


@EVERY
def test_every_option_has_a_schema_and_every_kind_a_line(kind: str) -> None:
    assert tokenizers.parse(kind).name == kind
    assert tokenizers.summary(kind).endswith(".")


@EVERY
def test_specials_and_tags_have_the_first_ids(kind: str) -> None:
    tokenizer = LEARNED[kind]
    assert [tokenizer.vocabulary.symbol_id(symbol) for symbol in (*SPECIALS, *TAGS)] == [0, 1, 2, 3, 4, 5]
    assert tokenizer.vocabulary.symbol_id("<to:fr>") is None
    assert tokenizer.vocabulary.symbol_id("the") is None
    assert tokenizer.pieces(range(6)) == [*SPECIALS, *TAGS]


@EVERY
def test_no_special_or_tag_is_ever_found_in_text(kind: str) -> None:
    tokenizer = LEARNED[kind]
    for text in [*SPECIALS, *TAGS, "a<s>b", "x </s> y", "<pad><pad>", " ".join(SPECIALS)]:
        for ids in (tokenizer.encode(text), tokenizer.sample(text, np.random.default_rng(0))):
            assert not set(ids) & {0, 1, 2, 4, 5}, text


@EVERY
def test_ids_are_in_range_and_each_has_a_piece(kind: str) -> None:
    tokenizer = LEARNED[kind]
    for line in CORPUS:
        ids = tokenizer.encode(line)
        assert all(0 <= id < len(tokenizer) for id in ids)
        assert len(tokenizer.pieces(ids)) == len(ids)


@EVERY
def test_training_text_comes_back_up_to_whitespace(kind: str) -> None:
    tokenizer = LEARNED[kind]
    for line in CORPUS:
        back = tokenizer.decode(tokenizer.encode(line))
        assert back == (" ".join(line.split()) if kind in ("words", "symbols") else line)


@EVERY
def test_an_empty_text_has_no_tokens(kind: str) -> None:
    tokenizer = LEARNED[kind]
    assert tokenizer.encode("") == tokenizer.sample("", np.random.default_rng(0)) == []
    assert tokenizer.decode([]) == ""


@EVERY
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_any_ids_decode_to_some_text_and_have_pieces(kind: str, data: st.DataObject) -> None:
    tokenizer = LEARNED[kind]
    ids = data.draw(st.lists(st.integers(-1, len(tokenizer) + 1)))
    tokenizer.decode(ids).encode()
    assert len(tokenizer.pieces(ids)) == len(ids)


@EVERY
@given(text=st.text())
@settings(deadline=None, max_examples=30)
def test_any_text_can_be_encoded_and_sampled(kind: str, text: str) -> None:
    tokenizer = LEARNED[kind]
    for odd in (text, text + "\ud800", text + "\0"):
        for ids in (tokenizer.encode(odd), tokenizer.sample(odd, np.random.default_rng(0))):
            assert all(3 <= id < len(tokenizer) for id in ids)


@EVERY
def test_the_same_texts_give_the_same_files(kind: str) -> None:
    assert learned(kind).to_files() == learned(kind).to_files() == LEARNED[kind].to_files()


@EVERY
def test_a_restored_tokenizer_is_equal(kind: str) -> None:
    before, after = LEARNED[kind], tokenizers.build(Part(kind, SAMPLING.get(kind, {})))
    after.restore(before.to_files())
    assert (after.to_files(), len(after), after.is_stochastic) == (before.to_files(), len(before), before.is_stochastic)
    assert after.pieces(range(len(after))) == before.pieces(range(len(before)))
    for line in [*CORPUS, "unseen wörds <s> ▁ \t 北"]:
        assert after.encode(line) == before.encode(line)
        assert after.sample(line, np.random.default_rng(1)) == before.sample(line, np.random.default_rng(1))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "words"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_options_of_learning_come_back_with_the_files(kind: str, byte_fallback: bool) -> None:
    before = learned(kind, byte_fallback=byte_fallback)
    after = tokenizers.build(Part(kind, {"byte_fallback": not byte_fallback}))
    after.restore(before.to_files())
    assert after.encode("ж q") == before.encode("ж q")
    assert after.to_files() == before.to_files()


def test_lowercase_comes_back_with_the_files() -> None:
    after = tokenizers.build(Part("words"))
    after.restore(learned("words", lowercase=True).to_files())
    assert after.encode("THE CAT") == after.encode("the cat")


@EVERY
def test_the_files_are_plain_json_and_a_sentencepiece_model(kind: str) -> None:
    files = LEARNED[kind].to_files()
    models = {"bpe": "tokenizer.model", "unigram": "tokenizer.model"}
    models |= {"sentencepiece": "tokenizer.model", "huggingface": "huggingface.json"}
    assert set(files) == ({"tokenizer.json", models[kind]} if kind in models else {"tokenizer.json"})
    content = json.loads(files["tokenizer.json"])
    assert (content["kind"], content["extra"]) == (kind, TAGS)


@EVERY
def test_a_tokenizer_survives_the_way_to_another_process(kind: str) -> None:
    before = LEARNED[kind]
    after = pickle.loads(pickle.dumps(before))
    assert after.to_files() == before.to_files()
    assert after.sample(CORPUS[0], np.random.default_rng(2)) == before.sample(CORPUS[0], np.random.default_rng(2))
    fresh = pickle.loads(pickle.dumps(tokenizers.build(Part(kind))))  # also before it has learned
    fresh.restore(before.to_files())
    assert fresh.encode(CORPUS[0]) == before.encode(CORPUS[0])


def test_a_spawned_worker_encodes_alike() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for kind in PIECES:
            assert pool.map(LEARNED[kind].encode, CORPUS[:2]) == [LEARNED[kind].encode(line) for line in CORPUS[:2]]


@EVERY
def test_a_damaged_tokenizer_is_refused_and_the_old_one_stays(kind: str) -> None:
    tokenizer = learned(kind)
    good, before = tokenizer.to_files(), tokenizer.encode(CORPUS[0])
    content = json.loads(good["tokenizer.json"])
    text = json.dumps(content).encode()
    bad = [
        {},
        {"tokenizer.json": b""},
        {**good, "tokenizer.json": text[: len(text) // 2]},
        {**good, "tokenizer.json": b"[]"},
        {**good, "tokenizer.json": json.dumps(content | {"kind": "other"}).encode()},
        {**good, "tokenizer.json": json.dumps(content | {"extra": [1]}).encode()},
        {**good, "tokenizer.json": json.dumps(content | {"extra": ["<s>"]}).encode()},
        {**good, "tokenizer.json": json.dumps(content | {"tokens": ["a", "a"]}).encode()},
    ]
    if kind in PIECES:
        bad.pop()  # its tokens are in the model
    for files in bad:
        with pytest.raises(ModelError) as caught:
            tokenizer.restore(files)
        assert "\n" not in str(caught.value)
    assert (tokenizer.to_files(), tokenizer.encode(CORPUS[0])) == (good, before)


# -- sampling ----------------------------------------------------------------------------------------------------------


@EVERY
def test_only_tokenizers_with_dropout_or_alpha_are_stochastic(kind: str) -> None:
    assert LEARNED[kind].is_stochastic == (kind in PIECES)
    plain, rng = learned(kind), np.random.default_rng(3)
    assert not plain.is_stochastic
    assert [plain.sample(line, rng) for line in CORPUS] == [plain.encode(line) for line in CORPUS]


@pytest.mark.parametrize("kind", PIECES)
def test_the_generator_alone_decides_the_split(kind: str) -> None:
    tokenizer = LEARNED[kind]

    def splits(seed: int) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        return [tokenizer.sample(line, rng) for line in CORPUS]

    assert splits(1) == splits(1)
    assert splits(1) != splits(2)
    tokenizer.sample("words in between change nothing", np.random.default_rng(9))
    assert splits(2) == splits(2)


@pytest.mark.parametrize("kind", PIECES)
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_every_sampled_split_decodes_to_the_same_text(kind: str, byte_fallback: bool) -> None:
    tokenizer = learned(kind, byte_fallback=byte_fallback, **SAMPLING[kind])
    for seed, line in enumerate([*CORPUS, "  spaces  kept ", "unseen ж w★rds"]):
        ids = tokenizer.sample(line, np.random.default_rng(seed))
        assert tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode(line))
        if byte_fallback:
            assert tokenizer.decode(ids) == line
