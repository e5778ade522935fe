"""The data types that pass between the parts, and the contracts of the parts.

B sentences, K hypotheses of each, S source positions, T target positions, D width, V vocabulary.

    text ─tokenizer→ ids ─batching→ Batch ─frontend→ (B, S, D) ─encoder→ Memory ─decoder→ Output ─search→ Hypothesis
    file ─modality→ numbers (S, F) ─┘

A second source (a question and an image) becomes a Memory by a frontend and an encoder of its own; the two memories are
then concatenated, so that decoders see no difference.

A decoder maps *embedded* tokens to hidden vectors o; embedding and output layer belong to the model around it. Its
state is any nesting of dataclasses, tuples and lists whose tensors lead with (sentence, hypothesis), see tree.py.
`step` consumes its state and may write into it; positions in it are tensors, never Python ints.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
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
    source_ids: tuple[int, ...] | None = None  # of a source that is tokenized already (by a server), </s> included

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every target that counts as right."""
        return self.references or (self.target or "",)


class Modality(Protocol):
    """How a source that is not text is read: a file → F numbers at each of S positions (frames, rows of pixels).

    The repr contains every option that the numbers depend on.
    """

    @property
    def kind(self) -> str:
        """What a source is, for displays and uploads: image, audio, video, features, or a name of your own."""

    @property
    def width(self) -> int:
        """F, the numbers at each position."""

    @property
    def dtype(self) -> str:
        """The numpy dtype in which the token store keeps the numbers."""

    @property
    def has_augmentation(self) -> bool:
        """Whether training sees a random variant of each source."""

    def read(self, example: Example) -> NDArray[Any]:
        """The (S, F) numbers of an example's source; DataError if the file is missing or damaged."""

    def blank(self) -> NDArray[Any]:
        """An empty source of the smallest size."""

    def augment(self, x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """A random variant of (S, F) numbers for training, with at most a few more positions."""


@dataclass
class Segments:
    """The layout of the rows of a batch, padded or packed. Only attention and recurrence use it.

    Padded, (B, S, ·): a row's positions come first, padding after them. Packed, (1, N, ·): the rows are concatenated
    and fill all N positions, row i from starts[i] to starts[i+1] − 1.
    """

    lengths: Tensor  # (B,)
    starts: Tensor | None = None  # (B + 1,) where packed
    positions: Tensor | None = None  # (1, N), where packed: the position of each vector in its row
    max_length: int = 0  # an upper bound of the lengths, known without asking the device

    def mask(self, size: int) -> Tensor:
        """(B, S): the padding mask, true where a position is real."""
        import torch

        return torch.arange(size, device=self.lengths.device)[None, :] < self.lengths[:, None]

    def mean(self, x: Tensor) -> Tensor:
        """(B, S, D) → (B, D): the mean over the real positions, zeros where there are none."""
        total = x.masked_fill(~self.mask(x.shape[1])[..., None], 0.0).sum(1)
        return total / self.lengths.clamp(min=1)[:, None].to(x.dtype)


@dataclass
class PackedBatch:
    """The pairs of a batch concatenated, (1, N) and (1, M) ids; rows of padding fill the ends."""

    source: Tensor  # (1, N)
    sources: Segments
    target: Tensor  # (1, M): the decoder's input
    gold: Tensor  # (1, M): what it must predict; <pad> where nothing is
    targets: Segments


@dataclass
class Batch:
    """Padded ids of some rows; `target` runs from <s> to </s>, `lines` are the rows' line numbers in the data."""

    source: Tensor  # (B, S) ids, or (B, S, F) numbers
    source_lengths: Tensor  # (B,)
    target: Tensor  # (B, T + 1)
    target_lengths: Tensor  # (B,) including <s> and </s>
    lines: list[int] = field(default_factory=list)
    token_labels: Tensor | None = None  # (B, S) to predict at the source's own positions; <pad>: nothing
    packed: PackedBatch | None = None  # the same without padding, where it is packed already
    second_source: Tensor | None = None  # a second source, as the first
    second_source_lengths: Tensor | None = None  # (B,)

    def __len__(self) -> int:
        return int(self.source.shape[0])

    @property
    def tokens(self) -> int:
        """Tokens to predict, </s> included: what a loss is divided by."""
        labeled = 0 if self.token_labels is None else int((self.token_labels != PAD).sum())
        return int(self.target_lengths.sum()) - len(self) + labeled

    @property
    def area(self) -> int:
        """The padded positions of the longest side, which memory grows with."""
        sides = (self.source, self.target, self.second_source)
        return len(self) * max(int(side.shape[1]) for side in sides if side is not None)

    @property
    def encoder_inputs(self) -> tuple[Tensor, ...]:
        """The arguments of Seq2Seq.encode: the source and its lengths, and those of a second source if there is one."""
        if self.second_source is None or self.second_source_lengths is None:
            return self.source, self.source_lengths
        return self.source, self.source_lengths, self.second_source, self.second_source_lengths

    def slice_rows(self, start: int, stop: int) -> Batch:
        """The rows from start to stop, without padding that they do not need, and without a packed form."""
        source_lengths, target_lengths = self.source_lengths[start:stop], self.target_lengths[start:stop]
        source = self.source[start:stop, : int(source_lengths.max())]
        target = self.target[start:stop, : int(target_lengths.max())]
        token_labels = None if self.token_labels is None else self.token_labels[start:stop, : source.shape[1]]
        batch = Batch(source, source_lengths, target, target_lengths, self.lines[start:stop], token_labels)
        if self.second_source is not None and self.second_source_lengths is not None:
            batch.second_source_lengths = self.second_source_lengths[start:stop]
            batch.second_source = self.second_source[start:stop, : int(batch.second_source_lengths.max())]
        return batch

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device, without its packed form; copies do not wait."""
        import torch

        tensors = {name: x for name, x in vars(self).items() if isinstance(x, torch.Tensor)}
        moved: dict[str, Any] = {name: x.to(device, non_blocking=True) for name, x in tensors.items()}
        return replace(self, packed=None, **moved)


@dataclass
class Memory:
    """What an encoder hands to a decoder: a state for every source position, and what sums them up."""

    states: Tensor  # (B, S, D): h_1 .. h_S
    lengths: Tensor  # (B,)
    summary: Tensor  # (B, D): one vector for the whole source
    final: tuple[Tensor, ...] | None = None  # the last state of a recurrent encoder, (L, B, D) each
    source: Tensor | None = None  # (B, S): the source's ids, for copying
    values: Tensor | None = None  # (B, S, D): what attention averages, where that is not the states (ConvS2S)
    packed: Segments | None = None  # where the states are packed, (1, N, D); without a summary
    second_source_start: Tensor | None = None  # (B,): the index of the first state of a second source

    @property
    def mask(self) -> Tensor:
        """(B, S): the padding mask, true where a source position is real."""
        return Segments(self.lengths).mask(self.states.shape[1])


@dataclass
class Output:
    """What a decoder computes: hidden vectors, and attention weights where they are cheap or recorded."""

    o: Tensor  # (B, T, D), or (B, K, D) from a step
    attention: Tensor | None = None  # (B, T, S): the soft alignment
    # For the loss: "prefix", o at the source positions; "choice", log p of sampled attention; "penalty", terms to add,
    # (B, T) each; "ctc", the encoder's CTC loss, (B,).
    extras: dict[str, Tensor] = field(default_factory=dict)


class Capacity(NamedTuple):
    """The size of a decoding state: hypotheses of each sentence, and target positions."""

    hypotheses: int
    length: int


class Encoder(Protocol):
    """(B, S, D_in) → Memory. `d` is the width of its states."""

    d: int

    def __call__(self, x: Tensor, segments: Segments) -> Memory: ...


class Decoder(Protocol):
    """Embedded target tokens → hidden vectors, all at once or one step at a time; `d` is their width."""

    d: int

    def start(self, memory: Memory, capacity: Capacity) -> Any:
        """The state before the first token."""

    def step(self, y: Tensor, state: Any) -> tuple[Output, Any]:
        """The output for embedded tokens y (B, K, D_in), and the state after them."""

    def __call__(self, y: Tensor, memory: Memory) -> Output: ...  # y (B, T, D_in)


class Step(Protocol):
    """All that a search sees of a model: tokens (B, K) and a state → log p (B, K, V) and the next state."""

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search. Scores are log-probabilities: higher is better."""

    tokens: list[int]  # without <s> and </s>
    log_probs: list[float]  # one for each token, and one for </s> where the output ended with it; [] if not computed
    score: float  # their sum under the length rule
    finish_reason: str  # "eos": </s> was chosen; "length": the limit was reached; "no_valid_token": nothing was allowed
    sum_log_probs: float | None = None  # where log_probs is not computed

    @property
    def total(self) -> float:
        """log p of the whole sequence, without the length rule."""
        return sum(self.log_probs) if self.sum_log_probs is None else self.sum_log_probs
