"""The same numbers as metrics.jsonl, as TensorBoard events (extra: tensorboard)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.core.errors import MissingExtra


@contextmanager
def events(folder: Path, wanted: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Something that takes the values of reports, and writes them into event files in a folder if that is wanted."""
    if not wanted:
        yield lambda values: None
        return
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboardX", "tensorboard", "runtime.tensorboard") from None
    writer = SummaryWriter(str(folder))

    def add(values: dict[str, Any]) -> None:
        for key, value in values.items() if "kind" in values else ():
            if key not in ("kind", "step") and isinstance(value, int | float):
                writer.add_scalar(f"{values['kind']}/{key}", value, values["step"])
        writer.flush()

    try:
        yield add
    finally:
        writer.close()  # flush() does not wait for what its thread has yet to write
