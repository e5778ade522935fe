"""What stands in place of <unk>: the word of the source that the model looked at most when it said it.

The truth is worked out by hand from the attention of the same results, with the words as `split` has them.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import UNK, Example
from dragoman.inference.ensemble import Ensemble
from dragoman.inference.pipeline import Pipeline
from dragoman.text.vocabulary import UNK_SURFACE

TEXTS = ["the old dog sees a boat", "a dog"]
SOURCES = ["the Zaragoza dog", "Ilse sees Oskar Yngve a boat", "boat", "Xanthippe", "the old old dog sees Ulm"]
REPLACE = GenerationOptions(replace_unk=True)
FAMILIES: dict[str, dict[str, Any]] = {
    "before": {"encoder": "rnn", "decoder": "rnn"},
    "after": {"encoder": "rnn", "decoder": {"name": "rnn", "order": "after", "score": "general"}},
    "pyramid": {"encoder": {"name": "pyramid", "layers": 1}, "decoder": "rnn"},
    "transformer": {"encoder": {"name": "transformer", "heads": 2}, "decoder": {"name": "transformer", "heads": 2}},
}


@cache
def model(family: str = "before", tokenizer: str = "words", seed: int = 5) -> Pipeline:
    """One with random weights that often says <unk>."""
    value: Any = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"joint": False, "source": tokenizer},
        "model": {"width": 8, "tie": "none", **FAMILIES[family]},
        "generation": {"max_length_ratio": 1.0, "max_length_extra": 3, "min_new_tokens": 3},
    }
    config = configs.validate(value, "a test")
    part = config.tokenizer.source
    codec = learn_codec(part, part, False, "nfc", TEXTS, TEXTS, ["<to:de>", "<to:fr>"])
    torch.manual_seed(seed)
    found = configs.build_model(config, len(codec.source), len(codec.target))
    with torch.no_grad():
        for p in found.parameters():
            p.mul_(2.0)  # so that it looks at one word more than at others
        found.output.bias[UNK] += 2.0
    return Pipeline(found, codec, config, torch.device("cpu"))


def by_hand(tokens: list[str], attention: np.ndarray, words: list[str]) -> str:
    """The text of some whole words, with the one that has most weight for each that is unknown."""
    said = [words[row[: len(words)].argmax()] if t == "<unk>" else t for t, row in zip(tokens, attention, strict=False)]
    return " ".join(said)


@pytest.mark.parametrize("tokenizer", ["words", "symbols"])
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"pyramid"}))
def test_each_unknown_word_becomes_the_one_that_was_looked_at_most(family: str, tokenizer: str) -> None:
    plain = model(family, tokenizer)
    asked: dict[str, Any] = {"beam": 3, "nbest": 3}
    seen = plain.predict(SOURCES, beam=3, attention=True)
    replaced = plain.predict(SOURCES, REPLACE, **asked)
    assert any(UNK_SURFACE in before.text for before in seen)
    for source, before, after in zip(SOURCES, seen, replaced, strict=True):
        assert after.ids == before.ids
        assert after.tokens == before.tokens  # what was said, as it was said
        assert after.score == pytest.approx(before.score)
        assert after.text == by_hand([t.strip("▁ ") for t in after.tokens], before.attention, source.split())
        for one in after.alternatives:
            assert UNK_SURFACE not in one.text


def test_neither_the_batch_nor_its_order_changes_a_word() -> None:
    p = model()
    together = [found.text for found in p.predict(SOURCES, REPLACE)]
    assert together == [p.predict([source], REPLACE)[0].text for source in SOURCES]
    assert together[::-1] == [found.text for found in p.predict(SOURCES[::-1], REPLACE)]


def test_a_language_tag_and_the_end_are_no_words() -> None:
    p = model()
    example = Example("Ilse sees", target_lang="fr")
    ids = p.codec.encode_source(example)
    assert p.codec.source_words(ids, example.source) == ["", "Ilse", "sees", ""]
    (found,) = p.predict([example], REPLACE)
    assert "<" not in found.text


@pytest.mark.parametrize("part", [Part("words"), Part("symbols"), Part("bpe", {"size": 300})])
def test_the_words_of_a_source_stand_where_its_ids_do(part: Part) -> None:
    """Numbered ones too, as a model that copies has them: two names have a number, the third has none left."""
    codec = learn_codec(part, part, True, "nfc", TEXTS * 20, TEXTS * 20, ["<to:fr>", "<copy:0>", "<copy:1>"])
    example = Example("Ilse sees Oskar Ilse Ulm" if part.name != "bpe" else "a dog", target_lang="fr")
    words = codec.source_words(codec.encode_source(example), example.source)
    assert words == ["", *example.source.split(), ""]


def test_a_character_that_nobody_has_seen_is_taken_over_too() -> None:
    p = model(tokenizer="characters")
    (found,) = p.predict(["ñ"], REPLACE)
    (plain,) = p.predict(["ñ"])
    assert found.ids == plain.ids
    assert found.text == plain.text.replace(UNK_SURFACE, "ñ")


def test_models_together_look_together() -> None:
    first, second = model(seed=5), model(seed=6)
    both = Pipeline(Ensemble([first.model, second.model]), first.codec, first.config, first.device)
    seen = both.predict(SOURCES, attention=True)
    for source, before, after in zip(SOURCES, seen, both.predict(SOURCES, REPLACE), strict=True):
        assert after.text == by_hand([t.strip("▁ ") for t in before.tokens], before.attention, source.split())


def test_drawn_results_have_their_own_words() -> None:
    samples = GenerationOptions(search=Part("sample"), num_samples=20, temperature=2.0, seed=3, nbest=20)
    (found,) = model("after").predict([SOURCES[1]], samples.merge(REPLACE))
    names = {word for one in [found, *found.alternatives] for word in one.text.split()} - set(TEXTS[0].split())
    assert names
    assert names <= {"Ilse", "Oskar", "Yngve"}


def test_a_decoder_that_looks_nowhere_is_told_so() -> None:
    value: Any = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"joint": False, "source": "words"},
        "model": {"width": 8, "tie": "none", "encoder": "rnn", "decoder": {"name": "rnn", "source": "initial"}},
        "generation": {"replace_unk": True},
    }
    config = configs.validate(value, "a test")
    with_attention = model()
    torch.manual_seed(5)
    blind = configs.build_model(config, len(with_attention.codec.source), len(with_attention.codec.target))
    with torch.no_grad():
        blind.output.bias[UNK] += 9.0
    p = Pipeline(blind, with_attention.codec, config, torch.device("cpu"))
    with pytest.raises(UserError, match="replace_unk needs a decoder that attends to the source"):
        p.predict(SOURCES)


def test_a_state_that_stands_for_several_words_is_no_word() -> None:
    with pytest.raises(UserError, match="replace_unk replaces <unk> by words of the source"):
        model("pyramid").predict(SOURCES, REPLACE)


def test_a_language_model_has_no_source_to_take_words_from() -> None:
    value: Any = {
        "data": {"train": "nowhere.txt"},
        "tokenizer": {"source": "words", "joint": True},
        "model": {"width": 8, "tie": "all", "encoder": "none", "decoder": {"name": "rnn", "source": "prefix"}},
        "training": {"objective": "lm"},
        "generation": {"replace_unk": True},
    }
    config = configs.validate(value, "a test")
    part = config.tokenizer.source
    codec = learn_codec(part, part, True, "nfc", [], TEXTS, [])
    found = configs.build_model(config, len(codec.source), len(codec.target))
    with pytest.raises(UserError, match="replace_unk replaces <unk> by words of the source"):
        Pipeline(found, codec, config, torch.device("cpu")).predict(["a dog"])


def test_the_command_writes_the_words_and_changes_nothing_else(tmp_path: Path) -> None:
    """By the fast paths, too, which know nothing of words."""
    p = model("transformer")
    model_folder.save(tmp_path / "model", p.config, model_folder.unique_weights(p.model), p.codec, {})
    (tmp_path / "sources.txt").write_text("\n".join(SOURCES) + "\n")
    command = [sys.executable, "-m", "dragoman", "predict", "model", "sources.txt", "--workers", "2"]
    told = subprocess.run([*command, "--replace-unk"], cwd=tmp_path, capture_output=True, text=True, check=True)
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == [found.text for found in p.predict(SOURCES, REPLACE)]
    assert plain.stdout.splitlines() == [found.text for found in p.predict(SOURCES)]
