"""A model folder: everything a model is, readable by anyone, and proof that nothing in it changed.

    config.yaml          the resolved config
    model.safetensors    the weights, tied ones once
    *.tokenizer.*        what the tokenizers learned
    manifest.json        the format; size and SHA-256 of every other file, and of itself
    training.*           only in a run's checkpoints: optimizer, schedule, cursor; may be taken out to hand a model on

safetensors because it cannot run code; the manifest because a flipped bit in a safetensors file loads in silence. A
folder is opened only if all of it is there and unchanged, holds plain files alone, and fits its own config.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dragoman import config as configs
from dragoman.config import Config
from dragoman.core import files, yaml
from dragoman.core.errors import ConfigError, FormatError, ModelError, nearest
from dragoman.core.formats import FORMAT, check_format, check_run_format
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.text import codec as codecs
from dragoman.text.codec import Codec
from dragoman.version import __version__

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
STEP = re.compile(r"step-(\d+)")


@dataclass
class Model:
    """A model folder, opened."""

    path: Path
    config: Config
    model: Seq2Seq
    codec: Codec


# -- saving ------------------------------------------------------------------------------------------------------------


def save(folder: Path, config: Config, weights: Mapping[str, Tensor], codec: Codec, extra: Mapping[str, bytes]) -> None:
    """Write a model folder, whole or not at all."""
    contents = {
        "config.yaml": config.text().encode(),
        "model.safetensors": tensors_to_bytes(weights),
        **codec.files(),
        **extra,
    }
    files.write_folder(folder, contents | {"manifest.json": manifest(contents)})


def unique_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor a model is made of, under one name each: what is tied is not stored twice.

    Besides what is trained, that is what is counted along (the averages of a batch norm).
    """
    kept = model.state_dict().keys()
    buffers = {name: x for name, x in model.named_buffers() if name in kept}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in tensors.items()})


def manifest(contents: Mapping[str, bytes]) -> bytes:
    listed = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sorted(contents.items())
    }
    return _canonical({"format": FORMAT, "dragoman": __version__, "files": listed})


def _canonical(value: dict[str, Any]) -> bytes:
    """JSON with its own digest: a manifest that was touched anywhere is no longer the text it should be."""
    value = {key: item for key, item in value.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    return (json.dumps(value | {"sha256": digest}, indent=1, sort_keys=True) + "\n").encode()


# -- opening -----------------------------------------------------------------------------------------------------------


def load(path: str | Path) -> Model:
    """Open a model folder, or the best model of a run folder."""
    folder = resolve(Path(path))
    config, codec = open_codec(folder)
    model = configs.build_model(config, codec.source_size, len(codec.target), codec.second_source_size)
    fill(model, tensors(folder, "model.safetensors"), str(folder / "model.safetensors"))
    return Model(folder, config, model.eval(), codec)


def open_codec(path: str | Path) -> tuple[Config, Codec]:
    """The config and the tokenizers of a model folder or a run folder, without its weights."""
    folder = resolve(Path(path))
    contents = verify(folder)
    config = _config(folder, contents)
    tokenizing = config.tokenizer
    source, target = tokenizing.source, tokenizing.target or tokenizing.source
    try:
        media = configs.modality(config), configs.second_source(config)
        return config, codecs.restore(source, target, tokenizing.joint, config.data.normalization, contents, *media)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None


def resolve(path: Path) -> Path:
    """The model folder meant by a path: itself, or the best (else the last) checkpoint of a run."""
    if not path.is_dir():
        near = nearest(path.name, [p.name for p in path.parent.iterdir() if p.is_dir()]) if path.parent.is_dir() else ""
        raise ModelError(f"{path}: there is no such model or run folder{near}")
    if (path / "manifest.json").is_file():
        return path
    for pointer in ("best", "last"):
        name = pointed(path, pointer)
        if name is not None:
            check_run_format(path)
            return path / "checkpoints" / name
    if (path / "config.yaml").exists():
        raise ModelError(f"{path}: this run has no checkpoint yet; let it train until the first one is saved")
    raise ModelError(f"{path}: neither a model folder (no manifest.json) nor a run folder (no config.yaml)")


def pointed(run: Path, pointer: str) -> str | None:
    """The checkpoint that a pointer file names, if it is there."""
    try:
        name = (run / pointer).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return name if NAME.fullmatch(name) and (run / "checkpoints" / name).is_dir() else None


def verify(folder: Path, *, training: bool = False) -> dict[str, bytes]:
    """Check every file against the manifest; the contents of the small ones (tokenizers, config) by name.

    The state of a training may have been taken out, to hand on the model alone, unless `training` needs it.
    """
    listed = _read_manifest(folder / "manifest.json")
    contents: dict[str, bytes] = {}
    for name, entry in listed.items():
        path = folder / name
        if not NAME.fullmatch(name):
            raise ModelError(f"{folder}/manifest.json: lists '{name}', which is not a plain file name")
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ModelError(f"{path}: is not a plain file; a model folder holds no links")
        if not path.exists() and name.startswith("training.") and not training:
            continue
        if not path.exists():
            raise ModelError(f"{path}: is missing; copy the whole folder again")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise ModelError(f"{path}: has {size:,} bytes, not {entry['bytes']:,}; copy the whole folder again")
        digest, data = hashlib.sha256(), b""
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
                if not name.endswith(".safetensors"):
                    data += chunk
        if digest.hexdigest() != entry["sha256"]:
            raise ModelError(f"{path}: checksum mismatch, the file was changed or damaged; copy the whole folder again")
        contents[name] = data
    missing = {"config.yaml", "model.safetensors"} - set(listed)
    if missing:
        raise ModelError(f"{folder}/manifest.json: does not list {' and '.join(sorted(missing))}")
    return contents


def _read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    if path.is_symlink():
        raise ModelError(f"{path}: is a link; a model folder holds no links")
    try:
        data = path.read_bytes()
        value = json.loads(data)
        sound = _canonical(value) == data
        if sound:
            check_format(value.get("format"), path.parent)
            listed = value["files"]
            sound = all(isinstance(e["bytes"], int) and isinstance(e["sha256"], str) for e in listed.values())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise ModelError(f"{path}: checksum mismatch, the manifest was changed or damaged; copy the whole folder again")
    return listed  # type: ignore[no-any-return]


def _config(folder: Path, contents: Mapping[str, bytes]) -> Config:
    where = f"{folder}/config.yaml"
    try:
        value = yaml.parse(contents["config.yaml"].decode(), where)
        if not isinstance(value, dict):
            raise ConfigError(where, ["must be a mapping of settings"])
        return configs.validate(value, where)
    except UnicodeDecodeError:
        raise ModelError(f"{where}: is not UTF-8") from None


def tensors(folder: Path, name: str) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(folder / name)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{folder / name}: is not a safetensors file: {error}") from None


def fill(model: nn.Module, weights: Mapping[str, Tensor], where: str, parts: Sequence[str] = ()) -> None:
    """Put weights into a model, or into some parts of it; their names and shapes must fit exactly."""

    def meant(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        begin = tuple(f"{part}." for part in parts)
        return {name: x for name, x in tensors.items() if not parts or name in parts or name.startswith(begin)}

    wanted, weights = meant(unique_weights(model)), meant(weights)
    problems = [
        f"no weight's name begins with '{part}'"
        for part in parts
        if not any(name == part or name.startswith(f"{part}.") for name in wanted)
    ]
    problems += [f"'{name}' is missing" for name in wanted.keys() - weights.keys()]
    problems += [f"'{name}' is not a weight of this model" for name in weights.keys() - wanted.keys()]
    problems += [
        f"'{name}' is {tuple(weights[name].shape)}, the model needs {tuple(p.shape)}"
        for name, p in wanted.items()
        if name in weights and weights[name].shape != p.shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ModelError(f"{where}: does not fit the model of the config: {'; '.join(sorted(problems)[:3])}{more}")
    with torch.no_grad():
        for name, p in wanted.items():
            p.copy_(weights[name])


# -- the checkpoints of a run -----------------------------------------------------------------------------------------


def steps(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    folder = run / "checkpoints"
    found = [p for p in folder.iterdir() if STEP.fullmatch(p.name)] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def latest(run: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and what was passed over on the way to it with the reason.

    One of another format is whole, but not for this version: it is refused, so that no new run takes its place.
    """
    ignored: list[str] = []
    for folder in reversed(steps(run)):
        try:
            verify(folder, training=True)
            return folder, ignored
        except FormatError:
            raise
        except ModelError as error:
            ignored.append(str(error))
    return None, ignored


def average(folders: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in float64."""
    every = [tensors(folder, "model.safetensors") for folder in folders]
    return {
        name: torch.stack([weights[name].double() for weights in every]).mean(0).to(first.dtype)
        for name, first in every[0].items()
    }
