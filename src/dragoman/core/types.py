"""The things that pass between the parts, and the contracts of the parts that pass them.

B sentences, K hypotheses of each, S source positions, T target positions, D width, V vocabulary.

    text ─tokenizer→ ids ─batching→ Batch ─frontend→ (B, S, D) ─encoder→ Memory ─decoder→ Output ─search→ Hypothesis
    file ─medium→ numbers (S, F) ─┘

There may be a second source (a question and an image), which becomes a Memory by parts of its own; the two are then
joined to one, so that nothing behind the encoder sees a difference.

A decoder maps *embedded* tokens to hidden vectors o; embedding and output layer belong to the model around it. Its
state is any nesting of dataclasses, tuples and lists whose tensors lead with (sentence, hypothesis), see tree.py.
`step` consumes the state it is given and may write into it; positions in it are tensors, never Python ints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # the same four ids begin every vocabulary
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")


@dataclass(frozen=True)
class Example:
    """One pair as read from a file; the target is None where only a source is given."""

    source: str
    target: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    file: str = ""
    line: int = 0
    source_truncated: bool = False  # the line was longer than a line may be, and only its beginning is here
    references: tuple[str, ...] = ()  # every accepted target, the first included, where several may be given
    second_source: str = ""  # the second source of a model that reads two
    content: bytes | None = None  # of the file that the source stands for, where nobody may name one (a server)
    second_source_content: bytes | None = None

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every target that counts as right."""
        return self.references or (self.target or "",)


class Modality(Protocol):
    """A kind of source that is no text: a file → F numbers at each of S positions (frames, rows of pixels).

    Its repr names all that its numbers depend on.
    """

    @property
    def kind(self) -> str:
        """What it is to those who draw it or have it sent: image, sound, frames, clip, or what they do not know."""
        ...

    @property
    def width(self) -> int:
        """F"""
        ...

    @property
    def dtype(self) -> str:
        """Of the numbers where they are kept, as numpy writes it."""
        ...

    @property
    def augments(self) -> bool:
        """Whether training looks at them in ever new ways."""
        ...

    def read(self, example: Example) -> NDArray[Any]:
        """(S, F); DataError where the file is missing or damaged."""
        ...

    def blank(self) -> NDArray[Any]:
        """A source with nothing in it, of the smallest size."""
        ...

    def augment(self, x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """One way to look at (S, F) numbers in training; a few more positions than before at most."""
        ...

    def state(self) -> dict[str, bytes]:
        """What was learned from the training data (means, say), as files of a model folder."""
        ...


@dataclass
class Segments:
    """Where the rows of a batch lie. Only attention and recurrence look at it.

    Padded, (B, S, ·): a row's positions come first, padding after them. Packed, (1, N, ·): the rows lie end to end and
    fill all N positions, row i from starts[i] to starts[i+1] − 1.
    """

    lengths: Tensor  # (B,)
    starts: Tensor | None = None  # (B + 1,) where packed
    places: Tensor | None = None  # (1, N): how far into its row each position stands
    longest: int = 0  # a bound on the lengths that the host knows

    def mask(self, size: int) -> Tensor:
        """(B, S): true where a position is real."""
        import torch

        return torch.arange(size, device=self.lengths.device)[None, :] < self.lengths[:, None]

    def mean(self, x: Tensor) -> Tensor:
        """(B, S, D) → (B, D): the mean over the real positions, zeros where there are none."""
        total = x.masked_fill(~self.mask(x.shape[1])[..., None], 0.0).sum(1)
        return total / self.lengths.clamp(min=1)[:, None].to(x.dtype)


@dataclass
class PackedBatch:
    """The pairs of a batch laid end to end, (1, N) and (1, M) ids; rows of padding fill what is left at the ends.

    `target` is what the decoder reads and `gold` what it is to say, <pad> where nothing counts.
    """

    source: Tensor  # (1, N)
    sources: Segments
    target: Tensor  # (1, M)
    gold: Tensor  # (1, M)
    targets: Segments


@dataclass
class Batch:
    """Padded ids of some rows; `target` runs from <s> to </s>, `lines` are the rows' places in the data.

    Where something is to be predicted at the source's own positions (tags, masked words), `marks` has it.
    """

    source: Tensor  # (B, S) ids, or (B, S, F) numbers
    source_lengths: Tensor  # (B,)
    target: Tensor  # (B, T + 1)
    target_lengths: Tensor  # (B,) including <s> and </s>
    lines: list[int] = field(default_factory=list)
    token_labels: Tensor | None = None  # (B, S); <pad> where nothing is to be predicted
    packed: PackedBatch | None = None  # the same without padding, where someone has made it already
    second_source: Tensor | None = None  # a second source, as the first
    second_source_lengths: Tensor | None = None  # (B,)

    def __len__(self) -> int:
        return int(self.source.shape[0])

    @property
    def tokens(self) -> int:
        """Tokens to predict, </s> included: what a loss is divided by."""
        marked = 0 if self.token_labels is None else int((self.token_labels != PAD).sum())
        return int(self.target_lengths.sum()) - len(self) + marked

    @property
    def area(self) -> int:
        """Padded positions of the longest side: what memory grows with."""
        sides = (
            [self.source, self.target] if self.second_source is None else [self.source, self.target, self.second_source]
        )
        return len(self) * max(int(side.shape[1]) for side in sides)

    @property
    def given(self) -> tuple[Tensor, ...]:
        """What an encoder reads: the source and its lengths, and those of a second where there is one."""
        if self.second_source is None or self.second_source_lengths is None:
            return self.source, self.source_lengths
        return self.source, self.source_lengths, self.second_source, self.second_source_lengths

    def rows(self, start: int, stop: int) -> Batch:
        """Some of the rows, with the padding they do not need cut off."""
        source_lengths, target_lengths = self.source_lengths[start:stop], self.target_lengths[start:stop]
        source = self.source[start:stop, : int(source_lengths.max())]
        target = self.target[start:stop, : int(target_lengths.max())]
        token_labels = None if self.token_labels is None else self.token_labels[start:stop, : source.shape[1]]
        found = Batch(source, source_lengths, target, target_lengths, self.lines[start:stop], token_labels)
        if self.second_source is not None and self.second_source_lengths is not None:
            found.second_source_lengths = self.second_source_lengths[start:stop]
            found.second_source = self.second_source[start:stop, : int(found.second_source_lengths.max())]
        return found

    def to(self, device: Any) -> Batch:
        def move(x: Tensor) -> Tensor:
            return x.to(device, non_blocking=True)

        return Batch(
            move(self.source),
            move(self.source_lengths),
            move(self.target),
            move(self.target_lengths),
            self.lines,
            None if self.token_labels is None else move(self.token_labels),
            second_source=None if self.second_source is None else move(self.second_source),
            second_source_lengths=None if self.second_source_lengths is None else move(self.second_source_lengths),
        )


@dataclass
class Memory:
    """What an encoder hands to a decoder: a state for every source position, and what sums them up."""

    states: Tensor  # (B, S, D): h_1 .. h_S
    lengths: Tensor  # (B,)
    summary: Tensor  # (B, D): one vector for the whole source
    final: tuple[Tensor, ...] | None = None  # the last state of a recurrent encoder, (L, B, D) each
    source: Tensor | None = None  # (B, S): the source's ids, for copying
    values: Tensor | None = None  # (B, S, D): what attention averages, where that is not the states (ConvS2S)
    packed: Segments | None = None  # where the states lie end to end, (1, N, D); there is no summary then
    second_source_start: Tensor | None = (
        None  # (B,): where the states of a second source begin, right behind those of the first
    )

    @property
    def mask(self) -> Tensor:
        """(B, S): true where a source position is real."""
        return Segments(self.lengths).mask(self.states.shape[1])


@dataclass
class Output:
    """What a decoder computes: hidden vectors, and where it looked if it can say so cheaply or is being watched."""

    o: Tensor  # (B, T, D), or (B, K, D) from a step
    attention: Tensor | None = None  # (B, T, S): the decoder's own word on alignment
    # What a loss may use: "prefix", o at the source's positions; "choice", log p of what was drawn on the way;
    # "penalty", terms to add, (B, T) each; "ctc", the loss of the encoder alone, (B,).
    extras: dict[str, Tensor] = field(default_factory=dict)


class Capacity(NamedTuple):
    """How much a decoding state must hold: hypotheses for each sentence, and target positions."""

    hypotheses: int
    length: int


class Encoder(Protocol):
    """(B, S, D_in) → Memory. `d` is the width of its states."""

    d: int

    def __call__(self, x: Tensor, segments: Segments) -> Memory: ...


class Decoder(Protocol):
    """Embedded target tokens → hidden vectors, all at once or one step at a time; `d` is their width."""

    d: int

    def start(self, memory: Memory, capacity: Capacity) -> Any: ...

    def step(self, y: Tensor, state: Any) -> tuple[Output, Any]: ...  # y (B, K, D_in)

    def __call__(self, y: Tensor, memory: Memory) -> Output: ...  # y (B, T, D_in)


class Step(Protocol):
    """All that a search sees of a model: tokens (B, K) and a state → log p (B, K, V) and the next state."""

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class Hypothesis:
    """One result of a search. Scores are log-probabilities: higher is better."""

    tokens: list[int]  # without <s> and </s>
    log_probs: list[float]  # one for each token, and one for </s> where it ended by itself
    score: float  # their sum under the length rule
    finish_reason: str  # "eos": </s> was chosen; "length": the limit was reached; "no_valid_token": nothing was allowed

    @property
    def total(self) -> float:
        """log p of the whole sequence."""
        return sum(self.log_probs)
