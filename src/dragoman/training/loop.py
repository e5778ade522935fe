"""The training loop as a generator: `run(config, folder)` yields a Report for everything that happens; nothing prints.

    prepare data → build or resume → for each step: gradient, update; now and then: log, validate, save → finish

Of several ranks (`torchrun`) rank 0 prepares the data and broadcasts the result; from then on all ranks yield the same
reports, and rank 0 writes.
"""

from __future__ import annotations

import base64
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.config import Config
from dragoman.core import files, yaml
from dragoman.core.formats import check_run_format
from dragoman.core.processes import handle_signal
from dragoman.inference.device import select_device
from dragoman.training import distributed, prepare, tokenizer_learning
from dragoman.training.distributed import RankGroup
from dragoman.training.prepare import TrainingData
from dragoman.training.report import Report
from dragoman.training.run_folder import RunFolder, check_allowed_keys
from dragoman.training.trackers.tensorboard import open_tensorboard
from dragoman.training.trainer import Trainer


def run(config: Config, folder: Path | None = None, *, allow_change: Sequence[str] = ()) -> Iterator[Report]:
    """Train as a config says, in `folder` or runs/NAME; a run that is already there is resumed. Yields reports.

    `allow_change` names options that may differ from those the run was started with.
    """
    with distributed.join_ranks(select_device(config.runtime.device), config.training.rank_timeout) as ranks:
        run_folder = RunFolder(folder or Path("runs") / config.name, is_writer=ranks.is_rank0)
        tensorboard = open_tensorboard(run_folder.path / "tensorboard", config.runtime.tensorboard and ranks.is_rank0)
        with run_folder.lock(), tensorboard as record:
            for report in _run(config, run_folder, allow_change, ranks):
                if report.kind != "step":
                    run_folder.log(f"step {report.step} {report.kind}: {report.message or report.values}")
                record(report.values)
                yield report


def _run(config: Config, run_folder: RunFolder, allow_change: Sequence[str], ranks: RankGroup) -> Iterator[Report]:
    steps = config.training.steps
    if ranks.is_rank0:
        prepared = yield from _prepare_run(config, run_folder, allow_change)
    if ranks.world_size > 1:
        serialized = ranks.broadcast_from_rank0(lambda: serialize(prepared))
        prepared = prepared if ranks.is_rank0 else deserialize(serialized, run_folder)
    trainer = Trainer(prepared.config, run_folder, prepared.data, ranks)
    step, beginning = 0, "training begins"
    if prepared.checkpoint is None:
        trainer.start()
    else:
        trainer.resume(prepared.checkpoint, allow_change)
        step = trainer.progress.step
        if prepared.finished_step == step and not allow_change:
            trainer.restore_pointers(prepared.checkpoint)
            yield Report("end", step, steps, f"already finished at step {step}; the model is in {run_folder.path}")
            return
        yield from trainer.rewind_run_folder(prepared.checkpoint)
        beginning = f"resumed from step {step}"
    parameters = sum(p.numel() for p in trainer.model.parameters())
    trained = sum(p.numel() for p in trainer.parameters)
    size = f"{parameters:,} parameters" + (f", {trained:,} of them trained," if trained < parameters else "")
    where = f"{trainer.device}" if ranks.world_size == 1 else f"{ranks.world_size} ranks"
    yield Report("start", step, steps, f"{beginning}: {size} on {where}")
    with catch_stop_signals() as stop_signal:
        yield from trainer.train(ranks.synchronize_signals(stop_signal))
    yield from trainer.finish()


# -- before the first step ---------------------------------------------------------------------------------------------


@dataclass
class PreparedRun:
    """A run before its first step: the resolved config, the data, and the checkpoint to resume from."""

    config: Config
    data: TrainingData
    checkpoint: Path | None
    finished_step: int | None


def serialize(run: PreparedRun) -> dict[str, Any]:
    """A prepared run as JSON, for the other ranks; of its data only the codec is sent."""
    return {
        "config": run.config.to_yaml(),
        "codec": {name: base64.b64encode(data).decode() for name, data in run.data.codec.to_files().items()},
        "checkpoint": None if run.checkpoint is None else str(run.checkpoint),
        "finished_step": run.finished_step,
    }


def deserialize(run: Mapping[str, Any], run_folder: RunFolder) -> PreparedRun:
    """The prepared run on another rank; it reads the token stores that rank 0 has built, or builds its own."""
    config = configs.validate(yaml.parse(run["config"], "rank 0's config"), "rank 0's config")
    contents = {name: base64.b64decode(text) for name, text in run["codec"].items()}
    codec = configs.build_codec(config).restore(contents)
    data = prepare.prepare_data(config, codec, cache_folder(config, run_folder))
    checkpoint = None if run["checkpoint"] is None else Path(run["checkpoint"])
    return PreparedRun(config, data, checkpoint, run["finished_step"])


def cache_folder(config: Config, run_folder: RunFolder) -> Path:
    """Where token stores are kept: data.cache, or beside the run folder."""
    return Path(config.data.cache) if config.data.cache else run_folder.path.parent / ".cache"


def _prepare_run(
    config: Config, run_folder: RunFolder, allow_change: Sequence[str]
) -> Generator[Report, None, PreparedRun]:
    def notice(text: str) -> Report:
        return Report("notice", 0, config.training.steps, text)

    check_allowed_keys(allow_change)
    if run_folder.checkpoints.is_dir():
        check_run_format(run_folder.path)
    config = prepare.resolve_max_source(config)
    checkpoint, ignored = model_folder.latest_checkpoint(run_folder.path)
    for folder in (run_folder.path, run_folder.checkpoints):
        ignored += [f"{folder / name}: was never finished" for name in files.remove_temporary(folder)]
    for text in ignored:
        yield notice(f"ignored: {text}")
    for text in run_folder.set_aside_damaged_pointers():
        yield notice(text)
    if checkpoint is None:
        can_learn = tokenizer_learning.can_learn_while_checking(config)
        learner = tokenizer_learning.TokenizerLearner(config) if can_learn else None
        for text in prepare.check_data(config, learner.add if learner is not None else None):
            yield notice(text)
        codec, config = tokenizer_learning.load_or_learn_codec(config, learner)
    else:
        model = model_folder.load(checkpoint)
        codec = model.codec
        if not tokenizer_learning.learns_tokenizers(config):
            config = tokenizer_learning.adopt_tokenizers(config, model.config)
        run_folder.check_config(config, allow_change)
    run_folder.write_config(config)
    data = prepare.prepare_data(config, codec, cache_folder(config, run_folder))
    for text in prepare.skipped_notices(data):
        yield notice(text)
    return PreparedRun(config, data, checkpoint, run_folder.finished_step)


@contextmanager
def catch_stop_signals() -> Iterator[Callable[[], int | None]]:
    """A function that returns the first stop signal (Ctrl-C, SIGTERM, SIGUSR1); a second Ctrl-C stops at once."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    with ExitStack() as stack:
        for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            stack.enter_context(handle_signal(kind, receive))
        yield lambda: received[0] if received else None
