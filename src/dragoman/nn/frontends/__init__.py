"""What the source is: tokens → (B, S, D). How it is encoded is the encoder's business. The folder is the registry."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from dragoman.core.registry import Registry


class Frontend(Protocol):
    """A padded source → vectors of width `d`."""

    d: int

    def __call__(self, source: Tensor) -> Tensor: ...


frontends: Registry[Frontend] = Registry("frontend", __name__)
