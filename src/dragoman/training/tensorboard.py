"""The same numbers as metrics.jsonl, as TensorBoard events (extra: tensorboard)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.core.errors import MissingExtra


class Events:
    """Writes event files into a folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboardX", "tensorboard", "runtime.tensorboard") from None
        self.writer = SummaryWriter(str(folder))

    def add(self, values: dict[str, Any]) -> None:
        if "kind" not in values:
            return
        for key, value in values.items():
            if key not in ("kind", "step") and isinstance(value, int | float):
                self.writer.add_scalar(f"{values['kind']}/{key}", value, values["step"])
        self.writer.flush()
