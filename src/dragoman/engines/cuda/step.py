"""One decoding step for all slots of a board, in place on tensors that stay where they are, so that it can be captured.

    enter(lot, slots)          encode new sentences into these slots
    step(board, b) → logits    (b·k, ≥ V) for what the board says comes next in its first b slots

`TransformerStep` computes a Transformer decoder layer by layer from weights laid out for it:

    h = norm(x)      qkv = W_qkv h      c = look back      x ← x + W_o c          (post: x ← norm(x + W_o c))
    h = norm(x)      q = W_q h          c = look across    x ← x + W_o c
    h = norm(x)      x ← x + W₂ f(W₁ h)

Keys and values of the source are projected once, for all layers in one product; those of the target are written where
they arise and never moved (kernels/attention.py). `AnyStep` runs every other decoder through its own `step` and copies
the state it returns to where the last one was.

B slots, k hypotheses, C room for target and S for source positions, L layers, H heads, G key heads, D width.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.core import tree
from dragoman.core.types import PAD, Capacity, Memory
from dragoman.engines.cuda.encode import Encoding, Lot, sent
from dragoman.engines.cuda.packed_weights import Layers, Stream
from dragoman.engines.cuda.slot_search import Board
from dragoman.nn.decoders.transformer import TransformerDecoder
from dragoman.nn.layers import LayerNorm, RMSNorm
from dragoman.nn.positions import T5, ALiBi, Learned, NoPositions, Rotary, Sinusoidal
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention

LEFTOVER = 64  # a vocabulary is padded to a multiple of this: matrix products of odd widths are slow


class Unfit(Exception):
    """This step cannot be run in place; the plain path can."""


class Step(Protocol):
    """What is above; `ancestry` (B, k, C) is for a search to keep, if there is one."""

    @property
    def ancestry(self) -> Tensor | None: ...

    def enter(self, lot: Lot, slots: Tensor, lengths: Tensor) -> None: ...

    def move(self, source: Tensor, to: Tensor) -> None: ...

    def __call__(self, board: Board, b: int) -> Tensor: ...


# -- a Transformer's decoder -------------------------------------------------------------------------------------------


class TransformerWeights(Layers):
    """All that the steps of every board of a model share."""

    def __init__(self, model: Seq2Seq, dtype: torch.dtype) -> None:
        super().__init__(model.decoder.stack, model.embedding, dtype)
        V = model.output.out_features
        self.V, spare = V, -V % LEFTOVER
        self.output = F.pad(model.output.weight.detach().to(dtype), (0, 0, 0, spare))
        bias = model.output.bias
        self.output_bias = None if bias is None else F.pad(bias.detach().to(dtype), (0, spare))

    def turns(self, C: int, layer: int) -> Any:
        """What positions do inside the attention of a layer."""
        from dragoman.engines.cuda.kernels.attention import Turns

        position = self.stack.inside(layer)
        if isinstance(position, (T5, ALiBi)):
            # Causal, these depend on the distance alone: the last query's row, backwards, is the table.
            t, s = torch.tensor([[C - 1]], device=self.device), torch.arange(C, device=self.device)[None]
            bias = position.bias(torch.zeros(1, device=self.device), t, s)
            assert bias is not None
            return Turns(bias=bias.reshape(-1, C).flip(1).float().contiguous())
        if isinstance(position, Rotary):
            d = self.layers[layer].back.d_k
            angles = torch.arange(C, device=self.device)[:, None].float() * position.rates
            cos, sin = torch.cos(angles), torch.sin(angles)  # (C, d/2)
            if position.layout == "interleaved":
                both = torch.stack((cos, cos), -1).view(C, d), torch.stack((-sin, sin), -1).view(C, d)
            else:
                both = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
            return Turns(None, both[0].contiguous(), both[1].contiguous(), position.layout == "interleaved")
        return Turns()


def fits(model: Seq2Seq) -> bool:
    """Whether `TransformerStep` computes this model's decoder."""
    decoder = model.decoder
    if type(decoder) is not TransformerDecoder or decoder.source != "attention":
        return False
    block: Any = decoder.stack.blocks[0]
    if type(block.mixer) is not SelfAttention or not block.mixer.fused or not block.cross_attention.fused:
        return False
    known = (Sinusoidal, Learned, NoPositions, T5, ALiBi, Rotary)
    return type(block.mixer_norm) in (LayerNorm, RMSNorm) and type(decoder.stack.inside(0)) in known


class TransformerStep:
    """A Transformer's step on the tensors of one board."""

    def __init__(self, encoding: Encoding, weights: TransformerWeights, B: int, k: int, S: int, C: int) -> None:
        from dragoman.engines.cuda.kernels import attention

        self.encoding, self.w, self.attention, self.k, self.S = encoding, weights, attention, k, S
        layers, device, dtype = weights.layers, weights.device, weights.dtype
        back = layers[0].back
        self.keys = torch.zeros(len(layers), B, k, C, back.key_heads * back.d_k, dtype=dtype, device=device)
        self.values = torch.zeros(len(layers), B, k, C, back.key_heads * back.d_v, dtype=dtype, device=device)
        self.ancestry: Tensor | None = torch.zeros(B, k, C, dtype=torch.int16, device=device)
        self.source_keys = torch.zeros(B, S, len(encoding.Wk), dtype=dtype, device=device)
        self.source_values = torch.zeros(B, S, len(encoding.Wv), dtype=dtype, device=device)
        self.lengths = torch.zeros(B, dtype=torch.long, device=device)
        self.x = torch.zeros(B * k, weights.D, device=device)  # the residual stream, in float32 whatever the rest is
        self.places = weights.places(C)
        self.turns = [weights.turns(C, i) for i in range(len(layers))]

    @staticmethod
    def bytes(encoding: Encoding, weights: TransformerWeights, k: int, S: int, C: int) -> int:
        """What one slot takes."""
        size, L, back = weights.output.element_size(), len(weights.layers), weights.layers[0].back
        past: int = L * k * C * back.key_heads * (back.d_k + back.d_v) * size
        logits = 2 * k * len(weights.output) * size
        return past + S * (len(encoding.Wk) + len(encoding.Wv)) * size + logits

    def enter(self, lot: Lot, slots: Tensor, lengths: Tensor) -> None:
        self.attention.lay(*self.encoding(lot, self.S), self.source_keys, self.source_values)
        self.lengths.index_copy_(0, slots, lengths)

    def move(self, source: Tensor, to: Tensor) -> None:
        """The sentences of some slots to others."""
        for x in (self.ancestry, self.source_keys, self.source_values, self.lengths):
            assert x is not None
            x[to] = x[source]
        for x in (self.keys, self.values):
            x[:, to] = x[:, source]

    def __call__(self, board: Board, b: int) -> Tensor:
        attention, w, n = self.attention, self.w, b * self.k
        t, done, x = board.t[:b], board.done[:b], self.x[:n]
        w.embed(board.token[:b], t, self.places, x)
        stream = Stream(w, x)
        for i, layer in enumerate(w.layers):
            qkv = stream.read(layer.norms[0], layer.Wqkv, layer.bqkv)
            c = qkv.new_empty(n, layer.back.heads * layer.back.d_v)
            past = attention.Past(self.keys[i], self.values[i], self.ancestry)
            attention.look_back(qkv, past, t, done, layer.back, self.turns[i], c)
            stream.add(c, layer.Wo, layer.bo, layer.norms[0])

            q = stream.read(layer.norms[1], layer.Wq, layer.bq)
            H, G, d_k, d_v, _ = layer.across
            c = q.new_empty(n, H * d_v)
            source_keys = self.source_keys[:b, :, i * G * d_k : (i + 1) * G * d_k]
            source_values = self.source_values[:b, :, i * G * d_v : (i + 1) * G * d_v]
            attention.look_across(q, source_keys, source_values, self.lengths, done, layer.across, self.k, c)
            stream.add(c, layer.Wc, layer.bc, layer.norms[1])

            stream.feed(layer)
        return F.linear(stream.end(), w.output, w.output_bias)


# -- any decoder -------------------------------------------------------------------------------------------------------


class AnyStep:
    """A decoder's own step; its state lies in tensors that each step fills anew."""

    ancestry = None

    def __init__(self, model: Seq2Seq, B: int, k: int, S: int, C: int) -> None:
        self.model, self.B, self.k, self.S, self.C = model, B, k, S, C
        self.state: Any = None

    @staticmethod
    def bytes(model: Seq2Seq, k: int, S: int, C: int) -> int:
        """What one slot takes, counted on an empty sentence of the right size; four times, for a step's own copies."""
        device = next(model.parameters()).device
        source = torch.full((1, S), PAD, device=device)
        memory = model.encode(source, torch.ones(1, dtype=torch.long, device=device))
        sizes = [x.numel() * x.element_size() for x in leaves(model.start(memory, Capacity(k, C)))]
        return 4 * sum(sizes) + 8 * k * model.output.out_features

    def enter(self, lot: Lot, slots: Tensor, lengths: Tensor) -> None:
        source = sent(lot.padded(), slots.device)
        wide = F.pad(source, (0, self.S - source.shape[1]), value=PAD)  # so that every state has the same shape
        memory: Memory = self.model.encode(wide, lengths)
        new = self.model.start(memory, Capacity(self.k, self.C))
        if self.state is None:
            self.state = tree.map(lambda x: x.new_zeros(self.B, *x.shape[1:]), new)
        for old, x in zip(leaves(self.state), leaves(new), strict=True):
            old[slots] = x

    def move(self, source: Tensor, to: Tensor) -> None:
        for x in leaves(self.state):
            x[to] = x[source]

    def __call__(self, board: Board, b: int) -> Tensor:
        here = tree.map(lambda x: x[:b], self.state)
        before = here
        if board.parent is not None:
            before = tree.reorder(here, board.parent[:b].long())
        y = self.model.embedding(board.token[:b].long())
        output, after = self.model.decoder.step(y, before)
        going = board.done[:b] == 0
        for old, new in zip(leaves(here), leaves(after), strict=True):
            if old.shape != new.shape or old.dtype != new.dtype:
                raise Unfit(f"a state of shape {tuple(old.shape)} became one of {tuple(new.shape)}")
            if old.data_ptr() != new.data_ptr():  # what is done stays as it is: its places are at an end
                old.copy_(torch.where(going.view(-1, *(1,) * (old.dim() - 1)), new, old))
        return self.model.logits(output.o).flatten(0, 1)


def leaves(state: Any) -> list[Tensor]:
    """The tensors of a state, in order."""
    found: list[Tensor] = []

    def note(x: Any) -> Any:
        if not isinstance(x, Tensor):
            raise Unfit(f"a {type(x).__name__} in the state reorders itself")
        found.append(x)
        return x

    tree.map(note, state)
    return found


def cast(model: Seq2Seq, dtype: torch.dtype) -> Seq2Seq:
    """The model in another dtype; the model itself where that is its own."""
    return model if model.output.weight.dtype == dtype else copy.deepcopy(model).to(dtype)
