"""The training loop, as a generator: `run(config, folder)` yields a Report for everything that happens.

    prepare data → build or resume → for each step: gradient, update; now and then: log, validate, save → finish

Nothing here draws or prints: a command line shows the reports, a test asserts on them. At any moment the newest whole
checkpoint holds all that is needed to go on exactly, so a killed process loses at most the steps since.

Of several ranks (`torchrun`) the first prepares and tells the others what it found; from then on all of them yield the
same reports, and the first one writes.
"""

from __future__ import annotations

import base64
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.config import Config
from dragoman.core import files, yaml
from dragoman.inference import device
from dragoman.text import codec as codecs
from dragoman.training import distributed, prepare
from dragoman.training.distributed import Ranks
from dragoman.training.prepare import Prepared
from dragoman.training.report import Report
from dragoman.training.run_folder import RunFolder
from dragoman.training.trackers import tensorboard
from dragoman.training.trainer import Trainer


def run(config: Config, folder: Path | None = None, *, allow_change: Sequence[str] = ()) -> Iterator[Report]:
    """Train as a config says; in a folder that holds a run already, go on with it."""
    with distributed.joined(device.pick(config.runtime.device), config.training.rank_timeout) as ranks:
        place = RunFolder(folder or Path("runs") / config.name, writes=ranks.first)
        events = tensorboard.events(place.path / "tensorboard", config.runtime.tensorboard and ranks.first)
        with place.locked(), events as record:
            for report in _run(config, place, allow_change, ranks):
                if report.kind != "step":
                    place.log(f"step {report.step} {report.kind}: {report.message or report.values}")
                record(report.values)
                yield report


def _run(config: Config, place: RunFolder, allow_change: Sequence[str], ranks: Ranks) -> Iterator[Report]:
    steps = config.training.steps
    if ranks.first:
        opened = yield from _open(config, place, allow_change)
    if ranks.count > 1:
        words = ranks.from_first(lambda: told(opened))
        opened = opened if ranks.first else read(words, place)
    trainer = Trainer(opened.config, place, opened.prepared, ranks)
    found = opened.found
    if found is None:
        trainer.begin()
    else:
        trainer.resume(found, allow_change)
    at = trainer.progress.step
    if found is not None and opened.finished == at and not allow_change:
        yield Report("end", at, steps, f"already finished at step {at}; the model is in {place.path}")
        return
    if found is not None:
        trainer.rewind(found)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    said = f"resumed from step {at}" if found is not None else "training begins"
    where = f"{trainer.device}" if ranks.count == 1 else f"{ranks.count} ranks"
    yield Report("start", at, steps, f"{said}: {parameters:,} parameters on {where}")
    with interruptible() as asked:
        yield from trainer.train(ranks.listen(asked))
    yield from trainer.finish()


# -- what there is before the first step -------------------------------------------------------------------------------


@dataclass
class Opened:
    """A run before its first step: the config as it was settled, the data, the checkpoint to go on from."""

    config: Config
    prepared: Prepared
    found: Path | None
    finished: int | None


def told(opened: Opened) -> dict[str, Any]:
    """What the first rank tells the others of it, as JSON holds it."""
    texts = {name: base64.b64encode(data).decode() for name, data in opened.prepared.codec.files().items()}
    found = None if opened.found is None else str(opened.found)
    return {"config": opened.config.text(), "codec": texts, "found": found, "finished": opened.finished}


def read(value: dict[str, Any], place: RunFolder) -> Opened:
    """What another rank makes of that; the cache has the token stores by now, where all see one file system."""
    config = configs.validate(yaml.parse(value["config"], "rank 0's config"), "rank 0's config")
    files = {name: base64.b64decode(text) for name, text in value["codec"].items()}
    part, form = config.tokenizer, config.data.normalization
    readers = configs.modality(config), configs.second_source(config)
    codec = codecs.restore(part.source, part.target or part.source, part.joint, form, files, *readers)
    found = None if value["found"] is None else Path(value["found"])
    return Opened(config, prepare.prepare(config, codec, cache_of(config, place)), found, value["finished"])


def cache_of(config: Config, place: RunFolder) -> Path:
    return Path(config.data.cache) if config.data.cache else place.path.parent / ".cache"


def _open(config: Config, place: RunFolder, allow_change: Sequence[str]) -> Generator[Report, None, Opened]:
    """Examine and prepare all there is, and say what was noticed."""

    def notice(text: str) -> Report:
        return Report("notice", 0, config.training.steps, text)

    place.check_format()
    config = prepare.settled(config)
    found, ignored = model_folder.latest(place.path)
    for folder in (place.path, place.checkpoints):
        ignored += [f"{folder / name}: was never finished" for name in files.sweep(folder)]
    for text in ignored:
        yield notice(f"ignored: {text}")
    if found is None:  # nothing is lost with an old config that trained no step worth keeping
        for text in prepare.examine(config):
            yield notice(text)
        codec, config = prepare.open_codec(config)
    else:
        codec = model_folder.load(found).codec
        if config.tokenizer.load or config.training.start_from:
            config = prepare.adopt(config, model_folder.load(found).config)
    place.settle(config, allow_change, fresh=found is None)
    prepared = prepare.prepare(config, codec, cache_of(config, place))
    for text in prepare.skipped(prepared):
        yield notice(text)
    return Opened(config, prepared, found, place.finished)


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
