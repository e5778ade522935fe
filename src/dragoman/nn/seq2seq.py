"""The whole model: p(y | x) = Π_t p(y_t | y_<t, x).

    source ─frontend→ x ─encoder→ memory ─decoder(embedded target)→ o ─output layer→ logits over the vocabulary

A second source has its own frontend and encoder, and its states follow those of the first (multi_source.py). A head
instead of a decoder predicts labels for the source or its positions. With encoder `none` and a decoder that reads the
source as a prefix the model is decoder-only; without a source it is a language model.

The constructor's keyword-only parameters are the `model:` section of a config. Search uses `start` and `step`.

B sentences, K hypotheses, S source and T target positions, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, PositiveInt
from dragoman.core.types import PAD, Batch, Capacity, Memory, Output, PackedBatch
from dragoman.nn.attention import record_attention
from dragoman.nn.ctc import CTC
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.frontends.tokens import TokenEmbedding
from dragoman.nn.heads import PredictionHead, heads
from dragoman.nn.initialization import initializers
from dragoman.nn.kernels.entropy import linear_cross_entropy
from dragoman.nn.losses import (
    at_least_float32,
    cross_entropy,
    output_log_probs,
    r_drop_loss,
    reinforce_loss,
    symmetric_kl,
    token_log_probs,
)
from dragoman.nn.multi_source import SecondSource, SecondSourceConfig, SourceEncoder
from dragoman.nn.pointer_generator import Pointer, PointerSource
from dragoman.nn.scores import scores

NEEDS_PREFIX = "only a decoder that reads the source as a prefix can predict the source's own tokens"
BASELINE_MOMENTUM = 0.9  # of the REINFORCE baseline of hard attention, as in Xu et al. 2015


class Seq2SeqOutput(NamedTuple):
    """The logits of a teacher-forced pass, the gold tokens, and the output of the decoder or head."""

    logits: Tensor  # (B, N, V)
    gold: Tensor  # (B, N); <pad> where nothing is to be predicted
    output: Output


@dataclass
class PointerState:
    """The state of a pointer-generator: that of the decoder, and the source to copy from."""

    decoder: Any
    source: PointerSource


@dataclass
class TracedState:
    """A decoding state that also carries the attention weights of the last step."""

    state: Any
    attention: Tensor | None  # (B, K, S); 1 on padding, so that a coverage penalty misses nothing there
    padding: Tensor | None = None  # (B, 1, S)


class Seq2Seq(SourceEncoder):
    """An encoder-decoder from its parts."""

    def __init__(
        self,
        source_size: int,
        target_size: int,
        second_source_size: int = 0,
        *,
        width: PositiveInt = 256,  # of embeddings, and the default of every part
        frontend: Annotated[Part, frontends] = Part("tokens"),
        encoder: Annotated[Part, encoders] = Part("transformer"),
        second_source: SecondSourceConfig | None = None,  # the frontend and encoder of a second source
        decoder: Annotated[Part, decoders] | None = Part("transformer"),
        head: Annotated[Part, heads] | None = None,  # instead of a decoder
        tie: Literal["none", "output", "embeddings", "all"] = "output",  # which of the three tables are shared
        scale: bool = True,  # scale the target's embeddings by √width
        output_bias: bool = True,
        pointer: Annotated[Part, scores] | None = None,  # the attention score of a pointer that copies from the source
        ctc: bool = False,  # add a CTC output layer on the encoder's states
        initializer: Annotated[Part, initializers] = Part("default"),
    ) -> None:
        if (decoder is None) == (head is None):
            raise PartError("set a decoder or a head, not both (with a head, set decoder: null)")
        super().__init__(source_size, width, frontend, encoder)
        self.second_source = (
            None if second_source is None else SecondSource(second_source_size, width, self.encoder.d, second_source)
        )
        self.decoder: Any = None
        self.head: PredictionHead | None = None
        if decoder is not None:
            self.embedding = TokenEmbedding(target_size, width, scale=scale)
            self.decoder = decoders.build(decoder, width, self.encoder.d)
        if head is not None:
            self.head = heads.build(head, self.encoder.d)
        d: int = (self.head or self.decoder).d
        self.output = nn.Linear(d, target_size, bias=output_bias)
        nn.init.normal_(self.output.weight, std=d**-0.5)
        if output_bias:
            nn.init.zeros_(self.output.bias)
        self.pointer = self._build_pointer(pointer, width, source_size == target_size)
        if ctc and decoder is None:
            raise PartError(
                "ctc predicts a target from the encoder's states, and a head predicts labels; set ctc: false"
            )
        if ctc and self.second_source is not None:
            raise PartError("ctc predicts a target from the states of one source, and there are two; set ctc: false")
        self.ctc = CTC(self.encoder.d, target_size) if ctc else None
        initializers.build(initializer)(self)
        self.tie_embeddings(tie, source_size, target_size, width)
        self.uses_fused_loss = True  # training computes output layer and loss in one, see kernels/entropy.py
        # Hard attention needs a baseline for its REINFORCE gradient.
        stochastic: list[Any] = [module for module in self.modules() if getattr(module, "is_stochastic", False)]
        self.is_stochastic, self.discount = bool(stochastic), float(stochastic[0].discount) if stochastic else 1.0
        self.baseline: Tensor | None
        self.register_buffer("baseline", torch.zeros(()) if self.is_stochastic else None)

    def _build_pointer(self, score: Part | None, width: int, joint: bool) -> Pointer | None:
        if score is None:
            return None
        if self.decoder is None:
            raise PartError("pointer needs a decoder; a head predicts labels")
        if self.second_source is not None:
            raise PartError("pointer copies from one source, and there are two; set pointer: null")
        if not joint or not isinstance(self.frontend, TokenEmbedding):
            raise PartError("pointer needs one joint vocabulary for source and target (tokenizer.joint: true)")
        return Pointer(self.decoder.d, width, self.encoder.d, score)

    def tie_embeddings(self, how: str, source_size: int, target_size: int, width: int) -> None:
        """Share tables: `output` target and output, `embeddings` source and target, `all` all; PartError if unfit."""
        if how in ("output", "all") and self.output.in_features != width and not (self.head and how == "output"):
            raise PartError(
                f"tie: {how} needs a decoder of width {width}, that of the embeddings, not {self.output.in_features}; "
                "use tie: none"
            )
        if how in ("embeddings", "all") and (
            not isinstance(self.frontend, TokenEmbedding) or source_size != target_size
        ):
            raise PartError(f"tie: {how} needs one joint vocabulary for source and target (tokenizer.joint: true)")
        if self.head is not None:
            if how == "all":
                self.output.weight = self.frontend.table.weight
            return
        if how in ("output", "all"):
            self.output.weight = self.embedding.table.weight
        if how in ("embeddings", "all"):
            self.frontend.table.weight = self.embedding.table.weight

    # -- limits ------------------------------------------------------------------------------------------------------

    @property
    def is_decoder_only(self) -> bool:
        """Whether source and target are one sequence, so that they share its positions."""
        return getattr(self.decoder, "source", "") in ("prefix", "full_prefix")

    @property
    def has_bidirectional_prefix(self) -> bool:
        """Whether the model is decoder-only and the source attends to itself in both directions."""
        return getattr(self.decoder, "source", "") == "full_prefix"

    @property
    def max_source_positions(self) -> int | None:
        """The longest source that the positions allow, half of a decoder-only model's; None: no limit."""
        limit: int | None = getattr(self.encoder, "max_positions", None)
        if limit is None and self.is_decoder_only and self.max_target_positions is not None:
            return self.max_target_positions // 2  # half of them are left for the target
        return limit

    @property
    def max_second_source_positions(self) -> int | None:
        """The longest second source that the positions allow; None: no limit."""
        return None if self.second_source is None else getattr(self.second_source.encoder, "max_positions", None)

    @property
    def max_target_positions(self) -> int | None:
        """The longest target that the positions allow, of decoder-only models with its source; None: no limit."""
        return getattr(self.decoder, "max_positions", None)

    # -- all positions at once ---------------------------------------------------------------------------------------

    def encode(
        self,
        source: Tensor,
        lengths: Tensor,
        second_source: Tensor | None = None,
        second_source_lengths: Tensor | None = None,
    ) -> Memory:
        """The memory of padded sources, (B, S) ids or (B, S, F) numbers, with second sources if the model has them."""
        memory = self.encode_source(source, lengths)
        if self.second_source is not None:
            both: Memory = self.second_source(memory, second_source, second_source_lengths)
            return both
        memory.source = source
        return memory

    def ctc_log_probs(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """log p (B, S, V) of the CTC layer at each state, and the number of real states (B,)."""
        if self.ctc is None:
            raise PartError("this model was trained without ctc, so generation.ctc_weight must be 0")
        return self.ctc(memory.states), memory.lengths

    def decode(self, target: Tensor, memory: Memory) -> Output:
        """Teacher forcing: hidden vectors for every next token after target tokens (B, T)."""
        return self._decode(target, memory)[0]

    def _decode(self, target: Tensor, memory: Memory) -> tuple[Output, Tensor | None]:
        """Teacher forcing over target (B, T): the decoder's output, and a pointer's log p, (B, T, V)."""
        y = self.embedding(target)
        output: Output = self.decoder(y, memory)
        if self.pointer is None:
            return output, None
        log_p, a = self.pointer(self.logits(output.o), output.o, y, self.pointer.prepare_source(memory))
        return replace(output, attention=a if output.attention is None else output.attention), log_p

    def logits(self, o: Tensor) -> Tensor:
        """The output layer: hidden vectors (…, D) → logits (…, V)."""
        z: Tensor = self.output(o)
        return z

    def forward(self, batch: Batch, inputs: Tensor | None = None) -> Seq2SeqOutput:
        """Teacher forcing over a batch; `inputs` (B, T) replace the gold tokens that the decoder reads."""
        o, gold, output, log_p = self._hidden_states(batch, inputs)
        if log_p is None:
            return Seq2SeqOutput(self.logits(o), gold, output)
        if batch.token_labels is not None:
            log_p = torch.cat([self.logits(output.extras["prefix"]), log_p], 1)
        return Seq2SeqOutput(log_p, gold, output)

    def _hidden_states(self, batch: Batch, inputs: Tensor | None) -> tuple[Tensor, Tensor, Output, Tensor | None]:
        """Teacher forcing: hidden vectors (B, N, D), gold tokens (B, N), whole output, a pointer's log p (B, T, V)."""
        memory = self.encode(*batch.encoder_inputs)
        if self.head is not None:
            output = self.head(memory)
            return output.o, self.head.gold_labels(batch), output, None
        output, log_p = self._decode(batch.target[:, :-1] if inputs is None else inputs, memory)
        if self.ctc is not None:
            output.extras["ctc"] = self.ctc.loss(memory, batch)
        o, gold = output.o, batch.target[:, 1:]
        if batch.token_labels is not None:
            if "prefix" not in output.extras:
                raise PartError(NEEDS_PREFIX)
            # One sequence: the predictions at the source's positions come first.
            o, gold = torch.cat([output.extras["prefix"], o], 1), torch.cat([batch.token_labels, gold], 1)
        return o, gold, output, log_p

    def loss(
        self,
        batch: Batch,
        smoothing: float = 0.0,
        *,
        r_drop: float = 0.0,
        ctc: float = 0.0,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """The summed loss of a batch: cross entropy, penalties; `ctc` and `r_drop` weight the CTC and R-Drop terms."""
        twice = r_drop > 0 and self.training
        needs_logits = twice or self.pointer is not None or self.is_stochastic
        if self.uses_fused_loss and torch.is_grad_enabled() and not needs_logits:
            o, gold, output, _ = self._hidden_states(batch, inputs)
            x, y = o.flatten(0, 1), gold.flatten()
            if not o.is_cuda:  # on a GPU the selection would need a synchronization
                x, y = x[y != PAD], y[y != PAD]
            total = linear_cross_entropy(x, self.output.weight, self.output.bias, y, smoothing)
            return interpolate_ctc(add_penalty(total, gold, output), output, ctc)
        first = self(batch, inputs)
        total = interpolate_ctc(self._loss(first, smoothing), first.output, ctc)
        if twice:
            second = self(batch, inputs)
            # The paper's loss, halved, so that its scale is that of one pass.
            total = (total + interpolate_ctc(self._loss(second, smoothing), second.output, ctc)) / 2
            total = total + r_drop / 2 * symmetric_kl(first.logits, second.logits, first.gold)
        return total

    def _loss(self, result: Seq2SeqOutput, smoothing: float) -> Tensor:
        """Summed cross entropy, penalties and hard attention's REINFORCE term; updates its baseline in training."""
        logits, gold, output = result
        total = add_penalty(cross_entropy(logits, gold, smoothing), gold, output)
        if "choice" in output.extras and self.baseline is not None:
            log_p = token_log_probs(at_least_float32(logits.detach()).log_softmax(-1), gold)
            real = real_targets(gold, output)
            total = total + reinforce_loss(output.extras["choice"], log_p, self.baseline, real, self.discount)
            if self.training:
                mean = (log_p.sum() / real.sum().clamp(min=1)).to(self.baseline.dtype)
                momentum = torch.where(self.baseline.eq(0), 0.0, BASELINE_MOMENTUM)  # 0 before the first reward
                self.baseline.copy_(momentum * self.baseline + (1 - momentum) * mean)
        return total

    # -- packed rows, without padding --------------------------------------------------------------------------------

    def packing_blocker(self) -> str | None:
        """Why this model cannot train on packed rows; None: it can."""
        if self.head is not None or self.pointer is not None or self.ctc is not None:
            return "a head, a pointer or a CTC layer needs padded rows"
        if not isinstance(self.frontend, TokenEmbedding):
            return "sources that are no text need padded rows"
        if self.second_source is not None:
            return "two sources need padded rows"
        for name, part in {"encoder": self.encoder, "decoder": self.decoder}.items():
            if not hasattr(part, "packing_blocker"):
                return f"this {name} supports only padded rows"
            reason: str | None = part.packing_blocker()
            if reason is not None:
                return reason
        return None

    def packed_loss(self, batch: PackedBatch, smoothing: float = 0.0, r_drop: float = 0.0) -> Tensor:
        """The summed loss of a packed batch; only with `r_drop` are the logits of all positions held at once."""
        if r_drop:
            first, second = (self.logits(self._packed_hidden(batch)) for _ in range(2))
            return r_drop_loss(first, second, batch.gold, smoothing, r_drop)
        o = self._packed_hidden(batch)[0]
        return linear_cross_entropy(o, self.output.weight, self.output.bias, batch.gold[0], smoothing)

    def _packed_hidden(self, batch: PackedBatch) -> Tensor:
        memory: Memory = self.encoder(self.frontend(batch.source), batch.sources)
        output: Output = self.decoder(self.embedding(batch.target), memory, batch.targets)
        return output.o

    def token_log_probs(self, batch: Batch) -> Tensor:
        """log p of each gold token, (B, N) in float64; 0 at padding."""
        logits, gold, _ = self(batch)
        return token_log_probs(output_log_probs(logits), gold)

    # -- step by step ------------------------------------------------------------------------------------------------

    def start(self, memory: Memory, capacity: Capacity, trace_attention: bool = False) -> Any:
        """The state before the first token; with `trace_attention` a TracedState with the weights of each step."""
        state = self.decoder.start(memory, capacity)
        state = state if self.pointer is None else PointerState(state, self.pointer.prepare_source(memory))
        return TracedState(state, None, ~memory.mask[:, None]) if trace_attention else state

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens (B, K) → log p (B, K, V) of what comes next, and the state after them."""
        if isinstance(state, TracedState):
            with record_attention():
                log_p, inner, attention = self._step(tokens, state.state)
            if attention is not None and state.padding is not None:
                attention = attention.masked_fill(state.padding, 1.0)
            return log_p, TracedState(inner, attention, state.padding)
        log_p, state, _ = self._step(tokens, state)
        return log_p, state

    def _step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any, Tensor | None]:
        """tokens (B, K) → log p (B, K, V), next state, and the attention (B, K, S) of the decoder or pointer."""
        y = self.embedding(tokens)
        if self.pointer is None:
            output, state = self.decoder.step(y, state)
            return output_log_probs(self.logits(output.o)), state, output.attention
        output, decoder = self.decoder.step(y, state.decoder)
        log_p, a = self.pointer(self.logits(output.o), output.o, y, state.source)
        return (
            output_log_probs(log_p),
            PointerState(decoder, state.source),
            a if output.attention is None else output.attention,
        )


def real_targets(gold: Tensor, output: Output) -> Tensor:
    """(B, T): true where the output predicts a gold token (B, N) of the target; labels of a prefix come before them."""
    return gold[:, gold.shape[1] - output.o.shape[1] :] != PAD


def add_penalty(loss: Tensor, gold: Tensor, output: Output) -> Tensor:
    """The loss plus the penalties of the output's extras, those at padding excluded."""
    penalty = output.extras.get("penalty")
    return loss if penalty is None else loss + (penalty * real_targets(gold, output)).sum()


def interpolate_ctc(loss: Tensor, output: Output, ctc: float) -> Tensor:
    """(1 − λ) loss + λ L_ctc, with λ = ctc and L_ctc summed from the output's extras; the loss itself if λ = 0."""
    return loss if ctc == 0.0 else (1 - ctc) * loss + ctc * output.extras["ctc"].sum()
