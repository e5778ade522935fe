"""A store is read where it lies, by any process, and refused where it is damaged."""

from __future__ import annotations

import pickle

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
