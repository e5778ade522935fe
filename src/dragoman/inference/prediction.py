"""What a pipeline returns for a source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from dragoman.search import Trace


@dataclass(frozen=True)
class Prediction:
    """One output; `alternatives` are the next best. Scores are log-probabilities: higher is better."""

    text: str
    score: float  # under the search's length rule
    log_prob: float  # of the whole sequence, a fused language model and CTC included
    tokens: list[str]
    log_probs: list[float]  # of each token, and of </s> where the output ended with it; [] if not asked for
    finish_reason: str  # "eos"; "length", the limit; "no_valid_token", constraints allow nothing; "empty_source"
    source_tokens: list[str]
    source_truncated: bool = False  # the source was too long and only its beginning was read
    alternatives: list[Prediction] = field(default_factory=list)
    attention: np.ndarray | None = None  # (target tokens with </s>, source tokens), on request
    media_preview: dict[str, Any] | None = field(default=None, repr=False)  # with attention: the picture of the source
    trace: Trace | None = None  # what the beam kept and dropped at each step, on request
    ids: list[int] = field(default_factory=list, repr=False)  # the tokens' ids

    @property
    def token_count(self) -> int:
        """The tokens that log_prob sums over, </s> included where the output ended with it; a label has none."""
        return len(self.log_probs) or len(self.tokens) + (self.finish_reason == "eos")

    def __repr__(self) -> str:
        count = len(self.alternatives)
        more = f", {count} alternative{'' if count == 1 else 's'}" if count else ""
        more += f", attention {self.attention.shape}" if self.attention is not None else ""
        more += f", finish_reason '{self.finish_reason}'" if self.finish_reason != "eos" else ""
        return f"<Prediction {self.text!r}: log p {self.log_prob:.3f}{more}>"
