"""Drawn shapes → captions: images from an archive, several captions of each, combinations never seen in training."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file

from dragoman import config as configs
from dragoman import training
from dragoman.core.errors import DataError, RunError
from dragoman.core.registry import Part
from dragoman.core.types import Example
from dragoman.data.batching import BatchStream, Cursor
from dragoman.inference import pipeline
from dragoman.training import prepare
from dragoman.training.tokenizer_learning import load_or_learn_codec

SIDE = 32
COLORS = {"red": (220, 40, 30), "green": (40, 180, 60), "blue": (40, 60, 220), "yellow": (230, 210, 40)}
PLACES = {"top left": (9, 9), "top right": (9, 23), "bottom left": (23, 9), "bottom right": (23, 23)}
SHAPES = ("square", "bar", "pole")
# One place of each color and shape is never seen in training: all pairs of the three are, and none more than others.
UNSEEN = [(c, s, list(PLACES)[(i + j) % 4]) for (i, c), (j, s) in itertools.product(*map(enumerate, (COLORS, SHAPES)))]
SEEN = [scene for scene in itertools.product(COLORS, SHAPES, PLACES) if scene not in UNSEEN]


def drawn(color: str, shape: str, place: str, rng: np.random.Generator) -> NDArray[Any]:
    """One shape of 13 pixels near its place, on a ground that is never the same."""
    row, column = (x + rng.integers(-1, 2) for x in PLACES[place])
    y, x = np.mgrid[:SIDE, :SIDE]
    y, x = abs(y - row), abs(x - column)
    inside = {
        "square": np.maximum(x, y) <= 6,
        "bar": (x <= 6) & (y <= 1),
        "pole": (x <= 1) & (y <= 6),
    }[shape]
    pixels = rng.integers(0, 60, (SIDE, SIDE, 3))
    pixels[inside] = COLORS[color]
    return np.clip(pixels + rng.integers(-12, 13, 3), 0, 255).astype(np.uint8)


def captions(color: str, shape: str, place: str) -> list[str]:
    return [f"a {color} {shape} at the {place}", f"at the {place} there is a {color} {shape}"]


def png(pixels: NDArray[Any]) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "png")
    return data.getvalue()


def write(folder: Path, name: str, scenes: list[tuple[str, str, str]], rng: np.random.Generator) -> None:
    """name.tsv with an image and its captions on each line, and the images in name.zip."""
    lines = []
    with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
        for i, scene in enumerate(scenes):
            archive.writestr(f"{name}/{i}.png", png(drawn(*scene, rng)))
            lines.append("\t".join([f"{name}/{i}.png", *captions(*scene)]))
    (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def config_of(folder: Path, **changes: Any) -> configs.Config:
    value: dict[str, Any] = {
        "name": "shapes",
        "data": {
            "train": str(folder / "train.tsv"),
            "columns": ["source", "target", "target"],
            "files": [str(path) for path in sorted(folder.glob("*.zip"))],
            "cache": str(folder / "cache"),
        },
        "tokenizer": {"source": "words", "target": "words"},
        "model": {
            "width": 48,
            "tie": "none",
            "frontend": {"name": "image", "pixels": SIDE, "channels": 16, "stages": [1, 1]},
            "encoder": {"name": "identity", "dropout": 0.0},
            "decoder": {"name": "rnn", "cell": "gru", "order": "before", "gate": True, "dropout": 0.0},
        },
        "training": {
            "steps": 240,
            "batch_tokens": 32 * SIDE,
            "optimizer": {"name": "adam", "rate": 3e-3},
            "schedule": {"name": "linear", "warmup": 30},
            "label_smoothing": 0.0,
        },
        "generation": {"max_length_ratio": 0.0, "max_length_extra": 12},
        "runtime": {"device": "cpu", "threads": 1},
    }
    for key, change in changes.items():
        value[key] = value[key] | change
    return configs.validate(value, "shapes")


def test_combinations_never_seen_are_described(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    write(tmp_path, "train", SEEN * 16, rng)
    write(tmp_path, "test", UNSEEN * 5, rng)
    for _ in training.run(config_of(tmp_path), tmp_path / "run"):
        pass
    model = pipeline.load(tmp_path / "run", "cpu")
    found = model.predict([f"test/{i}.png" for i in range(60)], beam=1)
    texts, accepted = [prediction.text for prediction in found], [captions(*scene) for scene in UNSEEN * 5]
    wrong = [pair for pair in zip(texts, accepted, strict=True) if pair[0] not in pair[1]]
    print(*wrong[:5], sep="\n")
    assert len(wrong) <= 3  # of 60


# -- hard attention ----------------------------------------------------------------------------------------------------


def test_the_baseline_of_hard_attention_moves_and_comes_back_with_a_checkpoint(tmp_path: Path) -> None:
    drawings(tmp_path)
    (tmp_path / "train.tsv").write_text("".join(f"{i}.png\tword{i} a\tword{i} b\n" for i in range(3)))
    decoder = {"cell": "gru", "order": "before", "normalizer": Part("hard"), "dropout": 0.0}
    config = config_of(tmp_path, training={"steps": 4, "save_every": 2, "schedule": "constant"})
    config = config.model_copy(update={"model": config.model.model_copy(update={"decoder": Part("rnn", decoder)})})
    config = configs.validate(config.model_dump(), "test")  # fills in the defaults of the decoder

    def weights(run: str, step: int) -> dict[str, Any]:
        return load_file(tmp_path / run / "checkpoints" / f"step-{step}" / "model.safetensors")

    for _ in training.run(config, tmp_path / "whole"):
        pass
    reports = training.run(config, tmp_path / "halves")
    next(report for report in reports if report.kind == "saved")
    reports.close()  # type: ignore[attr-defined]
    for _ in training.run(config, tmp_path / "halves"):
        pass
    whole, halves = weights("whole", 4), weights("halves", 4)
    assert whole.keys() == halves.keys()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    baselines = [float(weights("whole", step)["baseline"]) for step in (2, 4)]
    assert baselines[0] != baselines[1]
    assert all(-10 < baseline < 0 for baseline in baselines)  # the mean log p of a token


# -- several captions of an image --------------------------------------------------------------------------------------


def drawings(folder: Path, count: int = 3) -> list[NDArray[Any]]:
    """pictures.zip with 0.png, 1.png, …"""
    every = [drawn(*SEEN[5 * i], np.random.default_rng(i)) for i in range(count)]
    with zipfile.ZipFile(folder / "pictures.zip", "w") as archive:
        for i, pixels in enumerate(every):
            archive.writestr(f"{i}.png", png(pixels))
    return every


FORMS = {
    "train.tsv": "0.png\tone a\tone b\tone c\n1.png\ttwo a\ttwo b\ttwo c\n2.png\tthree a\t\tthree c\n",
    "train.jsonl": '{"source": "0.png", "target": ["one a", "one b", "one c"]}\n'
    '{"source": "1.png", "target": ["two a", "two b", "two c"]}\n'
    '{"source": "2.png", "target": ["three a", "three c"]}\n',
    "lines.tsv": "".join(
        f"{i}.png\t{word} {x}\t\t\n"
        for i, (word, letters) in enumerate([("one", "abc"), ("two", "abc"), ("three", "ac")])
        for x in letters
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_caption_makes_a_pair_and_the_image_is_kept_once(tmp_path: Path, form: str) -> None:
    pictures = drawings(tmp_path)
    (tmp_path / form).write_text(FORMS[form])
    data = {"train": str(tmp_path / form), "columns": ["source", "target", "target", "target"], "max_source": SIDE}
    places = {"files": [str(tmp_path / "pictures.zip")], "cache": str(tmp_path / "cache")}
    config = config_of(tmp_path, data=data | places)
    codec, config = load_or_learn_codec(config)
    prepared = prepare.prepare_data(config, codec, tmp_path / "cache")
    store, _ = prepared.corpora[0]
    texts = ["one a", "one b", "one c", "two a", "two b", "two c", "three a", "three c"]
    wanted = [(pictures[i], text) for i, text in zip([0, 0, 0, 1, 1, 1, 2, 2], texts, strict=True)]
    found = [(store.sources[i], codec.decode(store.targets[i].tolist())) for i in range(len(store))]
    assert [text for _, text in found] == texts
    for (rows, _), (picture, _) in zip(found, wanted, strict=True):
        assert (rows.reshape(picture.shape) == picture).all()
    assert (store.folder / "source.ids").stat().st_size == 3 * SIDE * SIDE * 3
    assert store.lengths(np.arange(len(store)))[0].tolist() == [SIDE] * 8
    rows = np.array([7, 0, 4, 1])
    gathered, lengths = store.sources.gather(rows)
    assert (gathered == np.concatenate([store.sources[int(i)] for i in rows])).all()
    assert lengths.tolist() == store.lengths(rows)[0].tolist() == [SIDE] * 4
    assert (pickle.loads(pickle.dumps(store)).sources[6] == store.sources[6]).all()  # as it travels to a worker


def test_batches_show_every_caption_with_its_own_image(tmp_path: Path) -> None:
    pictures = drawings(tmp_path)
    (tmp_path / "train.tsv").write_text("".join(f"{i}.png\tword{i} a\tword{i} b\n" for i in range(3)))
    config = config_of(tmp_path)
    plain = config.model.model_copy(update={"frontend": Part("image", {"pixels": SIDE, "augment": False})})
    config = config.model_copy(update={"model": plain})
    codec, config = load_or_learn_codec(config)
    prepared = prepare.prepare_data(config, codec, tmp_path / "cache")
    batches = BatchStream(prepared.corpora, codec, tokens=10**6, seed=1)
    batch, _ = next(batches.batches_from(Cursor()))
    seen = set()
    for source, target in zip(batch.source.numpy(), batch.target.tolist(), strict=True):
        text = codec.decode(target)
        seen.add(text)
        assert (source.reshape(SIDE, SIDE, 3) == pictures[int(text[4])]).all()
    assert seen == {f"word{i} {x}" for i in range(3) for x in "ab"}


def test_all_captions_are_references_in_validation(tmp_path: Path) -> None:
    drawings(tmp_path)
    (tmp_path / "train.tsv").write_text("0.png\tone a\tone b\n1.png\ttwo a\ttwo b\n")
    data = {"train": str(tmp_path / "train.tsv"), "valid": str(tmp_path / "train.tsv")}
    places = {"columns": ["source", "target", "target"], "files": [str(tmp_path / "pictures.zip")]}
    training_options = {"validate_metrics": ["bleu1", "cider"], "steps": 2, "schedule": "constant"}
    config = config_of(tmp_path, data=data | places | {"cache": str(tmp_path / "cache")}, training=training_options)
    codec, config = load_or_learn_codec(config)
    prepared = prepare.prepare_data(config, codec, tmp_path / "cache")
    assert [example.accepted for example in prepared.examples] == [("one a", "one b"), ("two a", "two b")]
    assert prepared.valid is not None
    assert len(prepared.valid) == 4
    reports = [r for r in training.run(config, tmp_path / "run") if r.kind == "validation"]
    assert {"loss", "bleu1", "cider"} <= reports[-1].values.keys()


# -- images that change ------------------------------------------------------------------------------------------------


def put_loose(folder: Path, data: bytes) -> None:
    (folder / "a.png").write_bytes(data)


def put_in_zip(folder: Path, data: bytes) -> None:
    with zipfile.ZipFile(folder / "pictures.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("a.png"), data)


def put_in_tar(folder: Path, data: bytes) -> None:
    info = tarfile.TarInfo("a.png")
    info.size = len(data)
    with tarfile.open(folder / "pictures.tar", "w") as archive:
        archive.addfile(info, io.BytesIO(data))


def bitmap(level: int) -> bytes:
    """A picture whose file has the same size whatever it shows."""
    data = io.BytesIO()
    Image.fromarray(np.full((SIDE, SIDE, 3), level, np.uint8)).save(data, "bmp")
    return data.getvalue()


KINDS = [(put_loose, "a.png"), (put_in_zip, "a.png"), (put_in_zip, "pictures.zip/a.png"), (put_in_tar, "a.png")]


def of_one_picture(folder: Path, name: str, **changes: Any) -> configs.Config:
    (folder / "train.tsv").write_text(f"{name}\tone\ttwo\n")
    places = [folder / "pictures.zip", folder / "pictures.tar"]
    data = {"files": [str(place) for place in places if place.exists() and "/" not in name]}
    return config_of(folder, data=data | {"train": str(folder / "train.tsv")}, **changes)


def shown(config: configs.Config, cache: Path) -> tuple[str, int]:
    """The name of the store of a corpus, and what its first picture shows."""
    codec, config = load_or_learn_codec(config)
    [(store, _)] = prepare.prepare_data(config, codec, cache).corpora
    return store.folder.name, int(store.sources[0][0, 0])


@pytest.mark.parametrize(("put", "name"), KINDS)
def test_a_picture_that_is_replaced_is_read_again_and_one_that_is_moved_is_not(put, name, tmp_path: Path) -> None:
    found = {}
    for place, level in [("here", 10), ("here", 200), ("here", 10), ("there", 10)]:
        (tmp_path / place).mkdir(exist_ok=True)
        put(tmp_path / place, bitmap(level))
        store, seen = shown(of_one_picture(tmp_path / place, name), tmp_path / "cache")
        assert seen == level
        assert found.setdefault(level, store) == store  # known by what it holds, wherever it lies and however old it is
    assert found[10] != found[200]


def test_pictures_that_stay_are_not_read_again(tmp_path: Path) -> None:
    put_loose(tmp_path, bitmap(10))
    os.utime(tmp_path / "a.png", (1e9, 1e9))  # long ago, so that what it holds is remembered
    config = of_one_picture(tmp_path, "a.png")
    first = shown(config, tmp_path / "cache")
    put_loose(tmp_path, bitmap(200))
    os.utime(tmp_path / "a.png", (1e9, 1e9))
    assert shown(config, tmp_path / "cache") == first
    os.utime(tmp_path / "a.png", (2e9, 1e9 + 1))
    assert shown(config, tmp_path / "cache")[1] == 200


def test_a_picture_that_was_missing_is_read_when_it_is_there(tmp_path: Path) -> None:
    put_loose(tmp_path, bitmap(10))
    config = of_one_picture(tmp_path, "a.png")
    (tmp_path / "train.tsv").write_text("a.png\tone\ttwo\nb.png\tone\ttwo\n")
    codec, config = load_or_learn_codec(config)
    lengths = []
    for _ in range(2):
        [(store, _)] = prepare.prepare_data(config, codec, tmp_path / "cache").corpora
        lengths.append(len(store))
        (tmp_path / "b.png").write_bytes(bitmap(10))
    assert lengths == [2, 4]


def test_a_run_does_not_go_on_with_pictures_that_changed(tmp_path: Path) -> None:
    put_loose(tmp_path, bitmap(10))
    asked = {"steps": 2, "save_every": 1, "schedule": "constant"}
    config = of_one_picture(tmp_path, "a.png", training=asked)
    reports = training.run(config, tmp_path / "run")
    next(report for report in reports if report.kind == "saved")
    reports.close()  # type: ignore[attr-defined]
    put_loose(tmp_path, bitmap(200))
    with pytest.raises(RunError, match="files have changed since the run was started"):
        list(training.run(config, tmp_path / "run"))
    list(training.run(config, tmp_path / "run", allow_change=["data"]))


# -- images that cannot be read ----------------------------------------------------------------------------------------


def test_training_skips_and_counts_what_cannot_be_read_and_predicting_says_it(tmp_path: Path) -> None:
    drawings(tmp_path)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG no more")
    lines = ["0.png\tone\tone", "broken.png\ttwo\ttwo", "missing.png\tthree\tthree", "1.png\tfour\tfour"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "valid.tsv").write_text("\n".join(reversed(lines[1:])) + "\n")
    asked = {"steps": 2, "schedule": "constant", "validate_every": 1, "validate_metrics": ["exact"], "replay": 3}
    config = config_of(tmp_path, training=asked, data={"valid": str(tmp_path / "valid.tsv")})
    reports = list(training.run(config, tmp_path / "run"))
    messages = [report.message for report in reports if report.message]
    said = r"4 pairs are used; left out: 4 source cannot be read \(2 files, the first: \S*train\.tsv:2: 'broken\.png'"
    assert any(re.search(said, message) for message in messages)
    assert any("exact" in report.values for report in reports)  # of the one image of the validation set that is whole
    told = [json.loads(line) for line in (tmp_path / "run" / "replay.jsonl").read_text().splitlines()]
    assert told
    assert all([one["source"] for one in frame["sources"]] == ["1.png"] for frame in told)
    model = pipeline.load(tmp_path / "run", "cpu")
    assert model.predict(["2.png"])[0].text is not None
    with pytest.raises(DataError, match=r"broken\.png' is not an image that can be read"):
        model.predict([Example("broken.png", file=str(tmp_path / "test.tsv"), line=1)])
    with pytest.raises(DataError, match=r"there is no file 'missing\.png'"):
        model.predict(["0.png", "missing.png"])
