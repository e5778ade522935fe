"""The validation pairs that are kept with a model: which ones, in which file, and what of a stranger's file is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.checkpoint import kept_examples, model_folder
from dragoman.checkpoint.kept_examples import MAX_CHARACTERS, MAX_EXAMPLES, is_worth_keeping, read_examples, to_files
from dragoman.core.errors import ModelError
from dragoman.core.types import Example

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
languages = st.none() | texts
examples = st.builds(
    Example, texts, target=st.none() | texts, second_source=texts, source_lang=languages, target_lang=languages
)


def folder_with(path: Path, contents: dict[str, bytes]) -> Path:
    """A folder with these files and a manifest of them."""
    path.mkdir(exist_ok=True)
    for name, data in (contents | {"manifest.json": model_folder.build_manifest(contents)}).items():
        (path / name).write_bytes(data)
    return path


@given(pairs=st.lists(examples, max_size=MAX_EXAMPLES))
def test_what_is_kept_is_read_as_it_was(tmp_path_factory, pairs):
    folder = folder_with(tmp_path_factory.mktemp("model"), to_files(pairs))
    assert read_examples(folder) == pairs
    assert kept_examples.keep_first(folder, 2) == to_files(pairs[:2])


def test_without_examples_there_is_no_file(tmp_path):
    assert to_files([]) == {}
    assert read_examples(folder_with(tmp_path / "model", {})) == []


def test_a_file_that_the_manifest_does_not_list_is_not_read(tmp_path):
    folder = folder_with(tmp_path / "model", {})
    (folder / kept_examples.FILE).write_bytes(to_files([Example("a")])[kept_examples.FILE])
    assert read_examples(folder) == []


@pytest.mark.parametrize("value", [{"source": "a"}, [{}], [{"source": 3}], ["a"], [{"source": "a", "target": []}]])
def test_a_strangers_file_is_checked(tmp_path, value: Any):
    folder = folder_with(tmp_path / "model", {kept_examples.FILE: json.dumps(value).encode()})
    with pytest.raises(ModelError, match=r"examples\.json: holds no examples"):
        read_examples(folder)


def test_no_more_are_read_than_are_kept(tmp_path):
    many = [Example(str(i)) for i in range(MAX_EXAMPLES + 5)]
    assert read_examples(folder_with(tmp_path / "model", to_files(many))) == many[:MAX_EXAMPLES]


def test_blank_and_long_pairs_are_no_examples():
    assert is_worth_keeping(Example("a", "b" * MAX_CHARACTERS))
    for one in (Example(" "), Example("a" * (MAX_CHARACTERS + 1)), Example("a", "b" * (MAX_CHARACTERS + 1))):
        assert not is_worth_keeping(one)


class Reader:
    """What decides which texts may be kept: the readers of a codec."""

    def __init__(self, modality: object = None, second_source: object = None) -> None:
        self.modality, self.second_source = modality, second_source


def test_names_of_files_are_not_kept_and_a_language_model_keeps_beginnings():
    pair = Example("what is it ?", "a dog", second_source="/home/me/dog.png")
    keep: Any = kept_examples.without_files
    assert keep([pair], Reader(modality=object()), continues_text=False) == []
    assert keep([pair], Reader(second_source=object()), continues_text=False) == [replace(pair, second_source="")]
    assert keep([pair], Reader(second_source="text"), continues_text=False) == [pair]
    assert keep([Example(" abcde ")], Reader(), continues_text=True) == [Example("abc")]
