"""Bytes as text in a page: base64, compressed where that makes it smaller; page/data_blocks.js decodes them."""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import TypedDict

GZIP = 16 + zlib.MAX_WBITS
LEAST_GAIN = 0.98  # of the size: compression that gains less costs more time than it saves


class DataBlock(TypedDict):
    """A text with what is needed to decode and check it."""

    encoding: str  # gzip or none
    size: int  # of the bytes
    sha256: str
    text: str


def encode_block(data: bytes) -> DataBlock:
    """Return bytes as a data block."""
    smallest = min((_compress(data, strategy) for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY)), key=len)
    is_compressed = len(smallest) <= LEAST_GAIN * len(data)
    return {
        "encoding": "gzip" if is_compressed else "none",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "text": base64.b64encode(smallest if is_compressed else data).decode(),
    }


def _compress(data: bytes, strategy: int) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, GZIP, 9, strategy)
    return compressor.compress(data) + compressor.flush()
