"""Pack a model into one zip to share it: what is needed to use it, and nothing about the machine it was made on.

    model or run folder ─→ config without folders, weights, tokenizers │
    documents (MODEL.md, card.json) ───────────────────────────────────┴→ manifest of all ─→ hungarian.zip

The files of the zip are those of a model folder: unpacked it is one.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dragoman import config as configs
from dragoman.checkpoint import archive, model_folder
from dragoman.checkpoint.model_folder import ADAPTER, WEIGHTS
from dragoman.config import Config
from dragoman.core.errors import ModelError
from dragoman.data.readers import split_spec


def pack(model: str | Path, output: Path, documents: Mapping[str, bytes]) -> None:
    """Write a model, the best of a run, as one zip with some documents; the same model gives the same bytes.

    An adapter is merged with its base model.
    """
    folder = model_folder.resolve(Path(model))
    config, codec = model_folder.verify(folder)
    merged: bytes | None = None
    base, weights = model_folder.locate_weights(folder)
    if model_folder.has_adapter(folder):
        merged = model_folder.tensors_to_bytes(model_folder.merged_weights(folder, config))
        weights = model_folder.describe_file(merged)
    contents = {"config.yaml": without_folders(config).to_yaml().encode(), **codec.to_files(), **documents}
    size, limit = sum(map(len, contents.values())), model_folder.max_small_bytes(weights["bytes"])
    if size > limit:
        raise ModelError(f"{output}: vocabularies and documents have {size:,} bytes, and may have {limit:,}")
    entries = {name: model_folder.describe_file(data) for name, data in contents.items()} | {WEIGHTS: weights}
    contents["manifest.json"] = model_folder.sign_entries(entries)
    with ExitStack() as stack:
        streams: dict[str, tuple[Any, int]] = {name: (io.BytesIO(data), len(data)) for name, data in contents.items()}
        if merged is None:
            streams[WEIGHTS] = stack.enter_context(model_folder.open_model_file(folder / WEIGHTS))
        else:
            streams[WEIGHTS] = io.BytesIO(merged), len(merged)
        archive.write_archive(output, streams, inputs=[folder, folder / ADAPTER, base, base / WEIGHTS])


def without_folders(config: Config) -> Config:
    """A config whose paths are the last names of what they were: they say what was used, and not where it is kept."""
    value = config.model_dump()
    data, training, tokenizer = value["data"], value["training"], value["tokenizer"]
    data["train"] = [corpus | {"path": base_names(corpus["path"])} for corpus in data["train"]]
    data["valid"] = data["valid"] and base_names(data["valid"])
    data["files"], data["cache"] = [base_names(path) for path in data["files"]], None
    tokenizer["load"] = tokenizer["load"] and base_names(tokenizer["load"])
    training["start_from"] = training["start_from"] and base_names(training["start_from"])
    if training["backbone"] is not None:
        training["backbone"] = training["backbone"] | {"file": base_names(training["backbone"]["file"])}
    return configs.validate(_without_own_paths(value), "the config to pack")


def base_names(spec: str) -> str:
    """The last names of one path or of several with commas between them: a/x.en,b/x.de → x.en,x.de."""
    return ",".join(os.path.basename(path.strip().rstrip("/")) or path for path in split_spec(spec))


def _without_own_paths(value: Any) -> Any:
    """Replace every other text that is a path on this machine, such as an option of a user's own part."""
    if isinstance(value, dict):
        return {key: _without_own_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_own_paths(item) for item in value]
    return base_names(value) if isinstance(value, str) and _is_own_path(value) else value


def _is_own_path(text: str) -> bool:
    path = os.path.expanduser(text)
    own = (os.path.expanduser("~"), os.getcwd())
    return os.path.isabs(path) and (os.path.exists(path) or any(folder in path for folder in own if folder != "/"))
