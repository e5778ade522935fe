"""A store is read where it lies, by any process, and refused where it is damaged."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from pathlib import Path

import pytest

from dragoman.core.errors import DataError
from dragoman.core.formats import FORMAT
from dragoman.data.store import store
from dragoman.data.store.builder import build_store

from ..conftest import LIMITS, Letters, pairs


def test_without_texts_a_store_has_no_examples(tmp_path):
    built = build_store(pairs(), Letters(), tmp_path / "store", **LIMITS, keep_text=False)
    with pytest.raises(ValueError, match="without texts"):
        built.example(0)


def test_a_store_travels_to_another_process_as_its_path(tmp_path):
    built = build_store(pairs(2000), Letters(), tmp_path / "store", max_source=9999, max_target=9999, keep_text=True)
    sent = pickle.dumps(built)
    assert len(sent) < 1000
    assert pickle.loads(sent).sources[1234].tolist() == built.sources[1234].tolist()


def test_a_store_of_another_format_is_refused(tmp_path):
    build_store(pairs(), Letters(), tmp_path / "store", **LIMITS, keep_text=False)
    facts = tmp_path / "store" / "store.json"
    facts.write_text(facts.read_text().replace(f'"format": {FORMAT}', '"format": 99'))
    with pytest.raises(DataError, match="format 99"):
        store.open_store(tmp_path / "store")


# -- a stranger's store ------------------------------------------------------------------------------------------------

FACTS: dict[str, object] = {
    "nothing": b"",
    "a list": [],
    "too deep": b"[" * 60_000,
    "a list of sizes": {"sizes": [1]},
    "a text of counts": {"skipped": {"too long": "many"}},
    "a list of counts": {"skipped": []},
    "half of what cannot be read": {"unreadable": [1]},
    "objects for numbers": {"dtypes": {"source": "O", "target": "<u2"}},
    "no width": {"width": 0},
    "a width that is a text": {"width": "2"},
    "a limit of NaN": {"max_source": float("nan")},
    "a key that nobody knows": {"loader": "os.system"},
}


@pytest.fixture
def folder(tmp_path) -> Path:
    return build_store(pairs(), Letters(), tmp_path / "store", **LIMITS, keep_text=True).folder


@pytest.mark.parametrize("what", FACTS)
def test_facts_that_are_no_facts_are_refused_in_one_sentence(folder, what):
    facts, file = FACTS[what], folder / "store.json"
    if isinstance(facts, dict):
        facts = json.loads(file.read_text()) | facts
    file.write_bytes(facts if isinstance(facts, bytes) else json.dumps(facts).encode())
    with pytest.raises(DataError, match="Delete the folder") as refused:
        store.open_store(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["store.json", "lines", "target.ids", "target.offsets"])
@pytest.mark.parametrize("kind", ["pipe", "link", "device"])
def test_only_plain_files_of_a_store_are_opened(folder, tmp_path, name, kind):
    """A pipe would wait for ever, a link lead out of the folder, /dev/zero never end."""
    file = folder / name
    outside = file.rename(tmp_path / "outside")
    os.mkfifo(file) if kind == "pipe" else file.symlink_to(outside if kind == "link" else "/dev/zero")
    with pytest.raises(DataError, match="Delete the folder"):
        store.open_store(folder)


def test_facts_of_an_absurd_size_are_refused_unread(folder):
    with (folder / "store.json").open("ab") as file:
        file.truncate(1 << 28)
    tracemalloc.start()
    with pytest.raises(DataError, match="268,435,456 bytes"):
        store.open_store(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
