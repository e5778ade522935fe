"""A model folder: the files of a model, and checksums that show whether they changed.

    config.yaml          the resolved config
    model.safetensors    the weights, tied ones once
    *.tokenizer.*        the vocabularies of the tokenizers
    manifest.json        kind and format; size and SHA-256 of every other file, and of itself
    examples.json        a few validation pairs, if there were any (kept_examples.py)
    training.*           only in a run's checkpoints: optimizer, schedule, data cursor; may be deleted to share a model
    MODEL.md, card.json  only in a packed model (packing.py), which is the same files in one zip

safetensors cannot run code when it is loaded. The manifest detects a flipped bit, which safetensors does not. A folder
is loaded only if all its files are there and unchanged, are plain files, and fit its config.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypedDict

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dragoman import config as configs
from dragoman.checkpoint import archive, model_paths
from dragoman.checkpoint.model_paths import FILE_NAME
from dragoman.config import Config
from dragoman.core import files, yaml
from dragoman.core.errors import ConfigError, FormatError, ModelError, PartError
from dragoman.core.formats import FORMAT, MAX_POINTER_BYTES, check_format, check_run_format
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.text.codec import Codec
from dragoman.version import __version__

KIND = "dragoman model"  # in every manifest; those of earlier development versions lack it
WEIGHTS = "model.safetensors"
CHECKPOINT_NAME = re.compile(r"step-(\d+)")
COPY_AGAIN = "copy the whole model again"
MAX_PROBLEMS = 3  # named in an error

# What a folder may hold, lest a stranger's fill our memory. Sizes are in bytes.
MAX_MANIFEST_BYTES = 20_000  # a file's entry has 130
MIN_SMALL_BYTES, MAX_SMALL_BYTES = 2**21, 2**25  # of config and tokenizers together, by the size of the weights
MAX_HEADER_BYTES = 2**24  # of a safetensors file, where a tensor's entry has 100
MIN_TENSORS = 100  # more than its file has may be made while a model is built
MAX_STATE_SIZE = 16  # sizes of the model's weights that a training state may have


class FileEntry(TypedDict):
    """What the manifest says of a file."""

    bytes: int
    sha256: str


@dataclass
class LoadedModel:
    """The contents of a model folder."""

    path: Path  # of the folder or zip
    config: Config
    model: Seq2Seq
    codec: Codec


def save(folder: Path, config: Config, weights: Mapping[str, Tensor], codec: Codec, extra: Mapping[str, bytes]) -> None:
    """Write a model folder atomically; `extra` are further files by name."""
    contents = {
        "config.yaml": config.to_yaml().encode(),
        WEIGHTS: tensors_to_bytes(weights),
        **codec.to_files(),
        **extra,
    }
    size = sum(len(data) for name, data in contents.items() if not name.endswith(".safetensors"))
    if size > (limit := max_small_bytes(len(contents[WEIGHTS]))):
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


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    return safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in tensors.items()})


def build_manifest(contents: Mapping[str, bytes]) -> bytes:
    """The manifest.json for some files: their sizes and checksums."""
    return sign_entries({name: describe_file(data) for name, data in contents.items()})


def describe_file(data: bytes) -> FileEntry:
    """What the manifest says of a file with this content."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def sign_entries(entries: Mapping[str, FileEntry]) -> bytes:
    """The manifest.json that lists files by name."""
    return _with_digest({"kind": KIND, "format": FORMAT, "dragoman": __version__, "files": dict(entries)})


def _with_digest(value: Mapping[str, object]) -> bytes:
    """A manifest as JSON with the digest of its own content, in one canonical form: any edit is detected."""
    value = {key: item for key, item in value.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    return (json.dumps(value | {"sha256": digest}, indent=1, sort_keys=True) + "\n").encode()


def load(path: str | Path) -> LoadedModel:
    """Load a model folder, a packed model or the best checkpoint of a run, after checking its files; to evaluate."""
    folder = resolve(Path(path))
    config, codec = load_codec(folder)
    model = configs.build_model(config, codec.source_size, len(codec.target), codec.second_source_size)
    load_weights(model, load_tensors(folder, WEIGHTS), str(folder / WEIGHTS))
    return LoadedModel(folder, config, model.eval(), codec)


def load_codec(path: str | Path) -> tuple[Config, Codec]:
    """Load the config and the tokenizers of a model or a run; all files are checked, no weights loaded."""
    return verify(resolve(Path(path)))


def resolve(path: Path) -> Path:
    """The model folder of a path: the path itself, or the best (else the last) checkpoint of a run.

    A packed model is a file, and is used as a folder: its files are ZIP/NAME.
    """
    model_paths.check_exists(path)
    if archive.is_archive(path):
        return path
    if not os.path.isdir(path):
        raise ModelError(f"{path}: is no model: neither a folder nor a zip that dragoman pack wrote")
    try:
        is_model = (path / "manifest.json").is_file()
    except PermissionError:
        raise ModelError(f"{path}: may not be read: permission denied; change its permissions, or copy it") from None
    if is_model:
        return path
    for pointer in ("best", "last"):
        name = read_pointer(path, pointer)
        if name is not None:
            check_run_format(path)
            folder = path / "checkpoints" / name
            if folder.is_symlink() or folder.parent.is_symlink():
                raise ModelError(f"{folder}: is a link; a run folder holds no links, copy the checkpoint into it")
            return folder
    if (path / "config.yaml").exists():
        raise ModelError(f"{path}: this run has no checkpoint yet; let it train until the first one is saved")
    runs = sorted(entry.name for entry in path.iterdir() if (entry / "config.yaml").is_file())
    hint = f"; it holds {', '.join(runs[:5])}{', …' if len(runs) > 5 else ''}: name one" if runs else ""
    raise ModelError(f"{path}: neither a model folder (no manifest.json) nor a run folder (no config.yaml){hint}")


def read_pointer(run: Path, pointer: str) -> str | None:
    """The name of the checkpoint that a run's pointer file (`best`, `last`) names; None if there is none."""
    try:
        name = files.read_plain(run / pointer, MAX_POINTER_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return name if FILE_NAME.fullmatch(name) and (run / "checkpoints" / name).is_dir() else None


def verify(folder: Path, *, training: bool = False) -> tuple[Config, Codec]:
    """Check every file against the manifest, and the weights' size against the config; returns config and codec.

    A manifest can be written by anyone, so sizes are checked before anything is read or built: a small file by a
    limit, a large one by the config's model. The training state may be missing unless `training` is set: a model may be
    shared without it.
    """
    entries = read_manifest(folder)
    missing = {"config.yaml", WEIGHTS} - set(entries)
    if missing:
        raise ModelError(f"{folder}/manifest.json: does not list {' and '.join(sorted(missing))}")
    small: dict[str, bytes] = {}
    large: list[str] = []
    bytes_left = max_small_bytes(entries[WEIGHTS]["bytes"])
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
                    _check_digest(path, _stream_digest(file), entry)
                continue
            bytes_left -= size
            if bytes_left < 0:
                raise ModelError(
                    f"{path}: has {size:,} bytes, too many beside {WEIGHTS} of {entries[WEIGHTS]['bytes']:,}"
                )
            small[name] = file.read(size)
        _check_digest(path, hashlib.sha256(small[name]).hexdigest(), entry)
    config = _parse_config(folder, small)
    codec = _restore_codec(folder, config, small)
    weights_size = _check_weights_size(folder, config, codec)
    for name in large:
        size = entries[name]["bytes"]
        if size > MAX_STATE_SIZE * weights_size + MIN_SMALL_BYTES:
            raise ModelError(f"{folder / name}: has {size:,} bytes, too many for a model of {weights_size:,} bytes")
        with open_model_file(folder / name) as (file, _):  # may be larger than memory: only its checksum is computed
            _check_digest(folder / name, _stream_digest(file), entries[name])
    return config, codec


@contextmanager
def open_model_file(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file of a model folder, or of a packed model as ZIP/NAME, with its size; ModelError if it cannot be."""
    try:
        with files.explain_read_errors(path):
            if archive.is_archive(path.parent):
                with archive.open_member(path) as opened:
                    yield opened
            else:
                with files.open_plain(path) as file:
                    yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}; {COPY_AGAIN}") from None


def _stream_digest(file: Any) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _check_digest(path: Path, digest: str, entry: FileEntry) -> None:
    if digest != entry["sha256"]:
        raise ModelError(f"{path}: checksum mismatch, the file was changed or damaged; {COPY_AGAIN}")


def _restore_codec(folder: Path, config: Config, contents: dict[str, bytes]) -> Codec:
    try:
        return configs.build_codec(config).restore(contents)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None


def _check_weights_size(folder: Path, config: Config, codec: Codec) -> int:
    """The bytes of the weights that a config implies; ModelError unless model.safetensors has about as many."""
    with open_model_file(folder / WEIGHTS) as (file, size):
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


def read_manifest(folder: Path) -> dict[str, FileEntry]:
    """The files of a model, with sizes and checksums; ModelError if the manifest is damaged or of another format."""
    path = folder / "manifest.json"
    damaged = ModelError(f"{path}: checksum mismatch, the manifest was changed or damaged; {COPY_AGAIN}")
    with open_model_file(path) as (file, size):
        if size > MAX_MANIFEST_BYTES:
            raise ModelError(f"{path}: has {size:,} bytes, more than the {MAX_MANIFEST_BYTES:,} that are allowed")
        data = file.read(MAX_MANIFEST_BYTES)
    try:
        value = json.loads(data)
        if not isinstance(value, dict) or _with_digest(value) != data:
            raise damaged
    except (ValueError, RecursionError):
        raise damaged from None
    # Earlier development versions also wrote format 1, but no kind.
    check_format(value.get("format") if value.get("kind") == KIND else None, folder)
    entries: dict[str, FileEntry] | None = value.get("files")
    if not isinstance(entries, dict) or not all(map(_is_entry, entries.values())):
        raise damaged
    return entries


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("bytes"), int) and isinstance(value.get("sha256"), str)


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
    """Copy weights into a model, or only those below `parts`; ModelError unless names and shapes match exactly."""

    def select(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        prefixes = tuple(f"{part}." for part in parts)
        return {name: x for name, x in tensors.items() if not parts or name in parts or name.startswith(prefixes)}

    own, weights = select(unique_weights(model)), select(weights)
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


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    folder = run / "checkpoints"
    paths = folder.iterdir() if folder.is_dir() else ()
    checkpoints = [p for p in paths if CHECKPOINT_NAME.fullmatch(p.name) and not p.is_symlink()]
    return sorted(checkpoints, key=lambda p: int(p.name.removeprefix("step-")))


def latest_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """The newest undamaged checkpoint, and why each newer one was ignored.

    A checkpoint of another format raises an error, and so does one that cannot be read now (a failing disk, too many
    open files): it is not damaged, so a new run must not replace it.
    """
    ignored: list[str] = []
    for folder in reversed(list_checkpoints(run)):
        try:
            verify(folder, training=True)
            return folder, ignored
        except FormatError:
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
