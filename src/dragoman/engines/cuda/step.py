"""One decoding step for all slots, in place on tensors that keep their address, so that it can be a CUDA graph.

    admit(batch, slots, lengths)     encode new sentences into these slots
    step(slot_search, b) → logits    (b·k, ≥ V) for the next token of the first b slots

`TransformerStep` computes a Transformer decoder layer by layer from packed weights:

    h = norm(x)      qkv = W_qkv h      c = self-attention      x ← x + W_o c          (post: x ← norm(x + W_o c))
    h = norm(x)      q = W_q h          c = cross-attention     x ← x + W_o c
    h = norm(x)      x ← x + W₂ f(W₁ h)

Keys and values of the source are projected once, for all layers in one product. Keys and values of the target are
written once and never moved (kernels/attention.py). `ModuleStep` runs every other decoder through its own `step` and
copies the state it returns over the previous one.

B slots, k hypotheses, C target and S source positions of a slot, L layers, H heads, G key heads, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.core import tree
from dragoman.core.types import PAD, Capacity, Memory
from dragoman.engines.cuda.encode import CUDASourceEncoder, EncodeBatch
from dragoman.engines.cuda.packed_weights import PackedStack, ResidualStream
from dragoman.engines.cuda.slot_search import SlotSearch
from dragoman.engines.cuda.transfer import copy_to_device
from dragoman.nn import positions
from dragoman.nn.decoders.transformer import TransformerDecoder
from dragoman.nn.layers import LayerNorm, RMSNorm
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention

if TYPE_CHECKING:
    from dragoman.engines.cuda.kernels.attention import PositionTables

KNOWN_POSITIONS = tuple(
    positions.positions[name] for name in ("sinusoidal", "learned", "none", "t5", "alibi", "rotary")
)
VOCABULARY_MULTIPLE = 64  # the output layer is padded to a multiple of this: matrix products of odd widths are slow


class GraphUnsupported(Exception):
    """This step cannot run in place as a CUDA graph; the reference path can compute it."""


# -- a Transformer's decoder -------------------------------------------------------------------------------------------


class TransformerWeights(PackedStack):
    """The packed weights of a decoder and its output layer, shared by all decode graphs of a model."""

    def __init__(self, model: Seq2Seq, dtype: torch.dtype) -> None:
        super().__init__(model.decoder.stack, model.embedding, dtype)
        V = model.output.out_features
        self.V, spare = V, -V % VOCABULARY_MULTIPLE
        self.output = F.pad(model.output.weight.detach().to(dtype), (0, 0, 0, spare))
        bias = model.output.bias
        self.output_bias = None if bias is None else F.pad(bias.detach().to(dtype), (0, spare))

    def attention_positions(self, C: int, layer: int) -> PositionTables:
        """What positions do inside a layer's self-attention, as tables for C positions: bias or rotations."""
        from dragoman.engines.cuda.kernels.attention import PositionTables

        position = self.stack.position_scheme(layer)
        if isinstance(position, (positions.T5Positions, positions.ALiBiPositions)):
            # Causal biases depend on the distance alone: the last query's row, backwards, is the table.
            t, s = torch.tensor([[C - 1]], device=self.device), torch.arange(C, device=self.device)[None]
            bias = position.score_bias(torch.zeros(1, device=self.device), t, s)
            assert bias is not None
            return PositionTables(bias=bias.reshape(-1, C).flip(1).float().contiguous())
        if isinstance(position, positions.RotaryPositions):
            d = self.blocks[layer].self_shape.d_k
            angles = torch.arange(C, device=self.device)[:, None].float() * position.frequencies
            cos, sin = torch.cos(angles), torch.sin(angles)  # (C, d/2)
            is_interleaved = position.layout == "interleaved"
            if is_interleaved:
                both = torch.stack((cos, cos), -1).view(C, d), torch.stack((-sin, sin), -1).view(C, d)
            else:
                both = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
            return PositionTables(None, both[0].contiguous(), both[1].contiguous(), is_interleaved)
        return PositionTables()


def transformer_step_blocker(model: Seq2Seq) -> str | None:
    """Why a model's decoder runs through its own `step` and not through TransformerStep; None: it does not."""
    decoder = model.decoder
    if type(decoder) is not TransformerDecoder:
        return f"the decoder is {type(decoder).__name__}, not a Transformer"
    if decoder.source != "attention":
        return "source and target are one sequence (decoder.source)"
    block, position = next(decoder.stack.layers())
    if type(block.mixer) is not SelfAttention:
        return f"the decoder mixes tokens by {type(block.mixer).__name__}"
    if not all(a.supports_fused_kernel for a in (block.mixer, block.cross_attention) if a is not None):
        return "its attention is not a dot score under a softmax"
    if type(block.mixer_norm) not in (LayerNorm, RMSNorm):
        return f"the decoder's norm is {type(block.mixer_norm).__name__}"
    if type(position) not in KNOWN_POSITIONS:
        return f"the decoder's positions are {type(position).__name__}"
    return None


class TransformerStep:
    """A Transformer decoder's step on the tensors of one decode graph."""

    def __init__(self, encoder: CUDASourceEncoder, weights: TransformerWeights, B: int, k: int, S: int, C: int) -> None:
        from dragoman.engines.cuda.kernels import attention

        self.encoder, self.weights, self.attention, self.k, self.S = encoder, weights, attention, k, S
        blocks, device, dtype = weights.blocks, weights.device, weights.dtype
        shape = blocks[0].self_shape
        self.keys = torch.zeros(len(blocks), B, k, C, shape.key_heads * shape.d_k, dtype=dtype, device=device)
        self.values = torch.zeros(len(blocks), B, k, C, shape.key_heads * shape.d_v, dtype=dtype, device=device)
        # For each hypothesis and position, the beam row whose cached keys it reads.
        self.ancestry = torch.zeros(B, k, C, dtype=torch.int16, device=device)
        self.source_keys = torch.zeros(B, S, len(encoder.Wk), dtype=dtype, device=device)
        self.source_values = torch.zeros(B, S, len(encoder.Wv), dtype=dtype, device=device)
        self.lengths = torch.zeros(B, dtype=torch.long, device=device)
        self.x = torch.zeros(B * k, weights.D, device=device)  # the residual stream, in float32 whatever the weights
        self.position_table = weights.position_table(C)
        self.attention_positions = [weights.attention_positions(C, i) for i in range(len(blocks))]

    @staticmethod
    def bytes_per_slot(encoder: CUDASourceEncoder, weights: TransformerWeights, k: int, S: int, C: int) -> int:
        """The memory that one slot takes: its caches, source keys and values, and logits."""
        size, L, shape = weights.output.element_size(), len(weights.blocks), weights.blocks[0].self_shape
        cache: int = L * k * C * shape.key_heads * (shape.d_k + shape.d_v) * size
        logits = 2 * k * len(weights.output) * size
        return cache + S * (len(encoder.Wk) + len(encoder.Wv)) * size + logits

    def admit(self, batch: EncodeBatch, slots: Tensor, lengths: Tensor) -> None:
        """Encode new sentences of these source lengths into these slots, as cross-attention keys and values."""
        self.attention.scatter_keys_values(*self.encoder(batch, self.S), self.source_keys, self.source_values)
        self.lengths.index_copy_(0, slots, lengths)

    def move_slots(self, source: Tensor, to: Tensor) -> None:
        """Copy caches and sources of the slots `source` to the slots `to`, in place."""
        for x in (self.ancestry, self.source_keys, self.source_values, self.lengths):
            x[to] = x[source]
        for x in (self.keys, self.values):
            x[:, to] = x[:, source]

    def __call__(self, slot_search: SlotSearch, b: int) -> Tensor:
        """Logits (b·k, ≥ V) of the first b slots."""
        attention, w, n = self.attention, self.weights, b * self.k
        t, done, x = slot_search.t[:b], slot_search.done[:b], self.x[:n]
        w.embed(slot_search.token[:b], t, self.position_table, x)
        stream = ResidualStream(w, x)
        for i, block in enumerate(w.blocks):
            qkv = stream.project(block.norms[0], block.Wqkv, block.bqkv)
            c = qkv.new_empty(n, block.self_shape.heads * block.self_shape.d_v)
            cache = attention.AncestryCache(self.keys[i], self.values[i], self.ancestry)
            attention.self_attention(qkv, cache, t, done, block.self_shape, self.attention_positions[i], c)
            stream.add(c, block.Wo, block.bo, block.norms[0])

            q = stream.project(block.norms[1], block.cross_Wq, block.cross_bq)
            H, G, d_k, d_v, _ = block.cross_shape
            c = q.new_empty(n, H * d_v)
            source_keys = self.source_keys[:b, :, i * G * d_k : (i + 1) * G * d_k]
            source_values = self.source_values[:b, :, i * G * d_v : (i + 1) * G * d_v]
            attention.cross_attention(q, source_keys, source_values, self.lengths, done, block.cross_shape, self.k, c)
            stream.add(c, block.cross_Wo, block.cross_bo, block.norms[1])

            stream.add_feedforward(block)
        return F.linear(stream.output(), w.output, w.output_bias)


# -- any decoder -------------------------------------------------------------------------------------------------------


class ModuleStep:
    """A decoder's own step; its state lies in tensors that each step overwrites."""

    ancestry = None  # a state is reordered, not read through a table

    def __init__(self, model: Seq2Seq, B: int, k: int, S: int, C: int) -> None:
        self.model, self.B, self.k, self.S, self.C = model, B, k, S, C
        self.state: Any = None  # as the decoder makes it; None until the first sentence

    @staticmethod
    def bytes_per_slot(model: Seq2Seq, k: int, S: int, C: int) -> int:
        """The memory of one slot's state, measured on an empty sentence; four times, for a step's own copies."""
        device = next(model.parameters()).device
        source = torch.full((1, S), PAD, device=device)
        memory = model.encode(source, torch.ones(1, dtype=torch.long, device=device))
        sizes = [x.numel() * x.element_size() for x in state_tensors(model.start(memory, Capacity(k, C)))]
        return 4 * sum(sizes) + 8 * k * model.output.out_features

    def admit(self, batch: EncodeBatch, slots: Tensor, lengths: Tensor) -> None:
        """Encode new sentences of these source lengths into these slots, as states of the decoder."""
        source = copy_to_device(batch.padded_ids(), slots.device)
        padded = F.pad(source, (0, self.S - source.shape[1]), value=PAD)  # so that every state has the same shape
        memory: Memory = self.model.encode(padded, lengths)
        new = self.model.start(memory, Capacity(self.k, self.C))
        if self.state is None:
            self.state = tree.map(lambda x: x.new_zeros(self.B, *x.shape[1:]), new)
        for old, x in zip(state_tensors(self.state), state_tensors(new), strict=True):
            old[slots] = x

    def move_slots(self, source: Tensor, to: Tensor) -> None:
        """Copy caches and sources of the slots `source` to the slots `to`, in place."""
        for x in state_tensors(self.state):
            x[to] = x[source]

    def __call__(self, slot_search: SlotSearch, b: int) -> Tensor:
        """Logits (b·k, V) of the first b slots; overwrites the state of those that are not done."""
        state, parent = tree.map(lambda x: x[:b], self.state), slot_search.parent
        before = state if parent is None else tree.reorder(state, parent[:b].long())
        y = self.model.embedding(slot_search.token[:b].long())
        output, after = self.model.decoder.step(y, before)
        is_active = slot_search.done[:b] == 0
        for old, new in zip(state_tensors(state), state_tensors(after), strict=True):
            if old.shape != new.shape or old.dtype != new.dtype:
                raise GraphUnsupported(f"the decoder's state changed its shape: {tuple(old.shape)}, {tuple(new.shape)}")
            if old.data_ptr() != new.data_ptr():  # slots that are done keep their state: their positions are used up
                old.copy_(torch.where(is_active.view(-1, *(1,) * (old.dim() - 1)), new, old))
        return self.model.logits(output.o).flatten(0, 1)


SlotStep = TransformerStep | ModuleStep


def state_tensors(state: object) -> list[Tensor]:
    """The tensors of a decoder's state, in order; GraphUnsupported if it holds anything else."""
    tensors: list[Tensor] = []

    def collect(x: object) -> object:
        if not isinstance(x, Tensor):
            raise GraphUnsupported(f"a {type(x).__name__} in the decoder's state reorders itself")
        tensors.append(x)
        return x

    tree.map(collect, state)
    return tensors
