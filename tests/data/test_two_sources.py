"""Two sources on the way from a file to a batch: read, kept once, padded, split and moved together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.core.errors import ConfigError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.data.batching import BatchStream, Cursor, validation_batches
from dragoman.data.readers import read_pairs, read_sources
from dragoman.data.samples import scenes
from dragoman.data.store import builder
from dragoman.text import codec as codecs
from dragoman.text.codec import Codec, SecondSourceReader

WORDS = Part("words")


class Rows:
    """A modality whose numbers are easy to check: a file `a3` is three rows of (97, 3)."""

    width, dtype, has_augmentation = 2, "<i4", False

    def __init__(self) -> None:
        self.read_names: list[str] = []

    def read(self, example: Example) -> np.ndarray:
        self.read_names.append(example.source)
        count = int(example.source[1:])
        return np.array([[ord(example.source[0]), count]] * count, np.int32)


def codec(examples: list[Example], second: SecondSourceReader) -> Codec:
    texts = [e.source for e in examples] + ([e.second_source for e in examples] if second == "text" else [])
    targets = [e.target or "" for e in examples]
    return learn_codec(WORDS, WORDS, False, "nfc", texts, targets, [], None, second)


PAIRS = [
    Example("what is it ?", "a", second_source="x1", line=1),
    Example("what color", "b b", second_source="x1", line=2),
    Example("who", "a b", second_source="y3", line=3),
    Example("what is it ?", "a", second_source="", line=4),
]


@pytest.mark.parametrize("form", ["pairs.tsv", "pairs.jsonl"])
def test_a_column_or_key_names_the_second_source(tmp_path: Path, form: str) -> None:
    file = tmp_path / form
    if form.endswith("tsv"):
        file.write_text("what ?\tone.png\tred\nwho ?\ttwo.png\tme\n")
    else:
        rows = [("what ?", "one.png", "red"), ("who ?", "two.png", "me")]
        file.write_text(
            "".join(json.dumps(dict(zip(("source", "second_source", "target"), r, strict=True))) + "\n" for r in rows)
        )
    found = list(read_pairs(file, columns=("source", "second_source", "target")))
    assert [(e.source, e.second_source, e.target) for e in found] == [
        ("what ?", "one.png", "red"),
        ("who ?", "two.png", "me"),
    ]
    if form.endswith("jsonl"):
        assert [e.second_source for e in read_sources(file)] == ["one.png", "two.png"]


@pytest.mark.parametrize("kind", ["text", "medium"])
def test_a_store_keeps_both_and_batches_have_them_row_by_row(tmp_path: Path, kind: str) -> None:
    modality: Any = Rows()
    both = codec(PAIRS, "text" if kind == "text" else modality)
    made = builder.build_store(iter(PAIRS), both, tmp_path / "store", max_source=9, max_target=9, keep_text=False)
    assert made.skipped == {"blank source": 1}
    assert len(made) == 3
    if kind == "medium":
        assert modality.read_names == ["x1", "y3"]  # the file that two lines name is read once
        assert (tmp_path / "store" / "second_source.ids").stat().st_size == (1 + 3) * 2 * 4
    expected = {e.line: np.asarray(both.encode_second_source(e)).tolist() for e in PAIRS[:3]}
    sources = {e.line: np.asarray(both.encode_source(e)).tolist() for e in PAIRS[:3]}
    batches = BatchStream([(made, 1.0)], both, tokens=100, seed=1)
    # In training `lines` are lines of the file, in validation rows of the store.
    for batch, first in ((next(batches.batches_from(Cursor()))[0], 0), (next(validation_batches(made, 100)), 1)):
        assert batch.second_source is not None
        assert batch.second_source_lengths is not None
        for piece in (batch, batch.slice_rows(1, 3), batch.slice_rows(0, 2).to("cpu")):
            assert piece.second_source is not None
            assert piece.second_source_lengths is not None
            for row, line in enumerate(number + first for number in piece.lines):
                assert piece.second_source[row, : int(piece.second_source_lengths[row])].tolist() == expected[line]
                assert piece.source[row, : int(piece.source_lengths[row])].tolist() == sources[line]


def test_the_area_of_a_batch_counts_the_longer_source(tmp_path: Path) -> None:
    modality: Any = Rows()
    long = [Example("who", "a", second_source="z8", line=1), Example("who", "a", second_source="z2", line=2)]
    both = codec(long, modality)
    made = builder.build_store(iter(long), both, tmp_path / "store", max_source=9, max_target=9, keep_text=False)
    assert made.lengths(np.arange(2))[0].tolist() == [8, 2]
    sizes = sorted(len(batch) for batch in validation_batches(made, 8))
    assert sizes == [1, 1]
    assert next(validation_batches(made, 16)).area == 16


def test_codecs_with_another_second_source_differ_and_come_back_from_their_files() -> None:
    modality: Any = Rows()
    one, two = codec(PAIRS, "text"), codec(PAIRS, modality)
    assert len({one.fingerprint, two.fingerprint, Codec(one.source, one.target).fingerprint}) == 3
    again = codecs.build_codec(WORDS, WORDS, False, "nfc", None, "text").restore(one.to_files())
    assert again.encode_second_source(PAIRS[2]) == one.encode_second_source(PAIRS[2])
    assert one.second_source_size == len(one.source)
    assert two.second_source_size == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": {"train": "a.tsv"}}, "does not name 'second_source'"),
        ({"model": {}}, "model.second_source is null"),
        ({"training": {"objective": "lm"}}, "pairs or labels"),
        (
            {"model": {"encoder": "none", "decoder": {"source": "prefix"}, "second_source": {}}},
            "cannot be read as a prefix",
        ),
        ({"model": {"second_source": {"encoder": "none"}}}, "set it to identity"),
        ({"model": {"second_source": {"encodr": "rnn"}}}, "did you mean 'encoder'"),
    ],
)
def test_what_two_sources_do_not_support_is_a_config_error(change: dict[str, Any], says: str) -> None:
    value = {
        "data": {"train": "a.tsv", "columns": ["source", "second_source", "target"]},
        "model": {"second_source": {}},
    } | change
    with pytest.raises(ConfigError) as error:
        configs.validate(value, "config")
    assert any(says in problem for problem in error.value.problems), error.value.problems


def test_no_training_picture_shows_what_the_tests_ask_about() -> None:
    rng = np.random.default_rng(3)
    seen = {scenes.sample_combination("train", rng) for _ in range(2000)}
    new = {scenes.sample_combination("test", rng) for _ in range(2000)}
    assert (len(seen), len(new), len(seen & new)) == (36, 12, 0)
    for places in ((0, 1), (0, 2), (1, 2)):  # but every two of the three are seen together
        assert {tuple(c[i] for i in places) for c in new} <= {tuple(c[i] for i in places) for c in seen}


def test_pictures_are_a_function_of_the_seed_and_show_the_color(tmp_path: Path) -> None:
    one, again = (next(scenes.generate("labels", "train", 1, 5)) for _ in range(2))
    other = next(scenes.generate("labels", "train", 1, 6))
    (picture,), (same,), (else_,) = (list(item.files.values()) for item in (one, again, other))
    assert picture.tolist() == same.tolist()
    assert picture.tolist() != else_.tolist()
    thing = scenes.SceneObject("square", "red", 0.5, 0.5)
    drawn = scenes.render([thing], 32, np.random.default_rng(0))
    assert abs(drawn[scenes.object_mask(thing, 32)].mean(0) - np.array(scenes.COLORS["red"])).max() < 3
    assert abs(drawn[0, 0].astype(int) - scenes.BACKGROUND_GRAY).max() < 30
