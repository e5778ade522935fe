"""The numbers of metrics.jsonl as TensorBoard events (extra: tensorboard)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.core.errors import MissingExtra
from dragoman.training.report import Metrics


@contextmanager
def open_tensorboard(folder: Path, enabled: bool) -> Iterator[Callable[[Metrics], None]]:
    """A function that writes the values of a report into event files in a folder, or does nothing if not enabled."""
    if not enabled:
        yield lambda values: None
        return
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboardX", "tensorboard", "runtime.tensorboard") from None
    writer = SummaryWriter(str(folder))

    def add(values: Metrics) -> None:
        for key, value in values.items() if "kind" in values else ():
            if key not in ("kind", "step") and isinstance(value, int | float):
                writer.add_scalar(f"{values['kind']}/{key}", value, values["step"])
        writer.flush()

    try:
        yield add
    finally:
        writer.close()  # flush() does not wait for the writer's thread
