"""What the source is: tokens, an image, sound → (B, S, D). How it is encoded is the encoder's business.

The folder is the registry. A frontend for what is no text brings the `reader` of its files (dragoman.modalities); its
constructor's options are all that a user sees of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from dragoman.core.registry import Registry
from dragoman.core.types import Modality, Segments


class Frontend(Protocol):
    """A padded source, (B, S) ids or (B, S, F) numbers → vectors of width `d`, and where they lie."""

    d: int

    @staticmethod
    def reader(options: Mapping[str, Any], files: Sequence[str]) -> Modality | None:
        """What reads the files that sources name, looked up in `files` too; None: sources are texts."""
        ...

    @staticmethod
    def longest(options: Mapping[str, Any]) -> int:
        """Positions that a source may well have; data.max_source is no less where a config does not say it."""
        ...

    @staticmethod
    def most(options: Mapping[str, Any], length: int) -> int:
        """The most vectors that training makes of a source of so many positions."""
        ...

    def read(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]: ...

    def labels(self, length: int) -> list[str]:
        """What to call the vectors made of a source of so many positions, where it is no text."""
        ...

    def unit(self, stride: int) -> str:
        """What a source's length is counted in where an encoder makes a state of `stride` vectors; '': nothing."""
        ...


frontends: Registry[Frontend] = Registry("frontend", __name__)
