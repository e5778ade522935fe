"""Features that somebody else computed: arrays of (S, F) numbers by name.

    clips.npz/utterance-7      a member of an .npz, an array for each source; or a file of its own, utterance-7.npy
    clips.npz/7                row 7 of an .npz with all frames end to end: `feats` (frames, F) and `offsets`, where
                               row i is feats[offsets[i] : offsets[i + 1]]

    numbers ─with their slopes (`deltas`)→ ─normalized by utterance→ float16

`augment` plays the frames faster or slower and hides spans of time, and bands where that is asked for (frames.py): of
cepstra, unlike of energies, neighbors have little in common.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.modalities.archives import Archive, content, inside_of, where
from dragoman.modalities.frame_transforms import Looks, faster, normalized, with_deltas

if TYPE_CHECKING:
    from numpy.typing import NDArray

FRAMES, OFFSETS = "feats", "offsets"  # the members of an .npz with all frames end to end


@dataclass(frozen=True)
class FeatureModality:
    """Arrays of frames, read from files."""

    numbers: int = 13  # of each frame, as the files have them
    deltas: int = 0  # how often slopes are taken
    normalize: bool = True
    augments: bool = field(default=True, repr=False)
    looks: Looks = field(default=Looks(band_masks=0), repr=False)
    files: Sequence[str] = field(default=(), repr=False)

    kind, dtype = "frames", "<f2"

    @property
    def width(self) -> int:
        return self.numbers * (1 + self.deltas)

    def read(self, example: Example) -> NDArray[Any]:
        """(S, F)"""
        x = self._found(example)
        if x.ndim != 2 or not len(x) or x.dtype.kind not in "fiu" or not np.isfinite(x).all():
            raise wrong(example, f"is {x.dtype} of shape {x.shape}, not one or more frames of finite numbers")
        if x.shape[1] != self.numbers:
            raise wrong(
                example, f"has {x.shape[1]} numbers in a frame, not {self.numbers}; set model.frontend.numbers to that"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            x = with_deltas(x, self.deltas)
        if not np.isfinite(x).all():  # in float64 they were
            raise wrong(example, "has numbers beyond those of float32; scale them down")
        if not self.normalize and np.abs(x).max() > np.finfo(np.float16).max:
            raise wrong(example, "has numbers too large to keep; set model.frontend.normalize to true")
        return (normalized(x) if self.normalize else x).astype(np.float16)

    def _found(self, example: Example) -> NDArray[Any]:
        table, _, row = example.source.strip().rpartition("/")
        if row.isdecimal() and example.content is None:
            for place in where(example, self.files):
                found = inside_of(f"{table}/{FRAMES}" if table else FRAMES, place)
                frames = None if found is None else _rows(*found, example)
                if frames is not None:
                    return _row(frames, int(row), example)
        return opened(content(example, self.files), example)

    def blank(self) -> NDArray[Any]:
        return np.zeros((1, self.width), np.float16)

    def augment(self, x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Another look at (S, F) frames."""
        speed = self.looks.speed(rng)
        if speed != 1.0:
            x = faster(x.astype(np.float32), speed)
        return self.looks.masked(x, rng).astype(np.float16)

    def state(self) -> dict[str, bytes]:
        return {}


def wrong(example: Example, what: str) -> DataError:
    return DataError(f"'{example.source}' {what}", example.file or None, example.line or None)


def opened(data: bytes, example: Example) -> NDArray[Any]:
    """An array from the bytes of an .npy file."""
    try:
        return array_of(data)
    except (ValueError, EOFError, MemoryError, OverflowError, SyntaxError) as error:
        raise wrong(example, f"is not an array that can be read ({error})") from None


def array_of(data: bytes) -> NDArray[Any]:
    array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


Table = tuple["NDArray[Any]", "NDArray[Any]"]


def _rows(archive: Archive, name: str, example: Example) -> Table | None:
    try:
        return _table(archive, name, name.removesuffix(FRAMES) + OFFSETS)
    except Exception as error:  # a damaged archive makes its reader raise whatever it stumbles over
        raise wrong(example, f"cannot be read ({error})") from None


@lru_cache(maxsize=8)  # read once, not for each of its rows; an archive that changed is another one
def _table(archive: Archive, frames_in: str, offsets_in: str) -> Table | None:
    """The frames and offsets of an .npz that holds all sources end to end; None: it is another kind of file."""
    feats, offsets = archive.read(frames_in), archive.read(offsets_in)
    if feats is None or offsets is None:
        return None
    frames, places = array_of(feats), array_of(offsets)
    rising = places.ndim == 1 and len(places) > 1 and places.dtype.kind in "iu" and bool((np.diff(places) >= 0).all())
    if not rising or places[0] < 0 or places[-1] > len(frames):
        raise ValueError(f"'{offsets_in}' does not say where the rows of {len(frames):,} frames begin")
    return frames, places


def _row(table: Table, row: int, example: Example) -> NDArray[Any]:
    frames, places = table
    if row + 1 >= len(places):
        raise wrong(example, f"is not there: the file has {len(places) - 1:,} rows, counted from 0")
    return frames[places[row] : places[row + 1]]
