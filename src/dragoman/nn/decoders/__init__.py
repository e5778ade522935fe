"""Decoders: embedded target tokens and a Memory → hidden vectors. Every file of this folder registers its own."""

from __future__ import annotations

from dragoman.core.registry import Registry
from dragoman.core.types import Decoder

decoders: Registry[Decoder] = Registry("decoder", __name__)
