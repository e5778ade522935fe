"""Validation pairs kept with a model: whoever has the model has real inputs to try, and none of the data.

    validation pairs ─sample→ Example, … ─→ examples.json, a file of the model folder ─→ Example, …

Sources that name files are left out: the files stay where they are. A language model keeps the first half of each text.
The file may be a stranger's: it is read only if the manifest lists it, and it is checked as strictly as a config.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from dragoman.checkpoint import model_folder
from dragoman.core.errors import ModelError
from dragoman.core.types import Example
from dragoman.text.codec import Codec

FILE = "examples.json"
MAX_EXAMPLES = 20  # kept with a model
MAX_CHARACTERS = 500  # of a source or a target: longer ones are no examples to begin with


class KeptExample(BaseModel):
    """A pair as it is kept: what an input of a request has, and the target."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    source: str
    second_source: str = ""
    target: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None


KEPT_EXAMPLES = TypeAdapter(list[KeptExample])


def is_worth_keeping(example: Example) -> bool:
    """Whether an example has a source, and is short enough to be read at a glance."""
    longest = max(len(example.source), len(example.second_source), len(example.target or ""))
    return bool(example.source.strip()) and longest <= MAX_CHARACTERS


def without_files(examples: Iterable[Example], codec: Codec, *, continues_text: bool) -> list[Example]:
    """The examples as they may be kept: the texts that a model reads, without the names of files."""
    if codec.modality is not None:
        return []
    kept = [replace(one, second_source=one.second_source if codec.second_source == "text" else "") for one in examples]
    if not continues_text:
        return kept
    texts = [one.source.strip() for one in kept]
    return [replace(one, source=text[: (len(text) + 1) // 2]) for one, text in zip(kept, texts, strict=True)]


def to_files(examples: Iterable[Example]) -> dict[str, bytes]:
    """The file of a model folder that holds some examples; none for none."""
    kept = [KeptExample.model_validate(one, from_attributes=True) for one in examples]
    return {FILE: KEPT_EXAMPLES.dump_json(kept, indent=1) + b"\n"} if kept else {}


def read_examples(model: Path) -> list[Example]:
    """The examples of a model folder or a packed model, which was verified before; none if it keeps none."""
    if FILE not in model_folder.read_manifest(model):
        return []
    with model_folder.open_model_file(model / FILE) as (file, size):
        data = file.read(size)
    try:
        kept = KEPT_EXAMPLES.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ModelError(f"{model / FILE}: holds no examples: {where}: {first['msg']}"[:400]) from None
    return [Example(**dict(one)) for one in kept[:MAX_EXAMPLES]]


def keep_first(model: Path, count: int) -> dict[str, bytes]:
    """The file with the first `count` examples of a model, to go with it into another folder or a zip."""
    return to_files(read_examples(model)[:count])
