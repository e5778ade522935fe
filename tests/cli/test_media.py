"""Media files on the command line: each is one input, wherever it lies; lists of names work as they do for texts."""

from __future__ import annotations

import io
import itertools
import json
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from dragoman import config as configs
from dragoman import training
from dragoman.core.errors import DataError, UserError
from dragoman.core.types import Example
from dragoman.inference import pipeline

from .conftest import Done

COUNT = 4
IMAGE = {"name": "image", "pixels": 16, "channels": 4, "stages": [1], "augment": False}
FRONTENDS: dict[str, dict[str, Any]] = {
    "image": IMAGE,
    "audio": {"name": "audio", "rate": 8000, "bins": 16, "channels": 4},
    "frames": {"name": "features", "numbers": 5, "channels": 4},
    "clips": {"name": "video", "frames": 3, "pixels": 16, "channels": 4, "stages": [1], "augment": False},
}
FORMS = {"image": "{}.png", "audio": "{}.wav", "frames": "{}.npy", "clips": "{}.zip"}
QUESTION = "b a"
TSV = ("--format", "tsv")


def source(kind: str, number: int) -> bytes:
    """A file of a kind, none like another."""
    rng, file = np.random.default_rng(number), io.BytesIO()
    if kind == "image":
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(file, "png")
    elif kind == "audio":
        soundfile.write(file, rng.normal(0, 0.1, 3000 + 400 * number), 8000, format="WAV")
    elif kind == "frames":
        np.save(file, rng.normal(size=(20 + number, 5)))
    else:
        with zipfile.ZipFile(file, "w") as archive:
            for i in range(3):
                archive.writestr(f"{i}.png", source("image", 10 * number + i))
    return file.getvalue()


def model(folder: Path, kind: str, **parts: Any) -> Path:
    """A model that has learned next to nothing, of files that lie in folder/KIND: its scores still tell them apart."""
    medium = next((name for name in FRONTENDS if name in kind), "image")
    (folder / kind).mkdir()
    names = [FORMS[medium].format(i) for i in range(COUNT)]
    for i, name in enumerate(names):
        (folder / kind / name).write_bytes(source(medium, i))
    columns, lines = ["source", "target"], [f"{name}\t{'abcd'[i]}\n" for i, name in enumerate(names)]
    if "second_source" in parts:
        columns, question = ["source", "second_source", "target"], "a b"
        first = [(question, name) if kind.startswith("asked") else (name, question) for name in names]
        lines = [f"{one}\t{two}\t{'abcd'[i]}\n" for i, (one, two) in enumerate(first)]
    (folder / f"{kind}.tsv").write_text("".join(lines))
    value = {
        "data": {"train": str(folder / f"{kind}.tsv"), "columns": columns, "files": [str(folder / kind)]},
        "tokenizer": {"source": "characters"},
        "model": {
            "width": 16,
            "tie": "none",
            "encoder": {"name": "identity", "dropout": 0.0},
            "decoder": {"name": "rnn", "cell": "gru", "order": "before", "dropout": 0.0},
            **parts,
        },
        "training": {"steps": 4, "optimizer": {"name": "adam", "rate": 0.03}, "schedule": "constant"},
        "generation": {"max_length_ratio": 0.0, "max_length_extra": 6},
        "runtime": {"device": "cpu", "threads": 1},
    }
    for _ in training.run(configs.validate(value, kind), folder / f"run-{kind}"):
        pass
    return folder / f"run-{kind}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a model of some kind."""
    folder, runs = tmp_path_factory.mktemp("media"), dict[str, Path]()
    second = {"encoder": {"name": "identity", "dropout": 0.0}}

    def run(kind: str) -> Path:
        if kind not in runs:
            parts: dict[str, Any] = {"frontend": FRONTENDS.get(kind, IMAGE)}
            if kind == "asked":  # a question, then an image
                parts = {"second_source": second | {"frontend": IMAGE}}
            if kind == "shown":  # an image, then a question
                parts |= {"second_source": second}
            runs[kind] = model(folder, kind, **parts)
        return runs[kind]

    return run


Result = tuple[str, Any]  # a text and its score


def expected(run: Path, sources: list[Any]) -> list[Result]:
    found = pipeline.load(run, "cpu").predict(sources)
    return [(p.text, pytest.approx(p.score, abs=2e-5)) for p in found]


def said(done: Done) -> list[Result]:
    """What `--format tsv` printed, and nothing beside it."""
    assert (done.code, done.err) == (0, "")
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[:2] for row in rows] == [[str(i), "1"] for i in range(1, len(rows) + 1)]
    return [(text, float(score)) for _, _, score, text in rows]


@pytest.mark.parametrize("kind", FRONTENDS)
def test_a_media_file_is_one_input_and_several_are_several(
    here: Callable[..., Done], made: Callable[[str], Path], kind: str
) -> None:
    run = made(kind)
    files = [run.parent / kind / FORMS[kind].format(i) for i in range(COUNT)]
    wanted = expected(run, [str(file) for file in files])
    assert all(a != b for a, b in itertools.combinations(wanted, 2))  # or nothing could tell one file from another
    assert said(here("predict", run, files[2], *TSV)) == [wanted[2]]
    assert said(here("predict", run, *files, *TSV)) == wanted
    assert said(here("predict", run, files[1].name, *TSV)) == [wanted[1]]  # found where the training's files were


def test_a_folder_of_frames_is_one_input(
    here: Callable[..., Done], made: Callable[[str], Path], tmp_path: Path
) -> None:
    run = made("clips")
    with zipfile.ZipFile(run.parent / "clips" / "1.zip") as archive:
        archive.extractall(tmp_path / "clip")
    done = here("predict", run, tmp_path / "clip", *TSV)
    assert said(done) == expected(run, [str(run.parent / "clips" / "1.zip")])


def test_a_list_of_names_is_read_line_by_line_from_a_file_and_from_a_pipe(
    here: Callable[..., Done], made: Callable[[str], Path], tmp_path: Path
) -> None:
    run = made("image")
    lines = b"2.png\n\n0.png\n"
    wanted = expected(run, ["2.png", "", "0.png"])
    (tmp_path / "names.txt").write_bytes(lines)
    (tmp_path / "names.jsonl").write_text('{"source": "2.png"}\n{"source": ""}\n{"source": "0.png"}\n')
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(lines), daemon=True)
    writer.start()
    for name in ("names.txt", "names.jsonl", "pipe"):
        assert said(here("predict", run, tmp_path / name, *TSV)) == wanted
    writer.join()
    assert said(here("predict", run, "-", *TSV, input=lines)) == wanted


@pytest.mark.parametrize("kind", ["image", "asked", "shown"])
def test_a_list_may_have_the_columns_that_were_trained_on(
    here: Callable[..., Done], made: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    run = made(kind)
    lines = [line.split("\t") for line in (run.parent / f"{kind}.tsv").read_text().splitlines()]
    (tmp_path / "trained.tsv").write_text("".join("\t".join([*line, "a further answer"]) + "\n" for line in lines))
    (tmp_path / "sources.tsv").write_text("".join("\t".join(line[:-1]) + "\n" for line in lines))
    trained, sources = (here("predict", run, tmp_path / f"{name}.tsv", *TSV) for name in ("trained", "sources"))
    assert (trained.code, trained.out) == (0, sources.out)
    assert trained.err == ""
    assert len(said(sources)) == COUNT


@pytest.mark.parametrize("kind", ["asked", "shown"])
def test_a_media_file_with_a_second_source_is_one_input_of_both(
    here: Callable[..., Done], made: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    run = made(kind)
    files = [str(run.parent / kind / f"{i}.png") for i in range(2)]
    both = [
        Example(QUESTION, second_source=file) if kind == "asked" else Example(file, second_source=QUESTION)
        for file in files
    ]
    wanted = expected(run, both)
    assert said(here("predict", run, *files, "--second-source", QUESTION, *TSV)) == wanted
    (tmp_path / "both.txt").write_text("".join(f"{example.source}\t{example.second_source}\n" for example in both))
    assert said(here("predict", run, tmp_path / "both.txt", *TSV)) == wanted  # a tab is no matter for a warning here


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        ("image", ["lost.png"], "there is no file 'lost.png' (searched in '.'"),
        ("image", ["broken.png"], "'broken.png' is not an image that can be read"),
        ("image", ["empty"], "'empty' is a folder, not a file; name the files in it, on the command line as empty/*"),
        ("audio", ["empty/"], "'empty/' is a folder, not a file; name the files in it, on the command line as empty/*"),
        ("image", ["names.lst"], "names.lst: a list of files must end with .txt, .tsv, .csv, .xlsx or .jsonl"),
        ("image", ["names.txt", "0.png"], "some files are media files and some are lists"),
        ("image", ["0.png", "--second-source", "x"], "the model has one source; leave out --second-source"),
        ("image", ["names.txt", "--second-source", "x"], "--second-source needs a media file"),
        ("image", ["0.png", "--files", "nowhere"], "nowhere: there is no such folder or archive"),
        ("image", ["0.png", "--files", "names.txt"], "names.txt: neither a folder nor an archive"),
        ("asked", ["0.png"], "give the other one with --second-source"),
        ("asked", ["0.png", "--second-source", " "], "give the other one with --second-source"),
        ("audio", ["broken.png"], "'broken.png' is not audio that can be read"),
        ("clips", ["empty"], "'empty' has no frames in it"),
    ],
)
def test_what_cannot_be_an_input_is_one_sentence_and_ends_with_2(
    here: Callable[..., Done], made: Callable[[str], Path], work: Path, kind: str, arguments: list[str], says: str
) -> None:
    (work / "broken.png").write_bytes(b"\x89PNG no more")
    for list_of_names in ("names.txt", "names.lst"):
        (work / list_of_names).write_text("0.png\n")
    (work / "empty").mkdir(exist_ok=True)
    done = here("predict", made(kind), *arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_a_model_of_texts_takes_one_file_and_no_places(here: Callable[..., Done], work: Path) -> None:
    done = here("predict", "runs/copy", "test.tsv", "train.tsv")
    assert (done.code, done.out) == (2, "")
    assert "there are 2 files" in done.err
    for command in ("predict", "score", "evaluate"):
        done = here(command, "runs/copy", "test.tsv", "--files", ".")
        assert (done.code, done.out) == (2, "")
        assert "leave --files out" in done.err


def test_files_are_looked_for_in_places_given_and_there_first(
    here: Callable[..., Done], made: Callable[[str], Path], tmp_path: Path
) -> None:
    run = made("image")
    (tmp_path / "more").mkdir()
    for name, number in {"0.png": 3, "new.png": 1}.items():  # one is another file than the training's of its name
        (tmp_path / "more" / name).write_bytes(source("image", number))
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("zipped.png", source("image", 2))
    places = ["--files", tmp_path / "more", "--files", tmp_path / "more.zip"]
    wanted = expected(run, ["3.png", "1.png", "2.png", "3.png"])
    assert said(here("predict", run, "0.png", "new.png", "zipped.png", "3.png", *places, *TSV)) == wanted
    (tmp_path / "pairs.tsv").write_text("0.png\ta\nnew.png\tb\nzipped.png\tc\n")
    truth = pipeline.load(run, "cpu").score([("3.png", "a"), ("1.png", "b"), ("2.png", "c")])
    scored = here("score", run, tmp_path / "pairs.tsv", *places)
    assert [float(line) for line in scored.out.splitlines()] == pytest.approx(truth, abs=1e-5)
    evaluated = here("evaluate", run, tmp_path / "pairs.tsv", "--metrics", "exact", *places)
    assert evaluated.code == 0, evaluated.err
    compared = here("compare", run, f"{run}/", "--data", tmp_path / "pairs.tsv", "--metrics", "exact", *places)
    assert compared.code == 0, compared.err  # with its training data at hand, too
    assert "may be chance" in compared.out
    assert here("score", run, tmp_path / "pairs.tsv").code == 2


@pytest.mark.parametrize(
    ("kind", "unit"), [("image", ""), ("audio", "steps of 40 ms"), ("clips", "frames"), ("asked", "tokens")]
)
def test_quality_by_length_is_in_the_unit_of_what_is_read_and_left_out_with_a_word_of_images(
    here: Callable[..., Done], made: Callable[[str], Path], tmp_path: Path, kind: str, unit: str
) -> None:
    run = made(kind)
    (tmp_path / "runs").mkdir()
    os.symlink(run, tmp_path / "runs" / "again")
    asked = ("compare", run, tmp_path / "runs" / "again", "--data", run.parent / f"{kind}.tsv", "--metrics", "exact")
    done = here(*asked)
    assert done.code == 0, done.err
    assert (f"exact by source length in {unit}" in done.out) == bool(unit)
    assert ("by the rarest source token" in done.out) == (unit == "tokens")
    assert ("left out: the sources are" in done.out) == (unit != "tokens")
    found = json.loads(here(*asked, "--json").out)[str(run)]
    assert found["length_unit"] == (unit or None)
    assert bool(found["by_length"]["exact"]) == bool(unit)
    drawn = here(*asked, "--png", tmp_path / "a.png")
    assert (drawn.code, (tmp_path / "a.png").exists()) == ((0, True) if unit else (2, False))
    if not unit:
        assert (drawn.out, drawn.err.count("\n")) == ("", 1)
        assert "a.png: there is no quality by length, because images all have one size" in drawn.err


def test_a_pipeline_looks_in_more_places_and_the_first_one_is_unchanged(
    made: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "other.png").write_bytes(source("image", 2))
    one = pipeline.load(made("asked"), "cpu")
    two = one.with_media_roots([str(tmp_path)])
    assert two.predict([f"{QUESTION}\tother.png"])[0] == one.predict([f"{QUESTION}\t2.png"])[0]
    assert one.with_media_roots([]) is one
    with pytest.raises(DataError, match=r"no file 'other\.png'"):
        one.predict([f"{QUESTION}\tother.png"])
    with pytest.raises(UserError, match="no such folder"):
        one.with_media_roots([str(tmp_path / "nowhere")])


def test_training_begins_only_with_places_that_are_there(made: Callable[[str], Path], tmp_path: Path) -> None:
    value = configs.load(made("image") / "config.yaml").config.model_dump()
    value["data"]["files"] = [*value["data"]["files"], str(tmp_path / "nowhere.zip")]
    with pytest.raises(DataError, match=r"nowhere\.zip: there is no such folder or archive"):
        list(training.run(configs.validate(value, "places"), tmp_path / "run"))


def test_a_run_keeps_to_mirroring_or_not_as_it_began(here: Callable[..., Done], made: Callable[[str], Path]) -> None:
    """Its config states what was the default then, so another default later is a difference that is told."""
    run = made("image")
    assert "flip: false" in (run / "config.yaml").read_text()
    done = here("train", run / "config.yaml", "--run", run, "--set", "model.frontend.flip=true")
    assert done.code == 2
    assert "model.frontend.flip: was False, is now True" in done.err


@pytest.mark.parametrize("held", [1, 2, 100])  # files at once
def test_what_was_answered_before_a_file_that_is_missing_is_not_lost(
    made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(pipeline, "MEDIA_WINDOW", held)
    loaded = pipeline.load(made("image"), "cpu")
    wanted = loaded.predict(["2.png", "0.png", "1.png"])
    answers = loaded.stream(["2.png", "0.png", "1.png", "nowhere.png", "0.png"])
    assert [next(answers).text for _ in wanted] == [one.text for one in wanted]
    with pytest.raises(DataError, match=r"no file 'nowhere\.png'"):
        next(answers)


def test_what_cannot_be_read_is_left_out_if_one_asks_for_it(
    here: Callable[..., Done], made: Callable[[str], Path], tmp_path: Path
) -> None:
    run = made("image")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    files = [run.parent / "image" / "1.png", tmp_path / "broken.png", run.parent / "image" / "0.png"]
    assert here("predict", run, *files).code == 2
    done = here("predict", run, *files, "--on-error", "skip")
    first, last = (text for text, _ in expected(run, [str(files[0]), str(files[2])]))
    assert (done.code, done.out.splitlines()) == (0, [first, "", last])
    assert "1 of the sources cannot be read" in done.err
    assert "broken.png" in done.err

    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"1.png\ta\n{files[1]}\tb\n0.png\tc\n")
    good = tmp_path / "good.tsv"
    good.write_text("1.png\ta\n0.png\tc\n")
    for command in (["score"], ["evaluate", "--metrics", "exact"]):
        name, *options = command
        assert here(name, run, pairs, *options).code == 2
        some, wanted = here(name, run, pairs, *options, "--on-error", "skip"), here(name, run, good, *options)
        assert some.code == wanted.code == 0
        assert some.out.splitlines()[0] == wanted.out.splitlines()[0]


@pytest.mark.parametrize("kind", ["image", "asked"])
def test_data_check_reads_the_files_that_a_models_sources_name(
    here: Callable[..., Done], made: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    run = made(kind)
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "new.png").write_bytes(source("image", 7))
    before, names = ("", "source,target") if kind == "image" else ("a b\t", "source,second_source,target")
    (tmp_path / "pairs.tsv").write_text(f"{before}0.png\ta\n{before}new.png\tb\n")
    asked = ("data", "check", tmp_path / "pairs.tsv", "--columns", names)
    alone = here(*asked, "--model", run)
    assert (alone.code, alone.err) == (0, "")
    assert "1 pair (50.0%) with a file that cannot be read" in alone.out
    assert "no file 'new.png'" in alone.out
    found = here(*asked, "--model", run, "--files", tmp_path / "album")
    assert (found.code, "cannot be read" in found.out) == (0, False)
    nowhere = here(*asked, "--files", tmp_path / "album")
    assert (nowhere.code, "--model" in nowhere.err) == (2, True)


@pytest.mark.parametrize("kind", [*FRONTENDS, "asked", "shown"])
def test_bytes_say_what_their_file_says(made: Callable[[str], Path], kind: str) -> None:
    loaded, medium = pipeline.load(made(kind), "cpu"), kind if kind in FRONTENDS else "image"
    name, data = FORMS[medium].format(1), source(medium, 1)
    pairs = {
        "asked": (Example(QUESTION, second_source=name), Example(QUESTION, second_source_content=data)),
        "shown": (Example(name, second_source=QUESTION), Example("", second_source=QUESTION, content=data)),
    }
    named, given = pairs.get(kind, (Example(name), Example("", content=data)))
    assert loaded.predict([given])[0] == loaded.predict([named])[0]


def test_training_ends_with_a_command_that_can_be_typed(
    here: Callable[..., Done], made: Callable[[str], Path], work: Path
) -> None:
    for run, ends in ((made("image"), "FILE"), (made("asked"), "FILE"), (work / "runs" / "copy", "copy")):
        done = here("train", run / "config.yaml", "--run", run)  # which has ended already
        assert done.code == 0, done.err
        assert "already finished" in done.err
        assert done.err.split()[-1].endswith(ends)
        assert ("echo" in done.err) == (ends == "copy")  # a source of the validation set
