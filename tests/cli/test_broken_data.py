"""Data that cannot be trained on stops before training, with its file and line (FAULTS 9, 12)."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman import config as configs
from dragoman import training
from dragoman.core.errors import UserError

from .conftest import CONFIG, Done, process

GOOD = b"a b\ta b\nb a\tb a\nc\tc\n"
JSON = b'{"source": "a", "target": "b"}\n'
ZIPPED = gzip.compress(GOOD * 300, mtime=0)

# What it is, its files, the spec, and what the message must hold.
BROKEN: list[tuple[str, dict[str, bytes], str, list[str]]] = [
    ("no file", {"trian.tsv": GOOD}, "train.tsv", ["train.tsv", "no such file", "'trian.tsv'"]),
    ("a folder", {"train.tsv/inside": GOOD}, "train.tsv", ["train.tsv", "folder"]),
    ("an empty file", {"train.tsv": b""}, "train.tsv", ["train.tsv"]),
    ("a byte order mark alone", {"train.tsv": b"\xef\xbb\xbf"}, "train.tsv", ["train.tsv"]),
    ("blank lines alone", {"train.tsv": b"\t\n \t \n\t\n"}, "train.tsv", ["train.tsv"]),
    ("Latin-1", {"train.tsv": GOOD + b"caf\xe9\tx\n"}, "train.tsv", ["train.tsv:4", "0xE9", "offset 3"]),
    ("NUL", {"train.tsv": GOOD + GOOD + b"a\0b\tx\n"}, "train.tsv", ["train.tsv:7", "NUL"]),
    ("a lone surrogate", {"train.tsv": b"\xed\xa0\x80\tx\n" + GOOD}, "train.tsv", ["train.tsv:1", "U+D800"]),
    ("UTF-16", {"train.tsv": "a\tb\n".encode("utf-16")}, "train.tsv", ["train.tsv:1", "UTF-16"]),
    ("UTF-32", {"train.tsv": "a\tb\n".encode("utf-32")}, "train.tsv", ["train.tsv:1", "UTF-32"]),
    ("a zip archive", {"train.tsv": b"PK\x03\x04" + b"\0" * 40}, "train.tsv", ["train.tsv:1", "zip"]),
    ("xz", {"train.tsv": b"\xfd7zXZ\0" + b"\0" * 40}, "train.tsv", ["train.tsv:1", "xz"]),
    ("no gzip", {"train.tsv.gz": GOOD}, "train.tsv.gz", ["train.tsv.gz", "gzip"]),
    ("half a gzip", {"train.tsv.gz": ZIPPED[:-20]}, "train.tsv.gz", ["train.tsv.gz:", "truncated"]),
    (
        "a damaged gzip",
        {"train.tsv.gz": ZIPPED[:-8] + bytes([ZIPPED[-8] ^ 1]) + ZIPPED[-7:]},
        "train.tsv.gz",
        ["train.tsv.gz:", "damaged"],
    ),
    ("no tab", {"train.tsv": GOOD + b"a b a b\n"}, "train.tsv", ["train.tsv:4", "no tab"]),
    ("a tab too many", {"train.tsv": b"a\tb\tc\n" + GOOD}, "train.tsv", ["train.tsv:1", "2 tabs", "columns"]),
    ("no JSON", {"train.jsonl": JSON + b'{"source": \n'}, "train.jsonl", ["train.jsonl:2"]),
    (
        "a misspelt key",
        {"train.jsonl": JSON + b'{"source": "a", "taget": "b"}\n'},
        "train.jsonl",
        ["train.jsonl:2", "'target'", "'taget'"],
    ),
    ("a number", {"train.jsonl": JSON + b'{"source": 3, "target": "b"}\n'}, "train.jsonl", ["train.jsonl:2", "number"]),
    ("a JSON list", {"train.jsonl": JSON + b'["a", "b"]\n'}, "train.jsonl", ["train.jsonl:2", "a list"]),
    (
        "NUL in JSON",
        {"train.jsonl": JSON + b'{"source": "a\\u0000", "target": "b"}\n'},
        "train.jsonl",
        ["train.jsonl:2", "NUL"],
    ),
    (
        "sides of different length",
        {"a.txt": b"a a a\n" * 30, "b.txt": b"b b b\n" * 28},
        "a.txt,b.txt",
        ["a.txt has 30 lines", "b.txt has 28 lines"],
    ),
    ("one side alone", {"a.txt": b"a\n"}, "a.txt,b.txt", ["b.txt", "no such file"]),
    ("three sides", {"a.txt": b"a\n", "b.txt": b"b\n"}, "a.txt,b.txt,a.txt", ["3 paths", "two"]),
    ("every pair too long", {"train.tsv": b"a a a a a a a a\tb\n" * 3}, "train.tsv", []),
]


@pytest.mark.parametrize(("about", "files", "spec", "words"), BROKEN, ids=[broken[0] for broken in BROKEN])
@pytest.mark.parametrize("as_valid", [False, True], ids=["train", "valid"])
def test_training_does_not_begin_on_broken_data(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    about: str,
    files: dict[str, bytes],
    spec: str,
    words: list[str],
    as_valid: bool,
) -> None:
    if as_valid and about == "a tab too many":
        pytest.skip("further columns of a validation set are further references")
    monkeypatch.chdir(tmp_path)
    for name, data in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(data)
    Path("good.tsv").write_bytes(GOOD)
    Path("copy.yaml").write_text(CONFIG)
    train, valid = ("good.tsv", spec) if as_valid else (spec, "good.tsv")
    loaded = configs.load("copy.yaml", None, [f"data.train={train}", f"data.valid={valid}", "data.max_source=10"])
    with pytest.raises(UserError) as caught:
        list(training.run(loaded.config, Path("run")))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not Path("run", "checkpoints").exists() or not any(Path("run", "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("data", "words"), [(b"a b\nb a\n", ["no tab"]), (b"\xff\tx\n\xff\ty\n", ["0xFF"]), (b"a\0\tb\n", ["NUL"])]
)
def test_a_file_of_which_no_line_can_be_read_names_the_first(tmp_path: Path, data: bytes, words: list[str]) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(data)
    (tmp_path / "copy.yaml").write_text(CONFIG)
    loaded = configs.load(tmp_path / "copy.yaml", None, [f"data.train={path}", "data.valid=null"])
    with pytest.raises(UserError) as caught:
        list(training.run(loaded.config, tmp_path / "run"))
    assert all(word in str(caught.value) for word in [f"{path}:1", *words]), str(caught.value)


def test_the_command_line_names_file_and_line_and_shows_no_traceback(
    work: Path, tmp_path: Path, here: Callable[..., Done]
) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_bytes(GOOD + b"caf\xe9\tx\n")
    args = ["train", "copy.yaml", "--run", str(tmp_path / "run"), "--set", f"data.train={bad}"]
    done = process(*args, cwd=work)
    assert (done.code, done.out) == (2, "")
    assert f"{bad}:4: " in done.err
    assert "Traceback" not in done.err
    (tmp_path / "a.txt").write_bytes(b"a a a\n" * 30)
    (tmp_path / "b.txt").write_bytes(b"b b b\n" * 28)
    args[-1] = f"data.train={tmp_path / 'a.txt'},{tmp_path / 'b.txt'}"
    done = here(*args)
    assert done.code == 2
    assert "30 lines" in done.err
    assert "28 lines" in done.err


def test_lines_that_cannot_be_read_are_left_out_where_skipping_is_asked_for(
    tmp_path: Path, here: Callable[..., Done]
) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_bytes(GOOD * 20 + b"caf\xe9\tx\nno tab\na\0\tb\n" + GOOD)
    sets = [f"data.train={bad}", "data.on_error=skip", "training.steps=20"]
    done = here("train", "copy.yaml", "--run", tmp_path / "run", *(word for text in sets for word in ("--set", text)))
    assert done.code == 0, done.err
    assert "not valid UTF-8" in done.err
    assert "NUL" in done.err
    assert "columns" in done.err
