"""The checkpoints of a run: written on rank 0, and averaged at the end.

    replay frame → folder step-N → the pointers `last` and `best` → old checkpoints are removed

The frame comes first: a process that is killed between the two repeats both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from dragoman.checkpoint import kept_examples, model_folder, streaming
from dragoman.core import files
from dragoman.inference.pipeline import Pipeline
from dragoman.training import replay, sharding
from dragoman.training.report import Metrics
from dragoman.training.state import PROGRESS, STATE, serialize_progress, serialize_state, state_tensors
from dragoman.training.validation import is_better

if TYPE_CHECKING:
    from dragoman.training.trainer import Trainer


def write_checkpoint(trainer: Trainer, folder: Path, is_best: bool) -> None:
    """Write a checkpoint on rank 0, while the others wait; of a sharded model, they hand over their parts."""
    if trainer.is_sharded:
        _write_sharded(trainer, folder, is_best)
    else:
        trainer.ranks.broadcast_from_rank0(lambda: _write_whole(trainer, folder, is_best))


def _write_whole(trainer: Trainer, folder: Path, is_best: bool) -> None:
    if trainer.replay_examples:
        with trainer.evaluation_pipeline(trainer.weights()) as pipeline:
            _record_replay_frame(trainer, pipeline)
    _make_place(trainer, folder)
    extra = serialize_state(trainer.progress, trainer.model, trainer.optimizer, trainer.average)
    extra |= kept_examples.to_files(trainer.data.kept_examples)
    model_folder.save(folder, trainer.config, trainer.weights(), trainer.data.codec, extra, trainer.base)
    _point_to(trainer, folder, is_best)


def _write_sharded(trainer: Trainer, folder: Path, is_best: bool) -> None:
    """Rank 0 writes one tensor after another, each of which all ranks gather."""
    ranks = trainer.ranks
    if trainer.replay_examples:
        with trainer.evaluation_pipeline(trainer.weights()) as pipeline:
            ranks.broadcast_from_rank0(lambda: _record_replay_frame(trainer, pipeline))
    ranks.broadcast_from_rank0(lambda: _make_place(trainer, folder))
    weights, state = trainer.weights(), state_tensors(trainer.model, trainer.optimizer, trainer.average)
    with ranks.explain_failures():
        if ranks.is_rank0:
            extra = {PROGRESS: serialize_progress(trainer.progress)}
            extra |= kept_examples.to_files(trainer.data.kept_examples)
            lazy_weights, lazy_state = sharding.lazy_tensors(weights), sharding.lazy_tensors(state)
            streaming.save_model(folder, trainer.config, lazy_weights, trainer.data.codec, extra, {STATE: lazy_state})
        else:
            for x in (*weights.values(), *state.values()):
                sharding.gather_tensor(x)
    ranks.broadcast_from_rank0(lambda: _point_to(trainer, folder, is_best))


def _record_replay_frame(trainer: Trainer, pipeline: Pipeline) -> None:
    frame = replay.replay_frame(pipeline, trainer.replay_examples, trainer.progress.step)
    trainer.run_folder.record(frame, "replay.jsonl")


def _make_place(trainer: Trainer, folder: Path) -> None:
    trainer.run_folder.flush_records()
    if folder.exists():
        files.remove_folder(folder)


def _point_to(trainer: Trainer, folder: Path, is_best: bool) -> None:
    trainer.run_folder.write_pointer("last", folder.name)
    if is_best:
        trainer.run_folder.write_pointer("best", folder.name)
    best = model_folder.read_pointer(trainer.run_folder.path, "best")
    old = model_folder.list_checkpoints(trainer.run_folder.path)[: -trainer.options.keep]
    for other in [*old, *trainer.run_folder.checkpoints.glob("average-*")]:
        if other.name != best:
            files.remove_folder(other)


# -- the end -----------------------------------------------------------------------------------------------------------


def checkpoint_names(trainer: Trainer) -> list[str]:
    """The names of the checkpoints in the run folder, the oldest first."""
    return [folder.name for folder in model_folder.list_checkpoints(trainer.run_folder.path)]


def is_saved(trainer: Trainer) -> bool:
    """Whether the newest checkpoint in the run folder is that of the current step."""
    return checkpoint_names(trainer)[-1:] == [f"step-{trainer.progress.step}"]


def average_checkpoints(trainer: Trainer) -> tuple[Metrics, bool]:
    """Average the last checkpoints, saved as best if validation improves: the values, and whether kept."""
    options, progress = trainer.options, trainer.progress
    names = trainer.ranks.broadcast_from_rank0(lambda: checkpoint_names(trainer))[-options.average :]
    values: Metrics = {"kind": "average", "step": progress.step, "checkpoints": len(names)}
    if len(names) == 1:
        return values, False
    mean = model_folder.average_weights([trainer.run_folder.checkpoints / name for name in names])
    if trainer.data.valid is not None:
        values |= trainer.validate_weights(mean)
        trainer.run_folder.record(values)
        if not is_better(options.best, values, progress.best_scores, options.validate_metrics):
            return values, False
    trainer.ranks.broadcast_from_rank0(lambda: _save_average(trainer, mean))
    return values, True


def _save_average(trainer: Trainer, mean: dict[str, Tensor]) -> None:
    folder = trainer.run_folder.checkpoints / f"average-{trainer.progress.step}"
    if folder.exists():
        files.remove_folder(folder)
    extra = kept_examples.to_files(trainer.data.kept_examples)
    model_folder.save(folder, trainer.config, mean, trainer.data.codec, extra)
    trainer.run_folder.write_pointer("best", folder.name)
