"""A store gives back what was encoded, is never half there, and is built again exactly when something changed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import DataError
from dragoman.core.interfaces import EOS, Example
from dragoman.data import store
from dragoman.data.objectives import Labels, LanguageModel

LIMITS = {"max_source": 100, "max_target": 100}


class Letters:
    """A codec to see through: a letter's id is its code point, moved; </s> ends both sides."""

    samples = False
    medium = second = None

    def __init__(self, size: int = 1000, shift: int = 0) -> None:
        self.source = self.target = range(size)
        self.shift = shift
        self.fingerprint = f"letters {size} {shift}"

    def encode_source(self, example: Example) -> list[int]:
        return self.encode_target(example.source)

    def encode_target(self, text: str, source: str = "") -> list[int]:
        return [*(ord(letter) + self.shift for letter in text), EOS]


def pairs(count: int = 3) -> list[Example]:
    return [Example("ab" * (i + 1), "xyz" * (i + 1), line=i + 1) for i in range(count)]


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob(".tmp-*"))


# -- what goes in comes out --------------------------------------------------------------------------------------------

texts = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=12)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=20))
def test_a_store_gives_back_every_pair_with_its_ids_lengths_and_texts(tmp_path_factory, rows):
    codec = Letters()
    examples = [Example(s, t, "de", None, line=7 * i) for i, (s, t) in enumerate(rows)]
    built = store.build(examples, codec, tmp_path_factory.mktemp("cache") / "store", **LIMITS, keep_text=True)
    assert len(built) == len(rows)
    for i, example in enumerate(examples):
        assert built.source(i).tolist() == codec.encode_source(example)
        assert built.target(i).tolist() == codec.encode_target(example.target)
        assert built.example(i) == example
    assert built.source_lengths.tolist() == [len(s) + 1 for s, _ in rows]
    assert built.target_lengths.tolist() == [len(t) + 1 for _, t in rows]
    assert built.lines.tolist() == [7 * i for i in range(len(rows))]
    some = np.array([len(rows) - 1, 0])
    assert [lengths.tolist() for lengths in built.lengths(some)] == [
        [len(rows[-1][0]) + 1, len(rows[0][0]) + 1],
        [len(rows[-1][1]) + 1, len(rows[0][1]) + 1],
    ]
    again = np.array([len(rows) - 1, 0, len(rows) - 1])
    for gather, side in ((built.sources, 0), (built.targets, 1)):
        ids, lengths = gather(again)
        assert ids.tolist() == [id for i in again for id in codec.encode_target(rows[i][side])]
        assert lengths.tolist() == [len(rows[i][side]) + 1 for i in again]
        assert [x.tolist() for x in gather(again[:0])] == [[], []]


def test_texts_keep_every_character_and_both_languages(tmp_path):
    example = Example("grün\t“x”", "ß\u2028\n日本", "de", "ja", line=3)
    built = store.build([example], Letters(1 << 20), tmp_path / "store", **LIMITS, keep_text=True)
    assert built.example(0) == example


def test_without_texts_an_example_cannot_be_asked_for(tmp_path):
    built = store.build(pairs(), Letters(), tmp_path / "store", **LIMITS, keep_text=False)
    with pytest.raises(ValueError, match="without texts"):
        built.example(0)


@pytest.mark.parametrize(("vocabulary", "width"), [(1000, 2), (1 << 16, 2), ((1 << 16) + 1, 4)])
def test_ids_take_two_bytes_where_the_vocabulary_fits_and_four_where_not(tmp_path, vocabulary, width):
    codec = Letters(vocabulary, shift=vocabulary - 123)  # the id of "z" is the last
    built = store.build([Example("az", "z", line=1)], codec, tmp_path / "store", **LIMITS, keep_text=False)
    assert (tmp_path / "store" / "source.ids").stat().st_size == 3 * width
    assert built.source(0).tolist() == [vocabulary - 26, vocabulary - 1, EOS]


def test_unusable_pairs_are_left_out_and_counted_by_reason(tmp_path):
    examples = [
        Example("a", "b", line=1),
        Example(" \u3000", "b", line=2),
        Example("a", "\t", line=3),
        Example("a", None, line=4),
        Example("a", "b", line=5, cut=True),
        Example("aaaa", "b", line=6),
        Example("aaa", "bb", line=7),
        Example("a", "bbb", line=8),
    ]
    built = store.build(examples, Letters(), tmp_path / "store", max_source=4, max_target=3, keep_text=False)
    assert built.lines.tolist() == [1, 7]
    assert built.skipped == {
        "blank source": 1,
        "blank target": 2,
        "cut": 1,
        "source too long": 1,
        "target too long": 1,
    }
    assert store.open(tmp_path / "store").skipped == built.skipped


def test_a_store_travels_to_another_process_as_its_path(tmp_path):
    built = store.build(pairs(2000), Letters(), tmp_path / "store", max_source=9999, max_target=9999, keep_text=True)
    sent = pickle.dumps(built)
    assert len(sent) < 1000
    assert pickle.loads(sent).source(1234).tolist() == built.source(1234).tolist()


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    def peak(count: int) -> int:
        examples = (Example("s" * 99, "t" * 99, line=i) for i in range(count))
        tracemalloc.start()
        store.build(examples, Letters(), tmp_path / str(count), **LIMITS, keep_text=True)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    few, many = peak(500), peak(5000)
    assert many - few < 5000 * 400 // 4  # a quarter of the ids alone


# -- nothing half-made -------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from dragoman.core.interfaces import Example
from dragoman.data import store

class Codec:
    source = target = range(1000)
    medium = second = None
    def encode_source(self, example): return [ord(c) for c in example.source]
    def encode_target(self, text, source=""): return [ord(c) for c in text]

def examples():
    for i in range(100_000):
        if i == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield Example("source" * 10, "target" * 10, line=i)

store.build(examples(), Codec(), Path(sys.argv[1]), max_source=100, max_target=100, keep_text=True)
"""


@pytest.mark.parametrize("when", [0, 20_000])
def test_a_killed_build_leaves_no_store_and_the_next_build_cleans_up(tmp_path, when):
    folder = tmp_path / "cache" / "store"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(when)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not folder.exists()
    assert leftovers(folder.parent)
    assert len(store.build(pairs(), Letters(), folder, **LIMITS, keep_text=False)) == 3
    assert not leftovers(folder.parent)


def test_an_error_in_the_data_leaves_nothing_behind(tmp_path):
    def examples() -> Iterator[Example]:
        yield from pairs()
        raise DataError("not UTF-8", "file", 4)

    with pytest.raises(DataError, match="file:4: not UTF-8"):
        store.build(examples(), Letters(), tmp_path / "store", **LIMITS, keep_text=False)
    assert not (tmp_path / "store").exists()
    assert not leftovers(tmp_path)


def test_a_build_does_not_clean_up_what_another_is_still_building(tmp_path):
    def slowly() -> Iterator[Example]:
        for number, example in enumerate(pairs()):
            if number == 1:
                store.build(pairs(5), Letters(), tmp_path / "other", **LIMITS, keep_text=True)
            yield example

    assert len(store.build(slowly(), Letters(), tmp_path / "store", **LIMITS, keep_text=True)) == 3
    assert len(store.open(tmp_path / "other")) == 5


def test_of_two_builds_of_one_folder_the_first_to_finish_counts(tmp_path):
    def overtaken() -> Iterator[Example]:
        yield from pairs(2)
        store.build(pairs(3), Letters(), tmp_path / "store", **LIMITS, keep_text=False)

    assert len(store.build(overtaken(), Letters(), tmp_path / "store", **LIMITS, keep_text=False)) == 3
    assert not leftovers(tmp_path)


FILES = ["source.ids", "source.offsets", "target.ids", "target.offsets", "lines", "examples.jsonl", "examples.offsets"]


@pytest.mark.parametrize("name", [*FILES, "store.json"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "longer"])
def test_a_damaged_store_is_noticed_and_built_again(tmp_path, name, damage):
    data = tmp_path / "pairs.tsv"
    data.write_text("some pairs")

    def prepared() -> store.Store:
        return store.prepare([data], pairs, Letters(), tmp_path / "cache", **LIMITS, keep_text=True)

    file = prepared().folder / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] if damage == "truncated" else file.read_bytes() + b"?")
    with pytest.raises(DataError, match="Delete the folder"):
        store.open(file.parent)
    again = prepared()
    assert [again.source(i).tolist() for i in range(3)] == [Letters().encode_source(example) for example in pairs()]
    assert not leftovers(tmp_path / "cache")


def test_a_store_of_another_version_is_refused(tmp_path):
    store.build(pairs(), Letters(), tmp_path / "store", **LIMITS, keep_text=False)
    facts = tmp_path / "store" / "store.json"
    facts.write_text(facts.read_text().replace(f'"version": {store.VERSION}', '"version": 99'))
    with pytest.raises(DataError, match="version 99"):
        store.open(tmp_path / "store")


# -- built once --------------------------------------------------------------------------------------------------------


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
        built = store.prepare([data], corpus, Letters(), tmp_path / "cache", **LIMITS, keep_text=False)
        assert len(built) == 3
    assert corpus.read == 1


def test_a_corpus_is_encoded_again_when_anything_it_depends_on_changes(tmp_path):
    corpus, cache = Corpus(pairs()), tmp_path / "cache"
    one, same, other = (write(tmp_path / name, text) for name, text in [("1", "one"), ("2", "one"), ("3", "two")])
    plain = {"max_source": 50, "max_target": 50, "keep_text": False}
    first = store.prepare([one], corpus, Letters(), cache, **plain).folder
    assert store.prepare([same], corpus, Letters(), cache, **plain).folder == first  # the name is not the content
    changed = [
        store.prepare([other], corpus, Letters(), cache, **plain),
        store.prepare([one, other], corpus, Letters(), cache, **plain),
        store.prepare([other, one], corpus, Letters(), cache, **plain),
        store.prepare([one], corpus, Letters(500), cache, **plain),
        store.prepare([one], corpus, Letters(), cache, **plain | {"max_source": 51}),
        store.prepare([one], corpus, Letters(), cache, **plain | {"max_target": 51}),
        store.prepare([one], corpus, Letters(), cache, **plain | {"keep_text": True}),
        store.prepare([one], corpus, Letters(), cache, **plain, reading="columns 2, 1"),
    ]
    assert len({first, *(built.folder for built in changed)}) == 1 + len(changed)
    assert corpus.read == 1 + len(changed)


def test_a_large_file_is_hashed_once(tmp_path):
    file, cache = write(tmp_path / "a", "one"), tmp_path / "cache"
    before = store.fingerprint([file], cache)
    stamp = file.stat()
    file.write_text("two")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert store.fingerprint([file], cache) == before  # same size and time: it was not read again
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert store.fingerprint([file], cache) != before


def test_a_file_that_may_still_be_changing_is_hashed_again(tmp_path):
    file, cache = write(tmp_path / "a", "one", age=0), tmp_path / "cache"
    before, stamp = store.fingerprint([file], cache), file.stat()
    file.write_text("two")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert store.fingerprint([file], cache) != before


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"x": 3}', '{"x": [1, "?", "d"]}'])
def test_damaged_hashes_are_as_good_as_none(tmp_path, content):
    file, cache = write(tmp_path / "a", "one"), tmp_path / "cache"
    before = store.fingerprint([file], cache)
    (cache / "hashes.json").write_text(content)
    assert store.fingerprint([file], cache) == before
    assert not leftovers(cache)


# -- what the user is told ---------------------------------------------------------------------------------------------


def test_a_corpus_with_nothing_usable_is_an_error_that_says_why(tmp_path):
    data = write(tmp_path / "a.tsv", "x")
    examples = [Example("", "b"), Example("", "b"), Example("a" * 100, "b")]
    with pytest.raises(
        DataError, match=r"a\.tsv: .*all 3 were skipped \(2 blank source, 1 source too long; at most 100"
    ):
        store.prepare([data], lambda: examples, Letters(), tmp_path / "cache", **LIMITS, keep_text=False)


def test_an_empty_corpus_is_an_error(tmp_path):
    data = write(tmp_path / "a.tsv", "")
    for _ in range(2):
        with pytest.raises(DataError, match=r"a\.tsv: there is no pair in it"):
            store.prepare([data], list, Letters(), tmp_path / "cache", **LIMITS, keep_text=True)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.tsv: the file cannot be read \(No such file"):
        store.fingerprint([tmp_path / "gone.tsv"], tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    write(tmp_path / "cache", "a file where a folder should be")
    data = write(tmp_path / "a.tsv", "x")
    with pytest.raises(DataError, match="cache"):
        store.prepare([data], pairs, Letters(), tmp_path / "cache", **LIMITS, keep_text=False)
    with pytest.raises(DataError, match="could not be built"):
        store.build(pairs(), Letters(), tmp_path / "cache" / "store", **LIMITS, keep_text=False)


# -- objectives --------------------------------------------------------------------------------------------------------


def test_a_single_text_is_stored_as_a_target_without_a_source(tmp_path):
    texts = [Example("abc", line=1), Example(" ", line=2), Example("d" * 60, line=3), Example("e", line=4)]
    limits = {"max_source": 50, "max_target": 100}
    built = store.build(texts, Letters(), tmp_path / "s", **limits, keep_text=True, objective=LanguageModel())
    assert not built.paired
    assert [built.target(i).tolist() for i in range(len(built))] == [[97, 98, 99, EOS], [101, EOS]]
    assert built.source_lengths.tolist() == [0, 0]
    assert built.skipped == {"blank": 1, "too long": 1}  # a text may have to stand on the source's side
    assert built.example(0).target == "abc"
    assert not store.open(tmp_path / "s").paired


def test_what_an_objective_cannot_use_is_left_out_and_counted(tmp_path):
    rows = [Example("ab", "x", line=1), Example("ab", "xy", line=2)]
    built = store.build(rows, Letters(), tmp_path / "s", **LIMITS, keep_text=False, objective=Labels())
    assert built.lines.tolist() == [1]
    assert built.skipped == {"target is not one label": 1}
