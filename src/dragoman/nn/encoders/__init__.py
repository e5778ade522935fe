"""Encoders: embedded sources (B, S, D_in) → Memory. Every file of this folder registers its own."""

from __future__ import annotations

from dragoman.core.registry import Registry
from dragoman.core.types import Encoder

encoders: Registry[Encoder] = Registry("encoder", __name__)
