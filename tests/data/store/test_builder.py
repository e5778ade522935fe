"""Every usable pair is encoded as the codec says, the others are counted, and no folder is ever half there."""

from __future__ import annotations

import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import DataError
from dragoman.core.types import EOS, Example
from dragoman.data.objectives import Labels, LanguageModel
from dragoman.data.store import store
from dragoman.data.store.builder import build_store

from ..conftest import LIMITS, Letters, leftovers, pairs

# -- what goes in comes out --------------------------------------------------------------------------------------------

texts = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=12)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=20))
def test_a_store_gives_back_every_pair_with_its_ids_lengths_and_texts(tmp_path_factory, rows):
    codec = Letters()
    examples = [Example(s, t, "de", None, line=7 * i) for i, (s, t) in enumerate(rows)]
    built = build_store(examples, codec, tmp_path_factory.mktemp("cache") / "store", **LIMITS, keep_text=True)
    assert len(built) == len(rows)
    for i, example in enumerate(examples):
        assert built.sources[i].tolist() == codec.encode_source(example)
        assert built.targets[i].tolist() == codec.encode_target(example)
        assert built.example(i) == example
    assert built.lengths(np.arange(len(built)))[0].tolist() == [len(s) + 1 for s, _ in rows]
    assert built.lengths(np.arange(len(built)))[1].tolist() == [len(t) + 1 for _, t in rows]
    assert built.lines.tolist() == [7 * i for i in range(len(rows))]
    some = np.array([len(rows) - 1, 0])
    assert [lengths.tolist() for lengths in built.lengths(some)] == [
        [len(rows[-1][0]) + 1, len(rows[0][0]) + 1],
        [len(rows[-1][1]) + 1, len(rows[0][1]) + 1],
    ]
    again = np.array([len(rows) - 1, 0, len(rows) - 1])
    for gather, side in ((built.sources.gather, 0), (built.targets.gather, 1)):
        ids, lengths = gather(again)
        assert ids.tolist() == [id for i in again for id in codec.encode_target(Example("", rows[i][side]))]
        assert lengths.tolist() == [len(rows[i][side]) + 1 for i in again]
        assert [x.tolist() for x in gather(again[:0])] == [[], []]


def test_texts_keep_every_character_and_both_languages(tmp_path):
    example = Example("grün\t“x”", "ß\u2028\n日本", "de", "ja", line=3)
    built = build_store([example], Letters(1 << 20), tmp_path / "store", **LIMITS, keep_text=True)
    assert built.example(0) == example


@pytest.mark.parametrize(("vocabulary", "width"), [(1000, 2), (1 << 16, 2), ((1 << 16) + 1, 4)])
def test_ids_take_two_bytes_where_the_vocabulary_fits_and_four_where_not(tmp_path, vocabulary, width):
    codec = Letters(vocabulary, shift=vocabulary - 123)  # the id of "z" is the last
    built = build_store([Example("az", "z", line=1)], codec, tmp_path / "store", **LIMITS, keep_text=False)
    assert (tmp_path / "store" / "source.ids").stat().st_size == 3 * width
    assert built.sources[0].tolist() == [vocabulary - 26, vocabulary - 1, EOS]


def test_unusable_pairs_are_left_out_and_counted_by_reason(tmp_path):
    examples = [
        Example("a", "b", line=1),
        Example(" \u3000", "b", line=2),
        Example("a", "\t", line=3),
        Example("a", None, line=4),
        Example("a", "b", line=5, source_truncated=True),
        Example("aaaa", "b", line=6),
        Example("aaa", "bb", line=7),
        Example("a", "bbb", line=8),
    ]
    built = build_store(examples, Letters(), tmp_path / "store", max_source=4, max_target=3, keep_text=False)
    assert built.lines.tolist() == [1, 7]
    assert built.skipped == {
        "blank source": 1,
        "blank target": 2,
        "truncated": 1,
        "source too long": 1,
        "target too long": 1,
    }
    assert store.open_store(tmp_path / "store").skipped == built.skipped


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    def peak(count: int) -> int:
        examples = (Example("s" * 99, "t" * 99, line=i) for i in range(count))
        tracemalloc.start()
        build_store(examples, Letters(), tmp_path / str(count), **LIMITS, keep_text=True)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    few, many = peak(500), peak(5000)
    assert many - few < 5000 * 400 // 4  # a quarter of the ids alone


# -- nothing half-made -------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from dragoman.core.types import Example
from dragoman.data.store.builder import build_store

class Codec:
    source = target = range(1000)
    modality = second_source = None
    def encode_source(self, example): return [ord(c) for c in example.source]
    def encode_target(self, example): return [ord(c) for c in example.target]

def examples():
    for i in range(100_000):
        if i == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield Example("source" * 10, "target" * 10, line=i)

build_store(examples(), Codec(), Path(sys.argv[1]), max_source=100, max_target=100, keep_text=True)
"""


@pytest.mark.parametrize("when", [0, 20_000])
def test_a_killed_build_leaves_no_store_and_the_next_build_cleans_up(tmp_path, when):
    folder = tmp_path / "cache" / "store"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(when)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not folder.exists()
    assert leftovers(folder.parent)
    assert len(build_store(pairs(), Letters(), folder, **LIMITS, keep_text=False)) == 3
    assert not leftovers(folder.parent)


def test_an_error_in_the_data_leaves_nothing_behind(tmp_path):
    def examples() -> Iterator[Example]:
        yield from pairs()
        raise DataError("not UTF-8", "file", 4)

    with pytest.raises(DataError, match="file:4: not UTF-8"):
        build_store(examples(), Letters(), tmp_path / "store", **LIMITS, keep_text=False)
    assert not (tmp_path / "store").exists()
    assert not leftovers(tmp_path)


def test_a_build_does_not_clean_up_what_another_is_still_building(tmp_path):
    def slowly() -> Iterator[Example]:
        for number, example in enumerate(pairs()):
            if number == 1:
                build_store(pairs(5), Letters(), tmp_path / "other", **LIMITS, keep_text=True)
            yield example

    assert len(build_store(slowly(), Letters(), tmp_path / "store", **LIMITS, keep_text=True)) == 3
    assert len(store.open_store(tmp_path / "other")) == 5


def test_of_two_builds_of_one_folder_the_first_to_finish_counts(tmp_path):
    def overtaken() -> Iterator[Example]:
        yield from pairs(2)
        build_store(pairs(3), Letters(), tmp_path / "store", **LIMITS, keep_text=False)

    assert len(build_store(overtaken(), Letters(), tmp_path / "store", **LIMITS, keep_text=False)) == 3
    assert not leftovers(tmp_path)


# -- objectives --------------------------------------------------------------------------------------------------------


def test_a_single_text_is_stored_as_a_target_without_a_source(tmp_path):
    texts = [Example("abc", line=1), Example(" ", line=2), Example("d" * 60, line=3), Example("e", line=4)]
    limits = {"max_source": 50, "max_target": 100}
    built = build_store(texts, Letters(), tmp_path / "s", **limits, keep_text=True, objective=LanguageModel())
    assert not built.is_paired
    assert [built.targets[i].tolist() for i in range(len(built))] == [[97, 98, 99, EOS], [101, EOS]]
    assert built.lengths(np.arange(len(built)))[0].tolist() == [0, 0]
    assert built.skipped == {"blank": 1, "too long": 1}  # a text may have to stand on the source's side
    assert built.example(0).target == "abc"
    assert not store.open_store(tmp_path / "s").is_paired


def test_what_an_objective_cannot_use_is_left_out_and_counted(tmp_path):
    rows = [Example("ab", "x", line=1), Example("ab", "xy", line=2)]
    built = build_store(rows, Letters(), tmp_path / "s", **LIMITS, keep_text=False, objective=Labels())
    assert built.lines.tolist() == [1]
    assert built.skipped == {"target is not one label": 1}
