"""A short prediction by a converted copy of the model: the same results, without importing torch."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.serve.conftest import LETTERS, SMALL, save

from dragoman.core.generation import GenerationOptions
from dragoman.core.types import Example
from dragoman.inference import converted, pipeline

from .conftest import Done

# Prints, last on the standard error, whether the command has imported torch.
SAYS_TORCH = """
import atexit, sys
atexit.register(lambda: print("torch" if "torch" in sys.modules else "no torch", file=sys.stderr))
from dragoman.cli.main import main
main()
"""
Run = Callable[..., Done]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, in a working directory with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return save(tmp_path / "m", SMALL)


def copies(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "dragoman" / "converted").glob("*"))


def uses_copy(here: Run, tmp_path: Path, *args: str) -> bool:
    """Whether `dragoman predict ARGS` of a word, which must end well, is answered by a copy that was there before."""
    before = copies(tmp_path)
    for path in before:
        os.utime(path, (0, 0))
    done = here("predict", *args, input=b"abc\n")
    assert done.code == 0, done.err
    return any(path.stat().st_mtime > 0 for path in before)


def some_texts(count: int) -> list[str]:
    """Blank, of characters never seen, far too long, and ordinary ones."""
    texts = ["", "  ", "z?", "a" * 2000, "déjà"]
    return texts + ["".join(random.choices(LETTERS, k=random.randint(1, 12))) for _ in range(count - len(texts))]


def test_the_second_command_prints_and_says_the_same_without_torch(model: Path, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in some_texts(60))
    (tmp_path / "sources.txt").write_text(text)
    (tmp_path / "words.txt").write_text("abc\nfa\n")

    def run(*args: str, input: str = "") -> Done:
        done = subprocess.run([sys.executable, "-c", SAYS_TORCH, *args], input=input.encode(), capture_output=True)
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    first = run("predict", "m", input=text)
    assert (first.code, len(copies(tmp_path))) == (0, 1), first.err
    assert "have characters that the model has never seen" in first.err
    assert first.err.endswith("\ntorch\n")
    second = run("predict", "m", "sources.txt", "--beam", "5")  # some of these are for the model itself
    assert second.out == first.out
    said, expected = (done.err.replace("sources.txt", "<stdin>").split("\n")[:-2] for done in (second, first))
    assert said == expected
    third = run("predict", "m", "words.txt", "--beam", "1")  # its outputs may be cut
    assert (third.code, third.err) == (0, "no torch\n")


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"beam": 3, "max_new_tokens": 4}], ids=str)
def test_results_are_those_of_the_model(options: dict[str, int], model: Path) -> None:
    loaded = pipeline.load(model, "cpu")
    converted.write_converted(loaded, None)
    asked, sources = GenerationOptions.model_validate(options), [Example(text) for text in some_texts(200)]
    copy = converted.open_converted(model, None, asked)
    assert copy is not None
    expected = loaded.predict(sources, asked, token_log_probs=False)
    for window in (7, 4096):
        for ours, theirs in zip(copy.stream(sources, asked, window), expected, strict=True):
            assert (ours.text, ours.finish_reason, ours.ids) == (theirs.text, theirs.finish_reason, theirs.ids)
            assert ours.source_truncated == theirs.source_truncated
            assert ours.score == pytest.approx(theirs.score, abs=1e-4)
            assert ours.log_prob == pytest.approx(theirs.log_prob, abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        ["--nbest", "2", "--beam", "4"],
        ["--search", "sample"],
        ["--format", "jsonl"],
        ["--prefix", "a"],
        ["--reference"],
    ],
    ids=str,
)
def test_what_needs_the_model_goes_to_the_model(options: list[str], model: Path, here: Run, tmp_path: Path) -> None:
    assert not uses_copy(here, tmp_path, str(model))
    assert uses_copy(here, tmp_path, str(model))
    assert not uses_copy(here, tmp_path, str(model), *options)


@pytest.mark.parametrize("search", [{"early_stopping": False}, {"length_rule": "gnmt"}, {"nbest": 2}], ids=str)
def test_a_model_whose_own_search_is_another_is_asked_itself(
    search: dict[str, object], model: Path, here: Run, tmp_path: Path
) -> None:
    other = str(save(tmp_path / "other", SMALL, **search))
    assert [uses_copy(here, tmp_path, other) for _ in range(2)] == [False, False]
    assert uses_copy(here, tmp_path, other, "--max-new-tokens", "9") is False
    if "nbest" not in search:
        assert uses_copy(here, tmp_path, other, "--beam", "1")


def test_a_damaged_model_is_named_although_there_is_a_copy(model: Path, here: Run) -> None:
    assert here("predict", model, input=b"abc\n").code == 0
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    done = here("predict", model, input=b"abc\n")
    assert (done.code, done.out) == (2, "")
    assert "checksum mismatch" in done.err


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "no JSON", "changed"])
def test_a_damaged_copy_is_not_used(damage: str, model: Path, here: Run, tmp_path: Path) -> None:
    expected = here("predict", model, input=b"abc\n").out
    (folder,) = copies(tmp_path)
    file = folder / ("copy.json" if damage in ("no JSON", "changed") else "model.bin")
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "changed":
        file.write_text(json.dumps(json.loads(data) | {"max_source_length": 1}))
    else:
        changed = {"flip": data[:500] + bytes([data[500] ^ 1]) + data[501:], "cut": data[:-1], "no JSON": b"{"}
        file.write_bytes(changed[damage])
    assert not uses_copy(here, tmp_path, str(model))
    assert here("predict", model, input=b"abc\n").out == expected


def test_another_precision_and_a_changed_model_have_copies_of_their_own(model: Path, here: Run, tmp_path: Path) -> None:
    def answer(*options: str) -> str:
        return here("predict", model, *options, input=b"abcdefgh\n").out

    first = answer()
    assert answer("--precision", "int8")
    assert len(copies(tmp_path)) == 2
    shutil.rmtree(model)
    save(model, SMALL, max_length_ratio=0.0, max_length_extra=1)
    second = answer()
    assert second == answer()
    assert second != first
    assert len(copies(tmp_path)) == 3


def test_the_copies_used_last_are_kept(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted, "MAX_COPIES", 2)
    paths = [save(tmp_path / f"m{i}", SMALL) for i in range(3)]
    for i, path in enumerate(paths):
        converted.write_converted(pipeline.load(path, "cpu"), None)
        os.utime(converted.copy_folder(path, None), (i, i))
    opened = [converted.open_converted(path, None, GenerationOptions()) for path in paths]
    assert [copy is not None for copy in opened] == [False, True, True]


def test_a_cache_that_cannot_be_written_costs_nothing(model: Path, here: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    for _ in range(2):
        done = here("predict", model, input=b"abc\n")
        assert (done.code, done.err) == (0, "")
