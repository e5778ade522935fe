"""What a model saw or heard, for pictures of where it looked: the source's own picture, and which states lie where.

    image   the pixels after resize and crop      state first + r · columns + c is the cell in row r, column c
    sound   frames (S, F) as a gray picture,      state first + j covers the share spans[j] of its width
            loud is dark, low bands at the bottom
    clip    its frames' pixels                    per_frame states of each frame, one after the other

All of it is JSON: pictures are data URLs. Of two sources the first that is no text is shown; states outside of it are
the other one's. PNG is written here, by zlib alone: what a model heard can be shown where Pillow is not installed, and
the pixels are exactly those that were read. Who draws finds the way from weights to places in places.py.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.types import Modality
from dragoman.inference.ensemble import Ensemble
from dragoman.inference.inputs import Given
from dragoman.inference.pipeline import Pipeline
from dragoman.modalities.audio import SHIFT
from dragoman.nn.seq2seq import Seq2Seq

WIDEST = 2000  # pixels of a picture of sound; what is longer is averaged
FAINT, LOUD = 2, 98  # percentiles of all numbers that are white and black

Picture = dict[str, Any]

# -- from a source -----------------------------------------------------------------------------------------------------


def medium(pipeline: Pipeline, read: Given, *, encoded: bool = True) -> Picture | None:
    """The picture behind the states of a source, or behind the vectors that its encoder reads; None of a text."""
    first = 0
    for reader, x, part in _sides(pipeline, read):
        stride = part.stride if encoded else 1
        if reader is None:
            first += math.ceil(len(x) / stride)
            continue
        found = _drawn(reader, np.asarray(x), part.frontend, stride)
        if found is not None:
            return found | {"first": first}
        first += len(part.frontend.labels(len(x))[::stride])
    return None


def labels(pipeline: Pipeline, read: Given) -> list[str]:
    """What to call the vectors that the encoders read."""
    found: list[str] = []
    for reader, x, part in _sides(pipeline, read):
        found += pipeline.codec.source_pieces(x) if reader is None else part.frontend.labels(len(x))
    return found


def _sides(pipeline: Pipeline, read: Given) -> Iterator[tuple[Modality | None, Any, Any]]:
    """Each source: what reads it, where it is no text; what was read; the frontend and encoder that get it."""
    model, codec = first_of(pipeline.model), pipeline.codec
    yield codec.modality, read.source, model
    if read.second_source is not None:
        yield (
            None if isinstance(codec.second_source, str) else codec.second_source,
            read.second_source,
            model.second_source,
        )


def first_of(model: Any) -> Seq2Seq:
    """A single model; of several that work as one, the first, which the others agree with in what they read."""
    while not isinstance(model, Seq2Seq):
        model = model.members[0] if isinstance(model, Ensemble) else model.model
    return model


def _drawn(reader: Any, x: NDArray[Any], frontend: Any, stride: int) -> Picture | None:
    """None: the states are no places on a picture that is known here."""
    if reader.kind in ("sound", "frames"):
        return sound(x, frontend.stride * stride, getattr(frontend, "shift", SHIFT))
    if stride > 1:  # several cells or frames are one state
        return None
    if reader.kind == "image":
        pixels = x.reshape(reader.size, reader.size, 3)
        return {"kind": "image", "src": data_url(pixels), "rows": frontend.cells, "columns": frontend.cells}
    if reader.kind == "clip":
        frames = x.reshape(-1, reader.size, reader.size, 3)
        per_frame = len(frontend.labels(len(frames))) // len(frames)
        return {"kind": "clip", "frames": [data_url(frame) for frame in frames], "per_frame": per_frame}
    return None


def sound(x: NDArray[Any], stride: int, shift: float) -> Picture:
    """Frames (S, F), `stride` of them for each state, `shift` seconds from one to the next."""
    count = math.ceil(len(x) / stride)
    edges = [min(j * stride / len(x), 1.0) for j in range(count + 1)]
    spans = [[edges[j], edges[j + 1]] for j in range(count)]
    seconds = len(x) * shift
    return {"kind": "sound", "src": data_url(gray(x)), "seconds": seconds, "count": count, "spans": spans}


def gray(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Frames (S, F) as a picture (F, at most WIDEST): time to the right, low bands at the bottom, loud is dark."""
    starts = np.linspace(0, len(x), min(len(x), WIDEST), endpoint=False).astype(int)
    sums = np.add.reduceat(x.astype(np.float64), starts, axis=0)
    means = sums / np.diff([*starts, len(x)])[:, None]
    faint, loud = np.percentile(means, (FAINT, LOUD))
    dark = np.clip((means - faint) / ((loud - faint) or 1.0), 0.0, 1.0)
    return np.asarray((255 * (1 - dark)).round(), np.uint8).T[::-1]


# -- as files ----------------------------------------------------------------------------------------------------------


def data_url(pixels: NDArray[np.uint8]) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def png(pixels: NDArray[np.uint8]) -> bytes:
    """(H, W) gray or (H, W, 3) pixels, each as its difference from the one at its left, which packs better."""
    height, width = pixels.shape[:2]
    whole = pixels.reshape(height, width, -1)
    left = np.concatenate([np.zeros_like(whole[:, :1]), whole[:, :-1]], 1)
    lines = np.concatenate([np.ones((height, 1), np.uint8), (whole - left).reshape(height, -1)], 1)
    color = 2 if whole.shape[2] == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
