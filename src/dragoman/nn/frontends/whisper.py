"""Sound as Whisper reads it: 100 log-mel frames a second become 50 vectors by two convolutions.

    x (S, F) ─3, gelu→ (S, D) ─3, stride 2, gelu→ (S/2, D)

S is the same for every sound, 3000 for a window of 30 s, and silence is read like speech: every position is real.

B batch, S frames, F bins, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import gelu

from dragoman.core.types import Modality, Segments
from dragoman.modalities.whisper import FRAMES_PER_SECOND, WhisperAudioModality
from dragoman.nn.frontends import PartOptions, frontends

SECONDS = 30


@frontends.register("whisper")
class WhisperFrontend(nn.Module):
    """Log-mel frames of a window of 30 s, subsampled to a half as in Whisper: a sound of 1 s costs as much as 30 s."""

    stride, shift = 2, 1 / FRAMES_PER_SECOND

    def __init__(
        self,
        size: int,
        d: int,
        *,
        bins: Annotated[int, Field(ge=4, le=256)] = 80,  # of the mel scale; 128 in large-v3
        seconds: Annotated[int, Field(ge=1, le=3600)] = SECONDS,  # to which every sound is padded or cut
    ) -> None:
        super().__init__()
        self.d, self.seconds = d, seconds
        self.conv1 = nn.Conv1d(size, d, 3, padding=1)
        self.conv2 = nn.Conv1d(d, d, 3, stride=2, padding=1)
        for convolution in (self.conv1, self.conv2):  # as in features.py
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")

    @staticmethod
    def build_modality(options: PartOptions, files: Sequence[str]) -> Modality:
        return WhisperAudioModality(**options, search_paths=tuple(files))

    @staticmethod
    def default_max_length(options: PartOptions) -> int:
        return frame_count(options)

    @staticmethod
    def max_vectors(options: PartOptions, length: int) -> int:
        return frame_count(options) // WhisperFrontend.stride

    def embed_source(self, source: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """(B, S, F) frames → (B, S/2, D), all of them real; what follows the window is left out"""
        S = self.seconds * FRAMES_PER_SECOND
        x = source[:, :S].transpose(1, 2).to(self.conv1.weight.dtype)  # (B, F, S)
        x = gelu(self.conv2(gelu(self.conv1(x))))  # (B, D, S/2)
        return x.transpose(1, 2), Segments(segments.lengths.new_full((len(x),), x.shape[2]))

    def position_labels(self, length: int) -> list[str]:
        """When each vector starts, such as "0.04 s"; a source longer than the window has more labels than vectors."""
        count = max(length, self.seconds * FRAMES_PER_SECOND)
        return [f"{j * self.shift:.2f} s" for j in range(0, count, self.stride)]

    def length_unit(self, stride: int) -> str:
        return ""


def frame_count(options: PartOptions) -> int:
    """The frames of the window, from the options of a frontend."""
    return int(options.get("seconds", SECONDS)) * FRAMES_PER_SECOND
