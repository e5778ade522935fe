"""An index of a model's training lines: the decoder's state before each target token, sorted by that token.

    training pairs ─teacher forcing→ o_n (D) before token y_n ─P→ k_n = P o_n / ‖P o_n‖ (d numbers in float16)

    RUN/blame/<24 hex>/             a token store of each corpus, with its texts (data/store)
    RUN/blame/index.safetensors     keys (N, d) and lines (N,), sorted by token; offsets (V + 1,) of the tokens' blocks;
                                    projection (D, d); in its metadata what it was built from

A search reads one block: the positions at which the training wanted the same token. The index belongs to one
checkpoint; of data with more than MAX_POSITIONS target tokens it holds a random sample of the lines.

N target positions, L lines, V vocabulary, D width of the decoder's output, d width of a key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.checkpoint import model_folder
from dragoman.config import compatibility
from dragoman.core import files
from dragoman.core.errors import DataError, UserError
from dragoman.core.formats import FORMAT
from dragoman.core.types import Batch, Example
from dragoman.data.batching import collate
from dragoman.data.objectives import TrainingRow
from dragoman.data.readers import find_reader, read_pairs, spec_files
from dragoman.data.store import cache, store
from dragoman.data.store.store import TokenStore
from dragoman.engines.length_batches import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, batch_by_length
from dragoman.inference.pipeline import Pipeline

INDEX_FILE = "index.safetensors"
KEY_WIDTH = 64
MAX_POSITIONS = 3_000_000  # 384 MB of keys
BLOCK_LINES = 50_000  # that are sorted by length at once
SAMPLE_SEED = 0

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TrainingIndex:
    """The training lines of a model, and the decoder's states at their target positions."""

    path: Path
    stores: list[TokenStore]
    files: list[str]  # the training data as the config names them
    line_count: int  # lines that are in the index
    keys: Any  # (N, d) float16: a lazy slice of the file
    lines: Any  # (N,): the number of the line of each key, over all corpora
    offsets: Integers  # (V + 1,)
    projection: Tensor  # (D, d)

    @property
    def total(self) -> int:
        """All lines that the model was trained on."""
        return sum(map(len, self.stores))

    def nearest(self, token: int, o: Tensor, count: int) -> tuple[Integers, NDArray[np.float32]]:
        """Return the lines that have a token where the decoder's state was most similar to o, and the cosines."""
        start, stop = int(self.offsets[token]), int(self.offsets[token + 1])
        if start == stop:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        query = project(o[None].cpu().float(), self.projection)[0].numpy()
        cosines = self.keys[start:stop].astype(np.float32) @ query
        best = np.argpartition(-cosines, count)[:count] if count < len(cosines) else np.arange(len(cosines))
        return self.lines[start:stop][best].astype(np.int64), cosines[best]

    def locate(self, line: int) -> tuple[int, int]:
        """Return the corpus of a line, and its row in the corpus' token store."""
        for corpus, one in enumerate(self.stores):
            if line < len(one):
                return corpus, line
            line -= len(one)
        raise IndexError(line)

    def row(self, line: int) -> TrainingRow:
        """Return the ids of a line as in training."""
        corpus, row = self.locate(line)
        return stored_row(self.stores[corpus], row)

    def example(self, line: int) -> Example:
        """Return the texts of a line, with its file as the config names it, and its number there."""
        corpus, row = self.locate(line)
        return replace(self.stores[corpus].example(row), file=self.files[corpus])


def stored_row(one: TokenStore, row: int) -> TrainingRow:
    """Return the ids of a stored pair or text as a training row."""
    second = None if one.second_sources is None else one.second_sources[row]
    return TrainingRow(one.sources[row] if one.is_paired else [], one.targets[row], second_source=second)


def project(o: Tensor, projection: Tensor) -> Tensor:
    """Project states (N, D) to unit keys (N, d)."""
    return torch.nn.functional.normalize(o @ projection, dim=-1)


def batch_rows(rows: Sequence[TrainingRow], device: torch.device) -> Iterator[tuple[list[int], Batch]]:
    """Yield padded batches of rows of similar length, with their indices among the rows."""
    lengths = [max(len(row.source), len(row.target), len(row.second_source or ())) for row in rows]
    for indices in batch_by_length(lengths, GPU_BATCH_TOKENS if device.type == "cuda" else CPU_BATCH_TOKENS):
        yield indices, collate([rows[i] for i in indices], indices).to(device)


# -- where an index is, and which model it is of -----------------------------------------------------------------------


def index_folder(pipeline: Pipeline) -> Path:
    """Return the folder of a model's index, in its run; a model that is no folder raises UserError."""
    path = pipeline.path
    if path is None or not path.is_dir():
        raise UserError("this model is no run folder, so its training lines are unknown; name the run folder")
    return (path.parent.parent if path.parent.name == "checkpoints" else path) / "blame"


def model_digest(folder: Path) -> str:
    """Return the digest of a model folder's manifest, which covers weights, config and tokenizers."""
    digest: str = json.loads(files.read_plain(folder / "manifest.json", model_folder.MAX_MANIFEST_BYTES))["sha256"]
    return digest


def open_index(pipeline: Pipeline) -> TrainingIndex:
    """Open the index of a model's training lines; UserError if there is none, or it is of another checkpoint."""
    folder = index_folder(pipeline)
    path, remedy = folder / INDEX_FILE, "build it with: dragoman blame MODEL SOURCE"
    if not path.is_file() or path.is_symlink():
        raise UserError(f"there is no index of this model's training lines; {remedy}")
    try:
        file: Any = safetensors.safe_open(path, framework="numpy")
        facts = json.loads(file.metadata()["index"])
        if facts["format"] != FORMAT or facts["model"] != model_digest(pipeline.path or folder):
            raise UserError(f"{path}: is the index of another checkpoint; {remedy}")
        return TrainingIndex(
            path,
            [store.open_store(folder / str(name)) for name in facts["stores"]],
            [str(name) for name in facts["files"]],
            int(facts["line_count"]),
            file.get_slice("keys"),
            file.get_slice("lines"),
            file.get_tensor("offsets"),
            torch.from_numpy(file.get_tensor("projection")),
        )
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise UserError(f"{path}: is damaged ({error}); delete the folder {folder} and {remedy}") from None


# -- building ----------------------------------------------------------------------------------------------------------


def build_index(
    pipeline: Pipeline, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> TrainingIndex:
    """Build the index of a model's training lines, or open it if nothing has changed since it was built.

    `on_progress` gets the number of lines that are done, and of all. Training data that are missing, or have changed
    since the training, raise UserError.
    """
    folder = index_folder(pipeline)
    stores = [_open_corpus(pipeline, corpus.path, folder) for corpus in pipeline.config.data.train]
    _check_unchanged(pipeline, stores)
    names = [one.folder.name for one in stores]
    try:
        index = open_index(pipeline)
        if [one.folder.name for one in index.stores] == names:
            return index
    except UserError:
        pass  # there is none, or it is of another checkpoint
    chosen = sample_lines(np.concatenate([one.targets.lengths(np.arange(len(one))) for one in stores]))
    tensors = _compute_keys(pipeline, stores, chosen, on_progress)
    facts = {
        "format": FORMAT,
        "model": model_digest(pipeline.path or folder),
        "stores": names,
        "files": [corpus.path for corpus in pipeline.config.data.train],
        "line_count": len(chosen),
    }
    files.write_file(folder / INDEX_FILE, safetensors.numpy.save(tensors, {"index": json.dumps(facts)}))
    for old in folder.iterdir():  # of other data
        if old.is_dir() and not old.is_symlink() and old.name not in names:
            files.remove_folder(old)
    return open_index(pipeline)


def _open_corpus(pipeline: Pipeline, path: str, folder: Path) -> TokenStore:
    """Open or build the token store of a corpus with its texts."""
    config, objective = pipeline.config, pipeline.input_processor.objective

    def examples() -> Iterator[Example]:
        for example in read_pairs(path, columns=config.columns, on_error=config.data.on_error):
            for target in example.accepted:
                yield replace(example, target=target or None, references=())

    for file in spec_files(path):
        if not file.is_file():
            raise UserError(f"{file}: is missing, and without the training data no line can be named; put it back")
    return cache.open_or_build(
        spec_files(path),
        examples,
        pipeline.codec,
        folder,
        max_source=compatibility.max_source_length(config),
        max_target=config.data.max_target,
        keep_text=True,
        read_key=json.dumps([find_reader(path).read_key(path), str(config.columns), config.data.on_error]),
        objective=objective,
    )


def _check_unchanged(pipeline: Pipeline, stores: Sequence[TokenStore]) -> None:
    """Raise UserError if training data differ from what the run was trained on, as far as its own store is there."""
    path, config = pipeline.path, pipeline.config
    if path is None or path.parent.name != "checkpoints":
        return
    caches = Path(config.data.cache) if config.data.cache else path.parent.parent.parent / ".cache"
    try:
        trained = json.loads(files.read_plain(path / "training.json", model_folder.MAX_SMALL_BYTES))["data"]
        originals = [store.open_store(caches / str(name)) for name in trained[: len(stores)]]
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return  # the model was shared without it, or the cache was emptied: nothing to compare with
    for one, original, corpus in zip(stores, originals, config.data.train, strict=False):
        same = np.array_equal(one.lines, original.lines) and np.array_equal(one.targets.data, original.targets.data)
        if not same or not np.array_equal(one.sources.data, original.sources.data):
            raise UserError(
                f"{corpus.path}: has changed since the model was trained on it, so its lines are not those behind the "
                "answers; put the old file back, or train again"
            )


def sample_lines(lengths: Integers) -> Integers:
    """Return the lines to index: all, or a random sample that has about MAX_POSITIONS of their target positions."""
    lines = np.arange(len(lengths))
    share = MAX_POSITIONS / max(int(lengths.sum()), 1)
    return lines if share >= 1 else lines[np.random.default_rng(SAMPLE_SEED).random(len(lines)) < share]


@torch.inference_mode()
def _compute_keys(
    pipeline: Pipeline, stores: Sequence[TokenStore], chosen: Integers, on_progress: Callable[[int, int], None]
) -> dict[str, NDArray[Any]]:
    """Compute the tensors of the index for the chosen lines."""
    first_lines = np.cumsum([0, *map(len, stores)])
    model, done = pipeline.model.eval(), 0
    parts = [chosen[(chosen >= a) & (chosen < b)] - a for a, b in pairwise(first_lines)]
    gathered = [one.targets.gather(rows) for one, rows in zip(stores, parts, strict=True)]
    tokens = np.concatenate([ids for ids, _ in gathered]).astype(np.int64)
    lengths = np.concatenate([each for _, each in gathered])
    order = np.argsort(tokens, kind="stable")
    slots = np.empty_like(order)
    slots[order] = np.arange(len(order))
    starts = np.cumsum(lengths) - lengths
    projection = build_projection(int(model.decoder.d))
    keys = np.empty((len(tokens), projection.shape[1]), np.float16)
    for corpus, rows in enumerate(parts):
        before = sum(map(len, parts[:corpus]))
        for block in range(0, len(rows), BLOCK_LINES):
            some = [stored_row(stores[corpus], row) for row in rows[block : block + BLOCK_LINES].tolist()]
            for indices, batch in batch_rows(some, pipeline.device):
                o = model.decode(batch.target[:, :-1], model.encode(*batch.encoder_inputs)).o
                k = project(o.float(), projection.to(o.device)).cpu().numpy()
                for i, row in enumerate(indices):
                    at = before + block + row
                    keys[slots[starts[at] : starts[at] + lengths[at]]] = k[i, : lengths[at]]
                done += len(indices)
                on_progress(done, len(chosen))
    return {
        "keys": keys,
        "lines": np.repeat(chosen, lengths)[order].astype(np.int32),
        "offsets": np.searchsorted(tokens[order], np.arange(len(pipeline.codec.target) + 1)),
        "projection": projection.numpy(),
    }


def build_projection(d: int) -> Tensor:
    """Return an orthonormal random projection (D, d) to at most KEY_WIDTH numbers, the same one for a width."""
    if d <= KEY_WIDTH:
        return torch.eye(d)
    random: Tensor = torch.linalg.qr(torch.randn(d, KEY_WIDTH, generator=torch.Generator().manual_seed(SAMPLE_SEED)))[0]
    return random.contiguous()
