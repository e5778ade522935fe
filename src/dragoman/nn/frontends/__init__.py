"""Frontends: a source of any kind (tokens, an image, sound) → vectors (B, S, D) for the encoder.

Every file of this folder registers its own. The frontend of a source that is no text builds the modality that reads its
files (dragoman.modalities); the options of both are the frontend's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from torch import Tensor

from dragoman.core.registry import Part, Registry
from dragoman.core.types import Modality, Segments

PartOptions = Mapping[str, Any]  # the options of a frontend, as a config has them


class Frontend(Protocol):
    """Padded sources, (B, S) ids or (B, S, F) numbers → vectors (B, S', D) of width `d`."""

    d: int

    @staticmethod
    def build_modality(options: PartOptions, files: Sequence[str]) -> Modality | None:
        """The modality that reads the source files, also from folders and archives `files`; None: sources are text."""
        ...

    @staticmethod
    def default_max_length(options: PartOptions) -> int:
        """A usual maximum of source positions: the default of data.max_source is at least this."""
        ...

    @staticmethod
    def max_vectors(options: PartOptions, length: int) -> int:
        """The most vectors that a source of `length` positions becomes in training."""
        ...

    def embed_source(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """The vectors (B, S', D) of padded sources, and their new lengths."""
        ...

    def position_labels(self, length: int) -> list[str]:
        """Labels of the vectors of a source of `length` positions that is no text, for plots."""
        ...

    def length_unit(self, stride: int) -> str:
        """The unit in which lengths are shown, where a state covers `stride` vectors; empty: all lengths are equal."""
        ...


frontends: Registry[Frontend] = Registry("frontend", __name__)


def frontend_class(part: Part) -> type[Frontend]:
    """The class of a frontend, whose static methods answer before any is built."""
    return cast("type[Frontend]", frontends[part.name])
