"""Precomputed features: (S, F) arrays, named by the sources.

    clips.npz/utterance-7      a member of an .npz, one array per source; or a file of its own, utterance-7.npy
    clips.npz/7                row 7 of an .npz with all frames end to end: `feats` (frames, F) and `offsets`; row i is
                               feats[offsets[i] : offsets[i + 1]]

    numbers ─append deltas→ ─normalize per utterance→ float16

`augment` changes the speed and masks spans of time; it masks bands only on request
(frame_transforms.py): neighboring cepstral coefficients, unlike energies, have little in common.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.types import Example
from dragoman.modalities.archives import Archive, candidate_roots, locate_member, read_content, source_error
from dragoman.modalities.frame_transforms import FrameAugmentation, append_deltas, normalize_utterance

Frames = NDArray[np.float16]  # (S, F)
AnyArray = NDArray[Any]  # as a file has it, before its shape and type are checked
Table = tuple[AnyArray, NDArray[np.integer]]  # all frames end to end, and the offsets of the rows

FRAMES_MEMBER, OFFSETS_MEMBER = "feats", "offsets"  # the members of an .npz with all frames end to end


@dataclass(frozen=True)
class FeatureModality:
    """Arrays of feature frames, read from files."""

    numbers: int = 13  # of each frame, as the files have them
    deltas: int = 0  # order of the deltas that are appended
    normalize: bool = True
    has_augmentation: bool = field(default=True, repr=False)
    augmentation: FrameAugmentation = field(default=FrameAugmentation(band_masks=0), repr=False)
    search_paths: Sequence[str] = field(default=(), repr=False)

    kind, dtype = "features", "<f2"

    @property
    def width(self) -> int:
        return self.numbers * (1 + self.deltas)

    def read(self, example: Example) -> Frames:
        x = self._load_array(example)
        if x.ndim != 2 or not len(x) or x.dtype.kind not in "fiu" or not np.isfinite(x).all():
            raise source_error(example, f"is {x.dtype} of shape {x.shape}, not one or more frames of finite numbers")
        if x.shape[1] != self.numbers:
            raise source_error(
                example, f"has {x.shape[1]} numbers in a frame, not {self.numbers}; set model.frontend.numbers to that"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            frames = append_deltas(x, self.deltas)
        if not np.isfinite(frames).all():  # finite in float64 only
            raise source_error(example, "has numbers beyond those of float32; scale them down")
        if not self.normalize and np.abs(frames).max() > np.finfo(np.float16).max:
            raise source_error(example, "has numbers too large for float16; set model.frontend.normalize to true")
        return (normalize_utterance(frames) if self.normalize else frames).astype(np.float16)

    def _load_array(self, example: Example) -> AnyArray:
        table_name, _, row = example.source.strip().rpartition("/")
        if row.isdecimal() and example.content is None:
            for root in candidate_roots(example, self.search_paths):
                member = locate_member(f"{table_name}/{FRAMES_MEMBER}" if table_name else FRAMES_MEMBER, root)
                array = None if member is None else _read_row(*member, int(row), example)
                if array is not None:
                    return array
        return parse_array(read_content(example, self.search_paths), example)

    def blank(self) -> Frames:
        return np.zeros((1, self.width), np.float16)

    def augment(self, x: Frames, rng: np.random.Generator) -> Frames:
        return self.augmentation.apply(x, rng)


def parse_array(data: bytes, example: Example) -> AnyArray:
    """The array in the bytes of an .npy file; DataError names the example."""
    try:
        return load_npy(data)
    except (ValueError, EOFError, MemoryError, OverflowError, SyntaxError) as error:
        raise source_error(example, f"is not an array that can be read ({error})") from None


def load_npy(data: bytes) -> AnyArray:
    """The array in the bytes of an .npy file, without pickles."""
    array: AnyArray = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


def _read_row(archive: Archive, name: str, row: int, example: Example) -> AnyArray | None:
    try:
        table = _load_table(archive, name, name.removesuffix(FRAMES_MEMBER) + OFFSETS_MEMBER)
    except Exception as error:  # damaged archives raise all kinds of errors
        raise source_error(example, f"cannot be read ({error})") from None
    if table is None:
        return None
    frames, offsets = table
    if row + 1 >= len(offsets):
        raise source_error(example, f"is not there: the file has {len(offsets) - 1:,} rows, counted from 0")
    return frames[offsets[row] : offsets[row + 1]]


@lru_cache(maxsize=8)  # read once, not for each row; a modified archive is another object
def _load_table(archive: Archive, frames_name: str, offsets_name: str) -> Table | None:
    """The frames and offsets of an .npz that holds all sources end to end; None for any other .npz."""
    frames_data, offsets_data = archive.read(frames_name), archive.read(offsets_name)
    if frames_data is None or offsets_data is None:
        return None
    frames, offsets = load_npy(frames_data), load_npy(offsets_data)
    is_integer = offsets.ndim == 1 and len(offsets) > 1 and offsets.dtype.kind in "iu"
    if not is_integer or (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > len(frames):
        raise ValueError(f"'{offsets_name}' does not say where the rows of {len(frames):,} frames begin")
    return frames, offsets
