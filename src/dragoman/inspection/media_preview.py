"""A preview of a source that is no text: its picture, and which encoder states lie where on it.

    image   the pixels after resize and crop      state first + r · columns + c is the cell in row r, column c
    audio   frames (S, F) as a gray picture,      state first + j covers the fraction spans[j] of its width
            loud is dark, low bands at the bottom
    video   the pixels of its frames              per_frame states of each frame, one after the other

The preview is JSON: pictures are data URLs. Of two sources the first that is no text is previewed; states outside of
its range belong to the other source. PNG is encoded here with zlib: audio has a preview where Pillow is not installed.
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
from dragoman.inference.inputs import ModelInput, Source
from dragoman.inference.pipeline import Pipeline
from dragoman.modalities.audio import FRAME_SHIFT
from dragoman.nn.multi_source import SecondSource
from dragoman.nn.seq2seq import Seq2Seq

MAX_WIDTH = 2000  # pixels of a spectrogram; longer audio is averaged
WHITE_PERCENTILE, BLACK_PERCENTILE = 2, 98  # of all values of a spectrogram

MediaPreview = dict[str, Any]

# -- from a source -----------------------------------------------------------------------------------------------------


def build_media_preview(pipeline: Pipeline, model_input: ModelInput, *, encoded: bool = True) -> MediaPreview | None:
    """Build the preview of the first source with a picture, by encoder states or (not `encoded`) by encoder inputs."""
    first = 0
    for modality, x, part in _model_sources(pipeline, model_input):
        stride = part.stride if encoded else 1
        if modality is None:
            first += math.ceil(len(x) / stride)
            continue
        preview = _preview_modality(modality, np.asarray(x), part.frontend, stride)
        if preview is not None:
            return preview | {"first": first}
        first += len(part.frontend.position_labels(len(x))[::stride])
    return None


def source_labels(pipeline: Pipeline, model_input: ModelInput) -> list[str]:
    """Return a label for each vector that the encoders read, of both sources."""
    labels: list[str] = []
    for modality, x, part in _model_sources(pipeline, model_input):
        labels += pipeline.codec.source.pieces(x) if modality is None else part.frontend.position_labels(len(x))
    return labels


def _model_sources(
    pipeline: Pipeline, model_input: ModelInput
) -> Iterator[tuple[Modality | None, Source, Seq2Seq | SecondSource]]:
    """Yield (modality or None for text, encoded source, model part with frontend and encoder) of each source."""
    model, codec = first_member(pipeline.model), pipeline.codec
    yield codec.modality, model_input.source, model
    if model_input.second_source is not None and model.second_source is not None:
        modality = None if isinstance(codec.second_source, str) else codec.second_source
        yield modality, model_input.second_source, model.second_source


def first_member(model: Any) -> Seq2Seq:
    """Return the single model: itself, the first member of an ensemble, or the model of a shallow fusion."""
    while not isinstance(model, Seq2Seq):
        model = model.members[0] if isinstance(model, Ensemble) else model.model
    return model


def _preview_modality(modality: Any, x: NDArray[Any], frontend: Any, stride: int) -> MediaPreview | None:
    """Build the preview of a source by its modality's kind; None for an unknown kind, or a stride that merges cells."""
    if modality.kind in ("audio", "features"):
        return preview_audio(x, frontend.stride * stride, getattr(frontend, "shift", FRAME_SHIFT))
    if stride > 1:  # several cells or frames are one state
        return None
    if modality.kind == "image":
        pixels = x.reshape(modality.size, modality.size, 3)
        return {"kind": "image", "src": data_url(pixels), "rows": frontend.grid_size, "columns": frontend.grid_size}
    if modality.kind == "video":
        frames = x.reshape(-1, modality.size, modality.size, 3)
        per_frame = len(frontend.position_labels(len(frames))) // len(frames)
        return {"kind": "video", "frames": [data_url(frame) for frame in frames], "per_frame": per_frame}
    return None


def preview_audio(x: NDArray[Any], stride: int, shift: float) -> MediaPreview:
    """Preview audio frames (S, F) as a spectrogram; `stride` frames are one state, `shift` seconds lie between two."""
    count = math.ceil(len(x) / stride)
    edges = [min(j * stride / len(x), 1.0) for j in range(count + 1)]
    spans = [[edges[j], edges[j + 1]] for j in range(count)]
    seconds = len(x) * shift
    return {"kind": "audio", "src": data_url(draw_spectrogram(x)), "seconds": seconds, "count": count, "spans": spans}


def draw_spectrogram(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Draw frames (S, F) as gray pixels (F, up to MAX_WIDTH): time to the right, low bands at the bottom."""
    starts = np.linspace(0, len(x), min(len(x), MAX_WIDTH), endpoint=False).astype(int)
    sums = np.add.reduceat(x.astype(np.float64), starts, axis=0)
    means = sums / np.diff([*starts, len(x)])[:, None]
    white, black = np.percentile(means, (WHITE_PERCENTILE, BLACK_PERCENTILE))
    darkness = np.clip((means - white) / ((black - white) or 1.0), 0.0, 1.0)
    return np.asarray((255 * (1 - darkness)).round(), np.uint8).T[::-1]


# -- as files ----------------------------------------------------------------------------------------------------------


def data_url(pixels: NDArray[np.uint8]) -> str:
    """Encode pixels as the data URL of a PNG."""
    return f"data:image/png;base64,{base64.b64encode(encode_png(pixels)).decode()}"


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode (H, W) gray or (H, W, 3) color pixels as a PNG file."""
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
