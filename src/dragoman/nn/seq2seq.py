"""The whole model: p(y | x) = Π_t p(y_t | y_<t, x).

    source ─frontend→ x ─encoder→ memory ─decoder(embedded target)→ o ─output layer→ logits over the vocabulary

The constructor's keyword-only parameters are the `model:` section of a config. Search sees `start` and `step` only.

B sentences, K hypotheses, S source and T target positions, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.interfaces import Batch, Capacity, Memory, Output, Segments
from dragoman.core.registry import Part, Positive
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.frontends.tokens import Tokens
from dragoman.nn.losses import cross_entropy, token_log_probs


class Loss(NamedTuple):
    """The summed loss to follow downhill, and the tokens it is the sum over."""

    sum: Tensor
    tokens: int


class Seq2Seq(nn.Module):
    """An encoder-decoder from its parts."""

    def __init__(
        self,
        source_size: int,
        target_size: int,
        *,
        width: Positive = 256,
        frontend: Annotated[Part, frontends] = Part("tokens"),
        encoder: Annotated[Part, encoders] = Part("transformer"),
        decoder: Annotated[Part, decoders] = Part("transformer"),
        tie: Literal["none", "output", "all"] = "output",
    ) -> None:
        super().__init__()
        self.frontend: Any = frontends.build(frontend, source_size, width)
        self.encoder: Any = encoders.build(encoder, self.frontend.d)
        self.embedding = Tokens(target_size, width)
        self.decoder: Any = decoders.build(decoder, width, self.encoder.d)
        self.output = nn.Linear(self.decoder.d, target_size)
        nn.init.normal_(self.output.weight, std=self.decoder.d**-0.5)
        nn.init.zeros_(self.output.bias)
        self.tie(tie, source_size, target_size, width)

    def tie(self, how: str, source_size: int, target_size: int, width: int) -> None:
        """Share tables: `output` the target's embedding with the output layer, `all` the source's with both."""
        if how == "none":
            return
        if self.decoder.d != width:
            raise PartError(
                f"tie: {how} needs a decoder of width {width} (the embedding's), not {self.decoder.d}; use tie: none"
            )
        self.output.weight = self.embedding.table.weight
        if how == "all":
            if not isinstance(self.frontend, Tokens) or source_size != target_size:
                raise PartError("tie: all needs one joint vocabulary for source and target (tokenizer.joint: true)")
            self.frontend.table.weight = self.embedding.table.weight

    # -- what its positions allow ------------------------------------------------------------------------------------

    @property
    def longest_source(self) -> int | None:
        return getattr(self.encoder, "length", None)

    @property
    def longest_target(self) -> int | None:
        return getattr(self.decoder, "length", None)

    # -- all at once -------------------------------------------------------------------------------------------------

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        memory: Memory = self.encoder(self.frontend(source), Segments(lengths))
        memory.source = source
        return memory

    def decode(self, target: Tensor, memory: Memory) -> Output:
        """Teacher forcing: hidden vectors for every next token of (B, T) given tokens."""
        return self.decoder(self.embedding(target), memory)  # type: ignore[no-any-return]

    def logits(self, o: Tensor) -> Tensor:
        return self.output(o)  # type: ignore[no-any-return]

    def forward(self, batch: Batch) -> tuple[Tensor, Output]:
        """Logits (B, T, V) for the tokens after <s>, and what the decoder says besides."""
        output = self.decode(batch.target[:, :-1], self.encode(batch.source, batch.source_lengths))
        return self.logits(output.o), output

    def loss(self, batch: Batch, smoothing: float = 0.0) -> Loss:
        logits, _ = self(batch)
        return Loss(cross_entropy(logits, batch.target[:, 1:], smoothing), batch.tokens)

    def token_log_probs(self, batch: Batch) -> Tensor:
        """log p of each target token, </s> included, (B, T) in float64."""
        return token_log_probs(self(batch)[0], batch.target[:, 1:])

    # -- step by step ------------------------------------------------------------------------------------------------

    def start(self, memory: Memory, capacity: Capacity) -> Any:
        return self.decoder.start(memory, capacity)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens (B, K) → log p (B, K, V) of what comes next, and the state after them."""
        output, state = self.decoder.step(self.embedding(tokens), state)
        return torch.log_softmax(self.logits(output.o).float(), -1), state
