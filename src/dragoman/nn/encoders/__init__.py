"""(B, S, D_in) → Memory, one file for each kind. The folder is the registry."""

from __future__ import annotations

from dragoman.core.registry import Registry
from dragoman.core.types import Encoder

encoders: Registry[Encoder] = Registry("encoder", __name__)
