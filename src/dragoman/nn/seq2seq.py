"""The whole model: p(y | x) = Π_t p(y_t | y_<t, x).

    source ─frontend→ x ─encoder→ memory ─decoder(embedded target)→ o ─output layer→ logits over the vocabulary

A second source is read by parts of its own, and its states join those of the first in the memory (multi_source.py).

With a head instead of a decoder, the encoder alone answers: labels for the source or its positions. With encoder `none`
and a decoder that reads the source as a prefix, it is one network over one sequence; without any source, a language
model. The constructor's keyword-only parameters are the `model:` section of a config. Search sees `start` and `step`.

B sentences, K hypotheses, S source and T target positions, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt
from dragoman.core.types import PAD, Batch, Capacity, Memory, Output, PackedBatch, Segments
from dragoman.nn.attention import record_attention
from dragoman.nn.ctc import CTC
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.frontends.tokens import Tokens
from dragoman.nn.heads import heads
from dragoman.nn.initialization import initializers
from dragoman.nn.kernels.entropy import linear_cross_entropy
from dragoman.nn.losses import agreeing, cross_entropy, divergence, score_function, token_log_probs
from dragoman.nn.multi_source import Second, SecondSource
from dragoman.nn.pointer_generator import Pointable, Pointer
from dragoman.nn.scores import scores

ONLY_PREFIX = "only a decoder that reads the source as a prefix can predict the source's own tokens"
MOMENTUM = 0.9  # of the baseline that drawn choices are compared with, as in Xu et al. 2015


class Predicted(NamedTuple):
    """Logits (B, N, V), what was to be predicted there (B, N; <pad>: nothing), and what the decoder says besides."""

    logits: Tensor
    gold: Tensor
    output: Output


@dataclass
class Pointing:
    """The state of a model that copies: the decoder's, and the source to point at."""

    decoder: Any
    source: Pointable


@dataclass
class Looking:
    """The state of a model that says where it looks: the one inside, and the weights of the last step."""

    inside: Any
    attention: Tensor | None  # (B, K, S); 1 on padding, as on what was looked at enough: nothing is missed there
    padding: Tensor | None = None  # (B, 1, S)


class Seq2Seq(nn.Module):
    """An encoder-decoder from its parts."""

    def __init__(
        self,
        source_size: int,
        target_size: int,
        second_source_size: int = 0,
        *,
        width: PositiveInt = 256,  # of embeddings, and of every part that does not say otherwise
        frontend: Annotated[Part, frontends] = Part("tokens"),
        encoder: Annotated[Part, encoders] = Part("transformer"),
        second_source: Second | None = None,  # the frontend and encoder of a second source
        decoder: Annotated[Part, decoders] | None = Part("transformer"),
        head: Annotated[Part, heads] | None = None,  # instead of a decoder
        tie: Literal["none", "output", "embeddings", "all"] = "output",  # which of the three tables are one
        scale: bool = True,  # the target's embeddings by √width
        output_bias: bool = True,
        pointer: Annotated[Part, scores] | None = None,  # the score of a pointer that copies from the source
        ctc: bool = False,  # a second output layer, on the encoder's states
        initializer: Annotated[Part, initializers] = Part("parts"),
    ) -> None:
        super().__init__()
        if (decoder is None) == (head is None):
            raise PartError("give a decoder or a head, one of the two (with a head, write decoder: null)")
        self.frontend: Any = frontends.build(frontend, source_size, width)
        self.encoder: Any = encoders.build(encoder, self.frontend.d)
        self.second_source = (
            None if second_source is None else SecondSource(second_source_size, width, self.encoder.d, second_source)
        )
        self.decoder: Any = None
        self.head: Any = None
        if decoder is not None:
            self.embedding = Tokens(target_size, width, scale=scale)
            self.decoder = decoders.build(decoder, width, self.encoder.d)
        if head is not None:
            self.head = heads.build(head, self.encoder.d)
        d = (self.head or self.decoder).d
        self.output = nn.Linear(d, target_size, bias=output_bias)
        nn.init.normal_(self.output.weight, std=d**-0.5)
        if output_bias:
            nn.init.zeros_(self.output.bias)
        self.pointer = self._pointer(pointer, width, source_size == target_size)
        if ctc and decoder is None:
            raise PartError("ctc reads the target from the encoder's states, and a head says labels: set it to false")
        if ctc and self.second_source is not None:
            raise PartError("ctc reads the target from the states of one source, and there are two: set it to false")
        self.ctc = CTC(self.encoder.d, target_size) if ctc else None
        initializers.build(initializer)(self)
        self.tie(tie, source_size, target_size, width)
        # What draws on its way needs a baseline to tell good draws from bad.
        drawing: list[Any] = [module for module in self.modules() if getattr(module, "samples", False)]
        self.fuses = True  # whether training computes output layer and loss in one, see kernels/entropy.py
        self.draws, self.discount = bool(drawing), float(drawing[0].discount) if drawing else 1.0
        self.baseline: Tensor | None
        self.register_buffer("baseline", torch.zeros(()) if self.draws else None)

    def _pointer(self, score: Part | None, width: int, joint: bool) -> Pointer | None:
        if score is None:
            return None
        if self.decoder is None:
            raise PartError("pointer needs a decoder; a head says labels, not words of the source")
        if self.second_source is not None:
            raise PartError("pointer copies from one source, and there are two: set it to null")
        if not joint or not isinstance(self.frontend, Tokens):
            raise PartError("pointer needs one joint vocabulary for source and target (tokenizer.joint: true)")
        return Pointer(self.decoder.d, width, self.encoder.d, score)

    def tie(self, how: str, source_size: int, target_size: int, width: int) -> None:
        """Share tables: `output` target and output, `embeddings` source and target, `all` the three of them."""
        if how in ("output", "all") and self.output.in_features != width and not (self.head and how == "output"):
            found = self.output.in_features
            raise PartError(
                f"tie: {how} needs a decoder of width {width} (the embedding's), not {found}; use tie: none"
            )
        if how in ("embeddings", "all") and (not isinstance(self.frontend, Tokens) or source_size != target_size):
            raise PartError(f"tie: {how} needs one joint vocabulary for source and target (tokenizer.joint: true)")
        if self.head is not None:
            if how == "all":
                self.output.weight = self.frontend.table.weight
            return
        if how in ("output", "all"):
            self.output.weight = self.embedding.table.weight
        if how in ("embeddings", "all"):
            self.frontend.table.weight = self.embedding.table.weight

    # -- what its positions allow ------------------------------------------------------------------------------------

    @property
    def is_decoder_only(self) -> bool:
        """Whether source and target stand in one sequence, so that they share its positions."""
        return getattr(self.decoder, "source", "") in ("prefix", "full_prefix")

    @property
    def has_bidirectional_prefix(self) -> bool:
        """Whether the source stands before the target in one sequence and is seen in both directions."""
        return getattr(self.decoder, "source", "") == "full_prefix"

    @property
    def max_source_positions(self) -> int | None:
        reach: int | None = getattr(self.encoder, "length", None)
        if reach is None and self.is_decoder_only and self.longest_target is not None:
            return self.longest_target // 2  # the target must have room, too
        return reach

    @property
    def longest_target(self) -> int | None:
        return getattr(self.decoder, "length", None)

    # -- all at once -------------------------------------------------------------------------------------------------

    def encode(
        self,
        source: Tensor,
        lengths: Tensor,
        second_source: Tensor | None = None,
        second_source_lengths: Tensor | None = None,
    ) -> Memory:
        memory: Memory = self.encoder(*self.frontend.read(source, Segments(lengths)))
        if self.second_source is not None:
            joined: Memory = self.second_source(memory, second_source, second_source_lengths)
            return joined
        memory.source = source
        return memory

    @property
    def stride(self) -> int:
        """How many of the vectors it reads the encoder makes one state of."""
        return int(getattr(self.encoder, "stride", 1))

    @property
    def max_second_source_positions(self) -> int | None:
        return None if self.second_source is None else self.second_source.length

    def labels(self, length: int) -> list[str]:
        """What to call the states made of a source of so many positions, where it is no text."""
        every: list[str] = self.frontend.labels(length)
        return every[:: self.stride]

    def ctc_log_probs(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """What the encoder alone hears: log p (B, S, V) at each state, and how many of these are real."""
        if self.ctc is None:
            raise PartError("this model was trained without ctc, so generation.ctc must be 0")
        return self.ctc(memory.states), memory.lengths

    def decode(self, target: Tensor, memory: Memory) -> Output:
        """Teacher forcing: hidden vectors for every next token of (B, T) given tokens."""
        output, _ = self._decode(target, memory)
        return output

    def _decode(self, target: Tensor, memory: Memory) -> tuple[Output, Tensor]:
        y = self.embedding(target)
        output: Output = self.decoder(y, memory)
        if self.pointer is None:
            return output, self.logits(output.o)
        log_p, a = self.pointer(self.logits(output.o), output.o, y, self.pointer.start(memory))
        return replace(output, attention=a if output.attention is None else output.attention), log_p

    def logits(self, o: Tensor) -> Tensor:
        return self.output(o)  # type: ignore[no-any-return]

    def forward(self, batch: Batch, inputs: Tensor | None = None) -> Predicted:
        """Logits for all that is to be predicted; `inputs` (B, T) stand in for the gold tokens the decoder reads."""
        if self.pointer is None:
            o, gold, output = self._hidden(batch, inputs)
            return Predicted(self.logits(o), gold, output)
        memory = self.encode(*batch.given)
        output, logits = self._decode(batch.target[:, :-1] if inputs is None else inputs, memory)
        self._listen(output, memory, batch)
        gold = batch.target[:, 1:]
        if batch.token_labels is not None:
            if "prefix" not in output.extras:
                raise PartError(ONLY_PREFIX)
            logits = torch.cat([self.logits(output.extras["prefix"]), logits], 1)
            gold = torch.cat([batch.token_labels, gold], 1)
        return Predicted(logits, gold, output)

    def _hidden(self, batch: Batch, inputs: Tensor | None) -> tuple[Tensor, Tensor, Output]:
        """o (B, N, D) and gold (B, N) for all that is to be predicted, before the output layer."""
        memory = self.encode(*batch.given)
        if self.head is not None:
            output: Output = self.head(memory)
            return output.o, self.head.gold(batch), output
        output = self.decoder(self.embedding(batch.target[:, :-1] if inputs is None else inputs), memory)
        self._listen(output, memory, batch)
        o, gold = output.o, batch.target[:, 1:]
        if batch.token_labels is not None:
            if "prefix" not in output.extras:
                raise PartError(ONLY_PREFIX)
            # One sequence: what is asked at the source's positions comes first.
            o, gold = torch.cat([output.extras["prefix"], o], 1), torch.cat([batch.token_labels, gold], 1)
        return o, gold, output

    def _listen(self, output: Output, memory: Memory, batch: Batch) -> None:
        """Add to what the decoder says what the encoder alone makes of a batch."""
        if self.ctc is not None:
            output.extras["ctc"] = self.ctc.loss(memory, batch)

    def loss(
        self,
        batch: Batch,
        smoothing: float = 0.0,
        *,
        r_drop: float = 0.0,
        ctc: float = 0.0,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """The summed loss of a batch, `ctc` of it that of the encoder alone.

        With `r_drop`, of two passes, and of how far they disagree (Liang et al. 2021).
        """
        twice = r_drop > 0 and self.training
        if self.fuses and torch.is_grad_enabled() and self.pointer is None and not self.draws and not twice:
            o, gold, output = self._hidden(batch, inputs)
            return mixed(self._fused_loss(o, gold, output, smoothing), output, ctc)
        first = self(batch, inputs)
        total = mixed(self._loss(first, smoothing), first.output, ctc)
        if twice:
            second = self(batch, inputs)
            # The paper's loss, halved, so that a token weighs what it weighs without.
            total = (total + mixed(self._loss(second, smoothing), second.output, ctc)) / 2
            total = total + r_drop / 2 * divergence(first.logits, second.logits, first.gold)
        return total

    def _fused_loss(self, o: Tensor, gold: Tensor, output: Output, smoothing: float) -> Tensor:
        """The same loss and gradient with the logits of few positions at a time, where nobody else asks for them."""
        x, y = o.flatten(0, 1), gold.flatten()
        if not o.is_cuda:  # which would have to be asked how many there are
            x, y = x[y != PAD], y[y != PAD]
        total = linear_cross_entropy(x, self.output.weight, self.output.bias, y, smoothing)
        if "penalty" in output.extras:
            total = total + (output.extras["penalty"] * (gold[:, -output.o.shape[1] :] != PAD)).sum()
        return total

    def _loss(self, found: Predicted, smoothing: float) -> Tensor:
        logits, gold, output = found
        total = cross_entropy(logits, gold, smoothing)
        real = gold[:, -output.o.shape[1] :] != PAD if output.o.shape[1] else gold[:, :0] != PAD
        if "penalty" in output.extras:
            total = total + (output.extras["penalty"] * real).sum()
        if "choice" in output.extras and self.baseline is not None:
            log_p = token_log_probs(logits, gold).detach()
            total = total + score_function(output.extras["choice"], log_p, self.baseline, real, self.discount)
            if self.training:
                mean = (log_p.sum() / real.sum().clamp(min=1)).to(self.baseline.dtype)
                share = torch.where(self.baseline.eq(0), 0.0, MOMENTUM)  # at first no reward is known yet
                self.baseline.copy_(share * self.baseline + (1 - share) * mean)
        return total

    # -- end to end, without padding ---------------------------------------------------------------------------------

    def packs(self) -> str | None:
        """Why the rows of a batch cannot lie end to end in this model; None: they can."""
        if self.head is not None or self.pointer is not None or self.ctc is not None:
            return "a head, a pointer or a CTC layer needs padded rows"
        if not isinstance(self.frontend, Tokens):
            return "a source that is no text is padded"
        if self.second_source is not None:
            return "two sources are padded"
        for name, part in {"encoder": self.encoder, "decoder": self.decoder}.items():
            if not hasattr(part, "packs"):
                return f"this {name} computes only padded rows"
            why: str | None = part.packs()
            if why is not None:
                return why
        return None

    def packed_loss(self, batch: PackedBatch, smoothing: float = 0.0, r_drop: float = 0.0) -> Tensor:
        """The summed loss of the same pairs without padding, the logits of a few thousand positions at a time.

        With `r_drop` of two passes, the logits of all positions.
        """
        if r_drop:
            first, second = (self.logits(self._packed_hidden(batch)) for _ in range(2))
            return agreeing(first, second, batch.gold, smoothing, r_drop)
        o = self._packed_hidden(batch)[0]
        return linear_cross_entropy(o, self.output.weight, self.output.bias, batch.gold[0], smoothing)

    def _packed_hidden(self, batch: PackedBatch) -> Tensor:
        memory: Memory = self.encoder(self.frontend(batch.source), batch.sources)
        output: Output = self.decoder(self.embedding(batch.target), memory, batch.targets)
        return output.o

    def token_log_probs(self, batch: Batch) -> Tensor:
        """log p of each token that is to be predicted, (B, N) in float64; 0 where nothing is."""
        logits, gold, _ = self(batch)
        return token_log_probs(logits, gold)

    # -- step by step ------------------------------------------------------------------------------------------------

    def start(self, memory: Memory, capacity: Capacity, looks: bool = False) -> Any:
        """The state before the first token; one that `looks` has the weights of each step as its `attention`."""
        state = self.decoder.start(memory, capacity)
        state = state if self.pointer is None else Pointing(state, self.pointer.start(memory))
        return Looking(state, None, ~memory.mask[:, None]) if looks else state

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens (B, K) → log p (B, K, V) of what comes next, and the state after them."""
        if isinstance(state, Looking):
            with record_attention():
                log_p, inside, attention = self._step(tokens, state.inside)
            if attention is not None and state.padding is not None:
                attention = attention.masked_fill(state.padding, 1.0)
            return log_p, Looking(inside, attention, state.padding)
        log_p, state, _ = self._step(tokens, state)
        return log_p, state

    def _step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any, Tensor | None]:
        y = self.embedding(tokens)
        if self.pointer is None:
            output, state = self.decoder.step(y, state)
            return torch.log_softmax(self.logits(output.o).float(), -1), state, output.attention
        output, decoder = self.decoder.step(y, state.decoder)
        log_p, a = self.pointer(self.logits(output.o), output.o, y, state.source)
        return log_p, Pointing(decoder, state.source), a if output.attention is None else output.attention


def mixed(loss: Tensor, output: Output, ctc: float) -> Tensor:
    """(1 − λ) of the decoder's loss, and λ of the encoder's own."""
    return loss if ctc == 0.0 else (1 - ctc) * loss + ctc * output.extras["ctc"].sum()
