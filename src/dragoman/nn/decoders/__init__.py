"""Embedded target tokens and a Memory → hidden vectors, one file for each kind. The folder is the registry."""

from __future__ import annotations

from dragoman.core.registry import Registry
from dragoman.core.types import Decoder

decoders: Registry[Decoder] = Registry("decoder", __name__)
