"""The training loop, as a generator: `run(config, folder)` yields a Report for everything that happens.

    prepare data → build or resume → for each step: gradient, update; now and then: log, validate, save → finish

Nothing here draws or prints: a command line shows the reports, a test asserts on them. At any moment the newest whole
checkpoint holds all that is needed to go on exactly, so a killed process loses at most the steps since.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman import checkpoint
from dragoman.config import Config
from dragoman.core import files
from dragoman.training import preparation, tensorboard
from dragoman.training.report import Report
from dragoman.training.run_folder import RunFolder
from dragoman.training.trainer import Trainer


def run(config: Config, folder: Path | None = None, *, allow_change: Sequence[str] = ()) -> Iterator[Report]:
    """Train as a config says; in a folder that holds a run already, go on with it."""
    place = RunFolder(folder or Path("runs") / config.name)
    with place.locked(), tensorboard.events(place.path / "tensorboard", config.runtime.tensorboard) as record:
        for report in _run(config, place, allow_change):
            if report.kind != "step":
                place.log(f"step {report.step} {report.kind}: {report.message or report.values}")
            record(report.values)
            yield report


def _run(config: Config, place: RunFolder, allow_change: Sequence[str]) -> Iterator[Report]:
    steps = config.training.steps

    def notice(text: str) -> Report:
        return Report("notice", 0, steps, text)

    found, ignored = checkpoint.latest(place.path)
    for folder in (place.path, place.checkpoints):
        ignored += [f"{folder / name}: was never finished" for name in files.sweep(folder)]
    for text in ignored:
        yield notice(f"ignored: {text}")
    if found is None:  # nothing is lost with an old config that trained no step worth keeping
        for text in preparation.examine(config):
            yield notice(text)
        codec, config = preparation.open_codec(config)
    else:
        codec = checkpoint.load(found).codec
        if config.tokenizer.load or config.training.start_from:
            config = preparation.adopt(config, checkpoint.load(found).config)
    place.settle(config, allow_change, fresh=found is None)
    cache = Path(config.data.cache) if config.data.cache else place.path.parent / ".cache"
    prepared = preparation.prepare(config, codec, cache)
    for text in preparation.skipped(prepared):
        yield notice(text)

    trainer = Trainer(config, place, prepared)
    if found is None:
        trainer.begin()
    else:
        trainer.resume(found, check_data="data" not in allow_change)
    at = trainer.progress.step
    if found is not None and place.finished == at and not allow_change:
        yield Report("end", at, steps, f"already finished at step {at}; the model is in {place.path}")
        return
    if found is not None:
        trainer.rewind(found)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    said = f"resumed from step {at}" if found is not None else "training begins"
    yield Report("start", at, steps, f"{said}: {parameters:,} parameters on {trainer.device}")
    with interruptible() as asked:
        yield from trainer.train(asked)
    yield from trainer.finish()


@contextmanager
def interruptible() -> Iterator[Callable[[], int | None]]:
    """Ctrl-C, SIGTERM and SIGUSR1 ask for a stop after the step; a second Ctrl-C stops at once."""
    got: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # signals reach the main thread alone
        return

    def note(number: int, frame: Any) -> None:
        if got and number == signal.SIGINT:
            raise KeyboardInterrupt
        got.append(number)

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {kind: signal.signal(kind, note) for kind in kinds}
    try:
        yield lambda: got[0] if got else None
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
