"""A corpus is encoded once, and again exactly when something it depends on has changed or was damaged."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman import config as configs
from dragoman.core.errors import DataError, RunError
from dragoman.core.types import Example
from dragoman.data.store import store
from dragoman.data.store.builder import build_store
from dragoman.data.store.cache import _load_hashes, hash_files, open_or_build
from dragoman.training import prepare as preparation
from dragoman.training.tokenizer_learning import load_or_learn_codec

from ..conftest import LIMITS, Letters, leftovers, pairs


def write(file: Path, text: str, age: float = 100) -> Path:
    """A file that was last changed some seconds ago."""
    file.write_text(text)
    then = file.stat().st_mtime - age
    os.utime(file, (then, then))
    return file


class Corpus:
    """Counts how often it is read."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples, self.read = examples, 0

    def __call__(self) -> Sequence[Example]:
        self.read += 1
        return self.examples


def test_a_corpus_is_encoded_once(tmp_path):
    data, corpus = write(tmp_path / "a.tsv", "one"), Corpus(pairs())
    for _ in range(3):
        built = open_or_build([data], corpus, Letters(), tmp_path / "cache", **LIMITS, keep_text=False)
        assert len(built) == 3
    assert corpus.read == 1


def test_a_corpus_is_encoded_again_when_anything_it_depends_on_changes(tmp_path):
    corpus, cache = Corpus(pairs()), tmp_path / "cache"
    one, same, other = (write(tmp_path / name, text) for name, text in [("1", "one"), ("2", "one"), ("3", "two")])
    plain = {"max_source": 50, "max_target": 50, "keep_text": False}
    first = open_or_build([one], corpus, Letters(), cache, **plain).folder
    assert open_or_build([same], corpus, Letters(), cache, **plain).folder == first  # the name is not the content
    changed = [
        open_or_build([other], corpus, Letters(), cache, **plain),
        open_or_build([one, other], corpus, Letters(), cache, **plain),
        open_or_build([other, one], corpus, Letters(), cache, **plain),
        open_or_build([one], corpus, Letters(500), cache, **plain),
        open_or_build([one], corpus, Letters(), cache, **plain | {"max_source": 51}),
        open_or_build([one], corpus, Letters(), cache, **plain | {"max_target": 51}),
        open_or_build([one], corpus, Letters(), cache, **plain | {"keep_text": True}),
        open_or_build([one], corpus, Letters(), cache, **plain, read_key="columns 2, 1"),
    ]
    assert len({first, *(built.folder for built in changed)}) == 1 + len(changed)
    assert corpus.read == 1 + len(changed)


def test_a_cache_shared_by_objectives_of_other_options_leaves_out_what_a_fresh_one_does(tmp_path):
    """How long the rows of a text become, and so whether it can be used, depends on the options."""
    write(tmp_path / "texts.txt", "ab" * 30 + "\n" + "ab\n")

    def kept(cache: str, **options: float) -> int:
        value = {
            "data": {"train": str(tmp_path / "texts.txt"), "max_source": 100, "max_target": 61},
            "tokenizer": {"source": "characters", "joint": True},
            "training": {"objective": {"name": "span_corruption", **options}},
        }
        codec, config = load_or_learn_codec(configs.validate(value, "test"))
        prepared = preparation.prepare_data(config, codec, tmp_path / cache)
        return len(prepared.corpora[0][0])

    assert kept("fresh", share=0.5, span=1.0) == 1  # 30 of 60 letters, 30 sentinels before them and one behind, </s>
    assert kept("shared") == 2
    assert kept("shared", share=0.5, span=1.0) == 1
    assert kept("shared", span=1.0, share=0.5) == 1
    assert len(list((tmp_path / "shared").glob("*/store.json"))) == 2


def test_a_large_file_is_hashed_once(tmp_path):
    file, cache = write(tmp_path / "a", "one"), tmp_path / "cache"
    before = hash_files([file], cache)
    stamp = file.stat()
    hash_files([write(tmp_path / "b", "another, which does not displace the first")], cache)
    file.write_text("two")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert hash_files([file], cache) == before  # same size and time: it was not read again
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert hash_files([file], cache) != before


def test_a_file_that_may_still_be_changing_is_hashed_again(tmp_path):
    file, cache = write(tmp_path / "a", "one", age=0), tmp_path / "cache"
    before, stamp = hash_files([file], cache), file.stat()
    file.write_text("two")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert hash_files([file], cache) != before


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"x": 3}', '{"x": [1, "?", "d"]}'])
def test_damaged_hashes_are_as_good_as_none(tmp_path, content):
    file, cache = write(tmp_path / "a", "one"), tmp_path / "cache"
    before = hash_files([file], cache)
    (cache / "hashes.json").write_text(content)
    assert hash_files([file], cache) == before
    assert not leftovers(cache)


def test_hashes_that_are_no_plain_file_or_absurdly_large_are_not_read(tmp_path):
    file, cache = write(tmp_path / "a", "one"), tmp_path / "cache"
    before = hash_files([file], cache)
    (cache / "hashes.json").unlink()
    os.mkfifo(cache / "hashes.json")  # a reader would wait for a writer
    assert _load_hashes(cache / "hashes.json") == {}
    (cache / "hashes.json").unlink()
    with (cache / "hashes.json").open("wb") as hashes:
        hashes.truncate(1 << 28)
    tracemalloc.start()
    assert hash_files([file], cache) == before
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert (cache / "hashes.json").stat().st_size < 1000  # they are counted anew


FILES = ["source.ids", "source.offsets", "target.ids", "target.offsets", "lines", "examples.jsonl", "examples.offsets"]


@pytest.mark.parametrize("name", [*FILES, "store.json"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "longer"])
def test_a_damaged_store_is_noticed_and_built_again(tmp_path, name, damage):
    data = tmp_path / "pairs.tsv"
    data.write_text("some pairs")

    def prepared() -> store.TokenStore:
        return open_or_build([data], pairs, Letters(), tmp_path / "cache", **LIMITS, keep_text=True)

    file = prepared().folder / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] if damage == "truncated" else file.read_bytes() + b"?")
    with pytest.raises(DataError, match="Delete the folder"):
        store.open_store(file.parent)
    again = prepared()
    assert [again.sources[i].tolist() for i in range(3)] == [Letters().encode_source(example) for example in pairs()]
    assert not leftovers(tmp_path / "cache")


# -- what the user is told ---------------------------------------------------------------------------------------------


def test_a_corpus_with_nothing_usable_is_an_error_that_says_why(tmp_path):
    data = write(tmp_path / "a.tsv", "x")
    examples = [Example("", "b"), Example("", "b"), Example("a" * 100, "b")]
    with pytest.raises(
        DataError, match=r"a\.tsv: .*all 3 were left out: 2 blank source, 1 source too long \(at most 100"
    ):
        open_or_build([data], lambda: examples, Letters(), tmp_path / "cache", **LIMITS, keep_text=False)


def test_an_empty_corpus_is_an_error(tmp_path):
    data = write(tmp_path / "a.tsv", "")
    for _ in range(2):
        with pytest.raises(DataError, match=r"a\.tsv: there is no pair in it"):
            open_or_build([data], list, Letters(), tmp_path / "cache", **LIMITS, keep_text=True)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.tsv: the file cannot be read \(No such file"):
        hash_files([tmp_path / "gone.tsv"], tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    write(tmp_path / "cache", "a file where a folder should be")
    data = write(tmp_path / "a.tsv", "x")
    with pytest.raises(RunError, match=r"cache: cannot be written: .*; choose another folder"):
        open_or_build([data], pairs, Letters(), tmp_path / "cache", **LIMITS, keep_text=False)
    with pytest.raises(DataError, match="could not be built"):
        build_store(pairs(), Letters(), tmp_path / "cache" / "store", **LIMITS, keep_text=False)
