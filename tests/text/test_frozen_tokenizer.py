"""Tokenizers of imported models: their files split texts, and our vocabulary has the ids.

Their promises as tokenizers are in test_tokenizers.py; that they agree with other programs is in tests/interop.
"""

from __future__ import annotations

import hashlib
import json

import pytest
from tests.frozen_tokenizers import KINDS, frozen_tokenizer

from dragoman.core.errors import DataError, ModelError
from dragoman.core.registry import Part
from dragoman.core.types import UNK
from dragoman.text.codec import Codec, build_codec
from dragoman.text.frozen_tokenizer import FrozenTokenizer
from dragoman.text.tokenizers import tokenizers

LINES = ["the cat sat on the mat", "a dog and a cat: naïve café"] * 9
EVERY = pytest.mark.parametrize("kind", KINDS)


def with_tokens(kind: str, count: int) -> FrozenTokenizer:
    """A tokenizer whose vocabulary has the first tokens of its file alone."""
    whole = frozen_tokenizer(kind, LINES)
    tokenizer = frozen_tokenizer(kind, LINES)
    tokenizer.load(whole.model, whole.vocabulary.tokens[:count], ["<to:de>"])
    return tokenizer


@EVERY
def test_ids_are_those_of_our_vocabulary_whatever_the_numbers_of_the_file(kind: str) -> None:
    before, after = frozen_tokenizer(kind, LINES), frozen_tokenizer(kind, LINES)
    after.load(before.model, before.vocabulary.tokens[::-1], ["<to:de>"])
    for line in LINES[:2]:
        assert after.pieces(after.encode(line)) == before.pieces(before.encode(line))
        assert after.encode(line) != before.encode(line)
        assert after.decode(after.encode(line)) == line


@EVERY
def test_a_piece_that_the_vocabulary_lacks_is_unknown_and_reads_so(kind: str) -> None:
    tokenizer = with_tokens(kind, 0)
    ids = tokenizer.encode("a cat")
    assert set(ids) == {UNK}
    assert set(tokenizer.decode(ids)) == {"⁇"}
    whole = frozen_tokenizer(kind, LINES)
    a, cat = whole.encode("a"), whole.encode("a cat")[len(whole.encode("a")) :]
    assert whole.decode([*a, UNK, *cat]) == "a⁇ cat"
    assert whole.decode([UNK, *cat, UNK]).endswith("cat⁇")


@EVERY
def test_a_frozen_tokenizer_cannot_be_learned_and_says_what_to_do(kind: str) -> None:
    for tokenizer in (tokenizers.build(Part(kind)), frozen_tokenizer(kind, LINES)):
        with pytest.raises(DataError, match=r"training.start_from or tokenizer.load, or choose another tokenizer"):
            tokenizer.learn(["a"])


@EVERY
def test_another_file_or_none_is_refused(kind: str) -> None:
    tokenizer = frozen_tokenizer(kind, LINES)
    files = tokenizer.to_files()
    name = tokenizer.model_file
    with pytest.raises(ModelError, match=f"{name} of the {kind} tokenizer is missing"):
        tokenizer.restore({"tokenizer.json": files["tokenizer.json"]})
    with pytest.raises(ModelError, match=r"is not the file that tokenizer.json was written with"):
        tokenizer.restore(files | {name: files[name] + b" "})
    odd = b"odd"
    signed = json.loads(files["tokenizer.json"]) | {"sha256": hashlib.sha256(odd).hexdigest()}
    with pytest.raises(ModelError, match=f"{name} is damaged"):
        tokenizer.restore({"tokenizer.json": json.dumps(signed).encode(), name: odd})
    assert tokenizer.decode(tokenizer.encode(LINES[0])) == LINES[0]


@EVERY
def test_a_word_that_is_added_is_one_token_and_comes_back(kind: str) -> None:
    tokenizer = frozen_tokenizer(kind, LINES)
    before = tokenizer.encode("the cat sat")
    tokenizer.extend(["dragoman"], ["<to:fr>"])
    assert tokenizer.encode("the cat sat") == before
    ids = tokenizer.encode("a dragoman sat")
    assert tokenizer.pieces(ids).count("▁dragoman") == 1
    for text in ("a dragoman sat", "dragoman sat", "dragoman"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    if kind == "huggingface":  # whose model may write the space itself
        assert tokenizer.decode([*tokenizer.encode("dragoman"), *tokenizer.encode(" sat")]) == "dragoman sat"


@EVERY
def test_a_codec_with_a_frozen_tokenizer_comes_back_from_its_files(kind: str) -> None:
    frozen = frozen_tokenizer(kind, LINES, ["<lang:de>"])
    codec = Codec(frozen, frozen, "none")
    other = build_codec(Part(kind), Part(kind), True, "none").restore(codec.to_files())
    assert other.fingerprint == codec.fingerprint
    assert other.encode_phrase(LINES[1]) == codec.encode_phrase(LINES[1])


def test_a_tokenizer_of_the_library_that_claims_more_than_it_has_is_refused() -> None:
    whole = json.loads(frozen_tokenizer("huggingface", LINES).model)
    tokenizer = tokenizers.build(Part("huggingface"))
    assert isinstance(tokenizer, FrozenTokenizer)
    for charsmap, problem in (("//////////8=", "is cut off"), ("%%", "is no base64")):
        changed = whole | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}}
        with pytest.raises(ValueError, match=problem):
            tokenizer.load(json.dumps(changed).encode(), [], [])
