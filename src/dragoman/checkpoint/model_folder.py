"""A model folder: the files of a model, and checksums that show whether they changed.

    config.yaml          the resolved config
    model.safetensors    the weights, tied ones once; instead of them, in a run with training.adapter:
    adapter.safetensors      the adapter's weights and the model's buffers
    adapter.json             where the base model was, with the size and the SHA-256 of its model.safetensors
    *.tokenizer.*        the vocabularies of the tokenizers
    manifest.json        kind and format; size and SHA-256 of every other file, and of itself
    examples.json        a few validation pairs, if there were any (kept_examples.py)
    training.*           only in a run's checkpoints: optimizer, schedule, data cursor; may be deleted to share a model
    MODEL.md, card.json  only in a packed model (packing.py), which is the same files in one zip

An adapter's weights are merged with those of its base model when they are loaded: others see an ordinary model.

safetensors cannot run code when it is loaded. The manifest detects a flipped bit, which safetensors does not. A folder
is loaded only if all its files are there and unchanged, are plain files, and fit its config.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dragoman import config as configs
from dragoman.checkpoint import archive
from dragoman.checkpoint.manifest import COPY_AGAIN, check_digest, is_entry, stream_digest
from dragoman.checkpoint.manifest import KIND as KIND
from dragoman.checkpoint.manifest import MAX_MANIFEST_BYTES as MAX_MANIFEST_BYTES
from dragoman.checkpoint.manifest import FileEntry as FileEntry
from dragoman.checkpoint.manifest import build_manifest as build_manifest
from dragoman.checkpoint.manifest import describe_file as describe_file
from dragoman.checkpoint.manifest import fingerprint as fingerprint
from dragoman.checkpoint.manifest import open_model_file as open_model_file
from dragoman.checkpoint.manifest import read_manifest as read_manifest
from dragoman.checkpoint.manifest import read_pointer as read_pointer
from dragoman.checkpoint.manifest import resolve as resolve
from dragoman.checkpoint.manifest import sign_entries as sign_entries
from dragoman.checkpoint.model_paths import FILE_NAME
from dragoman.config import Config
from dragoman.core import files, yaml
from dragoman.core.errors import BaseModelError, ConfigError, FormatError, ModelError, PartError
from dragoman.nn.adapters import adapter_parameters, adapters
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.text.codec import Codec

WEIGHTS = "model.safetensors"
ADAPTER, BASE = "adapter.safetensors", "adapter.json"
CHECKPOINT_NAME = re.compile(r"step-(\d+)")
MAX_PROBLEMS = 3  # named in an error

# What a folder may hold, lest a stranger's fill our memory. Sizes are in bytes.
MIN_SMALL_BYTES, MAX_SMALL_BYTES = 2**21, 2**25  # of config and tokenizers together, by the size of the weights
MAX_HEADER_BYTES = 2**24  # of a safetensors file, where a tensor's entry has 100
MIN_TENSORS = 100  # more than its file has may be made while a model is built
MAX_STATE_SIZE = 16  # sizes of the model's weights that a training state may have
MAX_BASE_BYTES = 10_000  # of adapter.json, which has two paths


class WeightsFile(NamedTuple):
    """A model.safetensors: the folder or zip it is in (of an adapter, that of the base model), and its entry."""

    folder: Path
    entry: FileEntry

    @property
    def path(self) -> Path:
        return self.folder / WEIGHTS


@dataclass
class LoadedModel:
    """The contents of a model folder."""

    path: Path  # of the folder or zip
    config: Config
    model: Seq2Seq
    codec: Codec


def save(
    folder: Path,
    config: Config,
    weights: Mapping[str, Tensor],
    codec: Codec,
    extra: Mapping[str, bytes],
    base: WeightsFile | None = None,
) -> None:
    """Write a model folder atomically; `extra` are further files; with `base`, `weights` are an adapter's."""
    data = tensors_to_bytes(weights)
    contents = {
        "config.yaml": config.to_yaml().encode(),
        **({WEIGHTS: data} if base is None else {ADAPTER: data, BASE: _describe_base(base, folder)}),
        **codec.to_files(),
        **extra,
    }
    size = sum(len(data) for name, data in contents.items() if not name.endswith(".safetensors"))
    if size > (limit := max_small_bytes(len(data) if base is None else base.entry["bytes"])):
        raise ModelError(
            f"{folder}: the vocabularies have {size:,} bytes where a model of this size may have {limit:,}; "
            "the data has overlong words: clean it, or set tokenizer.source.size"
        )
    files.write_folder(folder, contents | {"manifest.json": build_manifest(contents)})


def max_small_bytes(weights_size: int) -> int:
    """What all files but the weights may have together: a token has a row of weights."""
    return min(MAX_SMALL_BYTES, MIN_SMALL_BYTES + max(0, weights_size))


def unique_weights(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and saved buffers of a model by name; a tied weight is there once."""
    saved = model.state_dict().keys()
    buffers = {name: x for name, x in model.named_buffers() if name in saved}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def saved_weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model: all weights, or, of one with an adapter, the adapter's and all buffers.

    Training also changes buffers, such as the running averages of a norm over the batch.
    """
    weights, own = unique_weights(model), adapter_parameters(model)
    frozen = {name for name, _ in model.named_parameters()} - own
    return {name: x for name, x in weights.items() if name not in frozen} if own else weights


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    return safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in tensors.items()})


def load(path: str | Path) -> LoadedModel:
    """Load a model folder, a packed model or the best checkpoint of a run, after checking its files; to evaluate."""
    folder = resolve(Path(path))
    config, codec = load_codec(folder)
    model = configs.build_model(config, codec.source_size, len(codec.target), codec.second_source_size)
    load_weights(model, merged_weights(folder, config), str(locate_weights(folder).path))
    return LoadedModel(folder, config, model.eval(), codec)


def load_codec(path: str | Path) -> tuple[Config, Codec]:
    """Load the config and the tokenizers of a model or a run; all files are checked, no weights loaded."""
    return verify(resolve(Path(path)))


def verify(folder: Path, *, training: bool = False) -> tuple[Config, Codec]:
    """Check every file against the manifest, and the weights' size against the config; returns config and codec.

    A manifest can be written by anyone, so sizes are checked before anything is read or built: a small file by a
    limit, a large one by the config's model. The training state may be missing unless `training` is set: a model may be
    shared without it.
    """
    entries = read_manifest(folder)
    missing = {"config.yaml", *((ADAPTER, BASE) if ADAPTER in entries else (WEIGHTS,))} - set(entries)
    if missing:
        raise ModelError(f"{folder}/manifest.json: does not list {' and '.join(sorted(missing))}")
    if {WEIGHTS, ADAPTER} <= set(entries):
        raise ModelError(f"{folder}/manifest.json: lists both {WEIGHTS} and {ADAPTER}, of which a model has one")
    weights = locate_weights(folder)
    small: dict[str, bytes] = {}
    large: list[str] = []
    bytes_left = max_small_bytes(weights.entry["bytes"])
    for name, entry in entries.items():
        path = folder / name
        if not FILE_NAME.fullmatch(name):
            raise ModelError(f"{folder}/manifest.json: lists '{name[:100]}', which is not a plain file name")
        is_optional = name.startswith("training.") and not training
        if not (archive.has_member(path) if archive.is_archive(folder) else os.path.lexists(path)):
            if is_optional:
                continue
            raise ModelError(f"{path}: is missing; {COPY_AGAIN}")
        with open_model_file(path) as (file, size):
            if size != entry["bytes"]:
                raise ModelError(f"{path}: has {size:,} bytes, not {entry['bytes']:,}; {COPY_AGAIN}")
            if name.endswith(".safetensors"):
                if size > MAX_SMALL_BYTES:  # its checksum takes time: later, if it is a weights file of this config
                    large.append(name)
                else:
                    check_digest(path, stream_digest(file), entry)
                continue
            bytes_left -= size
            if bytes_left < 0:
                raise ModelError(f"{path}: has {size:,} bytes, too many beside {WEIGHTS} of {weights.entry['bytes']:,}")
            small[name] = file.read(size)
        check_digest(path, hashlib.sha256(small[name]).hexdigest(), entry)
    config = _parse_config(folder, small)
    if ADAPTER in entries and config.training.adapter is None:
        raise ModelError(f"{folder}/config.yaml: has no training.adapter, but the folder has {ADAPTER}")
    codec = _restore_codec(folder, config, small)
    weights_size = _check_weights_size(folder, config, codec, weights.path)
    for name in large:
        size = entries[name]["bytes"]
        if size > MAX_STATE_SIZE * weights_size + MIN_SMALL_BYTES:
            raise ModelError(f"{folder / name}: has {size:,} bytes, too many for a model of {weights_size:,} bytes")
        with open_model_file(folder / name) as (file, _):  # may be larger than memory: only its checksum is computed
            check_digest(folder / name, stream_digest(file), entries[name])
    if ADAPTER in entries:
        with open_model_file(weights.path) as (file, _):
            if stream_digest(file) != weights.entry["sha256"]:
                raise _base_error(folder, weights.path, has_changed=True)
    return config, codec


def _restore_codec(folder: Path, config: Config, contents: dict[str, bytes]) -> Codec:
    try:
        return configs.build_codec(config).restore(contents)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None


def _check_weights_size(folder: Path, config: Config, codec: Codec, weights: Path) -> int:
    """The bytes of the weights that a config implies; ModelError unless the file `weights` has about as many."""
    with open_model_file(weights) as (file, size):
        header = file.read(min(int.from_bytes(file.read(8), "little"), MAX_HEADER_BYTES))
    where = f"{folder}/config.yaml"
    sizes = codec.source_size, len(codec.target), codec.second_source_size
    try:  # a tied table is built up to three times and saved once, as float32: 4 bytes a number
        model = configs.build_meta_model(
            config, sizes, size + MIN_SMALL_BYTES, 2 * header.count(b"data_offsets") + MIN_TENSORS
        )
    except configs.ModelTooLarge:
        raise ModelError(f"{where}: describes a larger model than fits into {WEIGHTS}, {size:,} bytes") from None
    except PartError as error:
        raise ModelError(f"{where}: model: {error}") from None
    except configs.NEEDS_MEMORY:
        return size
    needed = sum(x.nbytes for x in unique_weights(model).values())
    if not needed - MIN_SMALL_BYTES <= size <= needed + MIN_SMALL_BYTES + MAX_HEADER_BYTES:
        raise ModelError(f"{where}: describes a model of {needed:,} bytes, but {WEIGHTS} has {size:,}")
    return needed


def _parse_config(folder: Path, contents: Mapping[str, bytes]) -> Config:
    """The validated config of a model folder; ConfigError or ModelError if it is none."""
    where = f"{folder}/config.yaml"
    try:
        value = yaml.parse(contents["config.yaml"].decode(), where)
        if not isinstance(value, dict):
            raise ConfigError(where, ["must be a mapping of settings"])
        return configs.validate(value, where)
    except UnicodeDecodeError:
        raise ModelError(f"{where}: is not UTF-8") from None


def load_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Load the tensors of a safetensors file by name."""
    try:
        if archive.is_archive(folder):  # read into memory: safetensors maps whole files alone
            with open_model_file(folder / name) as (file, _):
                return safetensors.torch.load(file.read())
        files.open_plain(folder / name).close()
        return safetensors.torch.load_file(folder / name)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{folder / name}: is not a safetensors file: {error}") from None


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str, parts: Sequence[str] = ()) -> None:
    """Copy saved weights into a model, or those below `parts` alone; ModelError unless names and shapes match."""

    def select(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        prefixes = tuple(f"{part}." for part in parts)
        return {name: x for name, x in tensors.items() if not parts or name in parts or name.startswith(prefixes)}

    own, weights = select(saved_weights(model)), select(weights)
    problems = [
        f"no weight's name begins with '{part}'"
        for part in parts
        if not any(name == part or name.startswith(f"{part}.") for name in own)
    ]
    problems += [f"'{name}' is missing" for name in own.keys() - weights.keys()]
    problems += [f"'{name}' is not a weight of this model" for name in weights.keys() - own.keys()]
    problems += [
        f"'{name}' is {tuple(weights[name].shape)}, the model needs {tuple(p.shape)}"
        for name, p in own.items()
        if name in weights and weights[name].shape != p.shape
    ]
    if problems:
        more = f" and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        first = "; ".join(sorted(problems)[:MAX_PROBLEMS])
        raise ModelError(f"{where}: does not fit the model of the config: {first}{more}")
    for name in own:
        x = weights[name]
        if not x.sum().isfinite() and not x.isfinite().all():  # a sum is fast, but large numbers may overflow it
            raise ModelError(f"{where}: '{name}' has values that are NaN or infinite; use another checkpoint or copy")
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(weights[name])


# -- adapters ----------------------------------------------------------------------------------------------------------


def merged_weights(folder: Path, config: Config) -> dict[str, Tensor]:
    """All weights of a verified model folder as those of an ordinary model, an adapter's merged with its base's."""
    weights = load_tensors(locate_weights(folder).folder, WEIGHTS)
    if config.training.adapter is None or not has_adapter(folder):  # a packed model has merged weights
        return weights
    try:
        return adapters.build(config.training.adapter).merge(weights, load_tensors(folder, ADAPTER))
    except PartError as error:
        raise ModelError(f"{folder / ADAPTER}: {error}") from None


def has_adapter(folder: Path) -> bool:
    """Whether a model folder holds an adapter instead of a whole model."""
    return ADAPTER in read_manifest(folder)


def locate_weights(folder: Path) -> WeightsFile:
    """The model.safetensors of a model folder, or that of the base model of its adapter; BaseModelError without it."""
    entries = read_manifest(folder)
    if ADAPTER not in entries:
        return WeightsFile(folder, entries[WEIGHTS])
    paths, entry = _read_base(folder, entries[BASE])
    exists = False
    for path in paths:
        try:
            with open_model_file(path / WEIGHTS) as (_, size):
                exists = True
                if size == entry["bytes"]:
                    return WeightsFile(path, entry)
        except ModelError:
            exists = exists or os.path.isfile(path) or os.path.lexists(path / WEIGHTS)
    raise _base_error(folder, paths[0] / WEIGHTS, has_changed=exists)


def _describe_base(base: WeightsFile, folder: Path) -> bytes:
    """The adapter.json of a folder: its base model may be found where it was, or beside the folder as it was."""
    path = os.path.realpath(base.folder)
    relative = os.path.relpath(path, os.path.realpath(folder))
    return (json.dumps({"base": path, "relative": relative, **base.entry}, indent=1) + "\n").encode()


def _read_base(folder: Path, listed: FileEntry) -> tuple[list[Path], FileEntry]:
    """Where the base model of an adapter may be, and the entry of its weights; ModelError for a bad adapter.json."""
    path = folder / BASE
    with open_model_file(path) as (file, size):
        data = file.read(MAX_BASE_BYTES) if size <= MAX_BASE_BYTES else b""
    check_digest(path, hashlib.sha256(data).hexdigest(), listed)
    try:
        value = json.loads(data)
        texts = [value["base"], value["relative"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        texts = []
    if not texts or not is_entry(value) or not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise ModelError(f"{path}: does not name a base model; {COPY_AGAIN}")
    beside = Path(os.path.normpath(os.path.join(os.path.realpath(folder), texts[1])))
    return [Path(texts[0]), beside], {"bytes": value["bytes"], "sha256": value["sha256"]}


def _base_error(folder: Path, base: Path, has_changed: bool) -> BaseModelError:
    state, remedy = ("has changed since", "restore") if has_changed else ("is missing", "put back")
    return BaseModelError(
        f"{folder / ADAPTER}: was trained on {base}, which {state}; {remedy} that model, or train again from another. "
        "A packed model (dragoman pack) needs no base"
    )


# -- the checkpoints of a run ------------------------------------------------------------------------------------------


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    folder = run / "checkpoints"
    paths = folder.iterdir() if folder.is_dir() else ()
    checkpoints = [p for p in paths if CHECKPOINT_NAME.fullmatch(p.name) and not p.is_symlink()]
    return sorted(checkpoints, key=lambda p: int(p.name.removeprefix("step-")))


def latest_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """The newest undamaged checkpoint, and why each newer one was ignored.

    A checkpoint of another format raises an error, and so does one that cannot be read now (a failing disk, too many
    open files) or that lacks the base model of its adapter: it is not damaged, so a new run must not replace it.
    """
    ignored: list[str] = []
    for folder in reversed(list_checkpoints(run)):
        try:
            verify(folder, training=True)
            return folder, ignored
        except (FormatError, BaseModelError):
            raise
        except ModelError as error:
            ignored.append(str(error))
    return None, ignored


def average_weights(folders: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in float64."""
    every = [load_tensors(folder, WEIGHTS) for folder in folders]
    return {
        name: torch.stack([weights[name].double() for weights in every]).mean(0).to(first.dtype)
        for name, first in every[0].items()
    }
