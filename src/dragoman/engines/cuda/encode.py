"""Encode sources end to end, without padding, into the cross-attention keys and values of all decoder layers.

    ids (N,) ─embedding→ x ─layers→ h (N, D) ─W_k, W_v of all decoder layers→ keys, values (N, L · G · d)

The kernels of a batch are recorded as one graph for its size, rounded up: a GPU needs less time for a few thousand
positions than a host needs to launch a hundred kernels. Encoders of other kinds run as they are, on padded sources.

N positions of n sources, S source positions of a slot, L layers, H heads, G key heads, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.core.types import PAD
from dragoman.engines.cuda.graphs import GraphRecorder
from dragoman.engines.cuda.packed_weights import PackedStack, ResidualStream, concat_linears, head_width_blocker
from dragoman.engines.cuda.transfer import copy_to_device, to_pinned
from dragoman.engines.length_batches import round_up
from dragoman.nn.encoders.transformer import TransformerEncoder
from dragoman.nn.frontends.tokens import TokenEmbedding
from dragoman.nn.kernels.packed import packed_attention
from dragoman.nn.layers import LayerNorm, RMSNorm
from dragoman.nn.positions import LearnedPositions, NoPositions, SinusoidalPositions
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention

BATCH_POSITIONS = 8192  # positions that are encoded at a time: beyond this a GPU gains nothing


@dataclass(frozen=True)
class EncodeBatch:
    """Sources to encode, on the host: their ids end to end, and the length and the slot of each."""

    ids: np.ndarray
    lengths: np.ndarray
    slots: np.ndarray

    def positions(self) -> np.ndarray:
        """(N,): the position of each token in its own source."""
        starts = np.cumsum(self.lengths) - self.lengths
        positions: np.ndarray = np.arange(len(self.ids)) - np.repeat(starts, self.lengths)
        return positions

    def padded_ids(self) -> np.ndarray:
        """(n, S): the ids of each source, padded with <pad>; S is at least 1."""
        padded = np.full((len(self.lengths), max(int(self.lengths.max(initial=0)), 1)), PAD, np.int64)
        padded[np.repeat(np.arange(len(self.lengths)), self.lengths), self.positions()] = self.ids
        return padded


class CUDASourceEncoder:
    """Encodes a batch of sources into cross-attention keys and values, and says where in the slots they go."""

    MAX_GRAPHS = 128  # sizes that are recorded

    def __init__(self, model: Seq2Seq, cast_model: Seq2Seq, dtype: torch.dtype, recorder: GraphRecorder) -> None:
        """`cast_model` is the model in that dtype."""
        self.cast_model, self.dtype, self.recorder = cast_model, dtype, recorder
        self.device = model.output.weight.device
        cross = [block.cross_attention for block, _ in model.decoder.stack.layers()]
        self.Wk, self.bk = concat_linears([a.Wk for a in cross], dtype)
        self.Wv, self.bv = concat_linears([a.Wv for a in cross], dtype)
        is_packed = packed_encoder_blocker(model, self.device) is None
        self.stack = PackedStack(model.encoder.stack, model.frontend, dtype) if is_packed else None
        self.graphs: dict[tuple[int, int, int], EncodeGraph] = {}
        self._positions: Tensor | None = None

    def __call__(self, batch: EncodeBatch, S: int) -> tuple[Tensor, Tensor, Tensor]:
        """keys and values (N, ·), and the index of each position in slots (B, S, ·) laid end to end, −1 for none."""
        if self.stack is None:
            return self.encode_padded(batch, S)
        size = self.graph_size(batch)
        graph = self.graphs.get(size) or EncodeGraph(self, *size)
        if size[0] <= BATCH_POSITIONS and len(self.graphs) < self.MAX_GRAPHS:
            self.graphs[size] = graph
        return graph(batch, S)

    def graph_size(self, batch: EncodeBatch) -> tuple[int, int, int]:
        """The positions N, sources n and longest source that the graph for a batch is recorded for, rounded up."""
        N = round_up(max(len(batch.ids), 1), 16, 8)
        n = 1 << (max(len(batch.lengths), N // 8) - 1).bit_length()  # more than needed, so that most batches share one
        return N, n, 1 << max(int(batch.lengths.max(initial=0)) - 1, 16).bit_length()

    def encode_padded(self, batch: EncodeBatch, S: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and slot indices, as `__call__` returns them, by the model's own encoder on padded sources."""
        source = batch.padded_ids()
        is_real = np.arange(source.shape[1]) < batch.lengths[:, None]
        targets = np.where(is_real, batch.slots[:, None] * S + np.arange(source.shape[1]), -1)
        lengths = copy_to_device(batch.lengths, self.device)
        memory = self.cast_model.encode(copy_to_device(source, self.device), lengths)
        h, values = memory.states, memory.states if memory.values is None else memory.values
        keys = F.linear(h.flatten(0, 1).to(self.dtype), self.Wk, self.bk)
        values = F.linear(values.flatten(0, 1).to(self.dtype), self.Wv, self.bv)
        return keys, values, copy_to_device(targets.ravel().astype(np.int32), self.device)

    def encode_packed(
        self, ids: Tensor, positions: Tensor, starts: Tensor, longest: int, table: Tensor | None
    ) -> Tensor:
        """ids (N,) of sources that begin at `starts`, at `positions` (rows of `table`) → h (N, D)."""
        w = self.stack
        assert w is not None
        x = torch.empty(len(ids), w.D, device=self.device)
        w.embed(ids[:, None], positions, table, x)
        stream = ResidualStream(w, x)
        for block in w.blocks:
            H, G, d_k, d_v, scale = block.self_shape
            qkv = stream.project(block.norms[0], block.Wqkv, block.bqkv)
            q, k, v = torch.split(qkv, [H * d_k, G * d_k, G * d_v], -1)
            q, k, v = q.view(-1, H, d_k), k.view(-1, G, d_k), v.view(-1, G, d_v)
            c = packed_attention(q, k, v, starts, starts, longest, False, scale).flatten(1)
            stream.add(c, block.Wo, block.bo, block.norms[0])
            stream.add_feedforward(block)
        return stream.output()

    def position_table(self, length: int) -> Tensor | None:
        """The vectors that are added for positions, at least `length` of them; None: nothing is added."""
        assert self.stack is not None
        if self._positions is None or len(self._positions) < length:
            self._positions = self.stack.position_table(max(length, 512))
        return self._positions

    @cached_property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Buffers for the keys and values of a batch, shared by all graphs."""
        return self.allocate(BATCH_POSITIONS)

    def allocate(self, N: int) -> tuple[Tensor, Tensor]:
        """Buffers for the keys and values of N positions."""
        keys, values = (torch.empty(N, len(W), dtype=self.dtype, device=self.device) for W in (self.Wk, self.Wv))
        return keys, values


class EncodeGraph:
    """The encoder for up to N positions of n sources; recorded when its size comes up for the second time."""

    def __init__(self, encoder: CUDASourceEncoder, N: int, n: int, longest: int) -> None:
        self.encoder, self.N, self.longest, self.device = encoder, N, longest, encoder.device
        self.inputs = torch.zeros(3 * N + n + 1, dtype=torch.int32, device=self.device)
        self.ids, self.positions, self.targets, self.starts = torch.split(self.inputs, [N, N, N, n + 1])
        self.keys, self.values = (x[:N] for x in (encoder.buffers if N <= BATCH_POSITIONS else encoder.allocate(N)))
        self.table = encoder.position_table(longest)
        self.calls = 0
        self.run: Callable[[], object] = self._run

    def _run(self) -> None:
        e = self.encoder
        h = e.encode_packed(self.ids, self.positions, self.starts, self.longest, self.table)
        linear_into(h, e.Wk, e.bk, self.keys)
        linear_into(h, e.Wv, e.bv, self.values)

    def __call__(self, batch: EncodeBatch, S: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and slot indices of a batch, as CUDASourceEncoder's; records the graph at the second call."""
        count, inputs = len(batch.ids), np.zeros(len(self.inputs), np.int32)
        ids, positions, targets, starts = np.split(inputs, [self.N, 2 * self.N, 3 * self.N])
        targets[:] = -1  # positions beyond the batch belong to no source and go nowhere
        ids[:count], positions[:count] = batch.ids, batch.positions()
        targets[:count] = np.repeat(batch.slots * S, batch.lengths) + positions[:count]
        starts[1 : len(batch.lengths) + 1] = np.cumsum(batch.lengths)
        starts[len(batch.lengths) + 1 :] = count
        self.inputs.copy_(to_pinned(inputs, self.device), non_blocking=True)
        self.calls += 1
        if self.calls == 2:
            self.run = self.encoder.recorder.record(self._run, warmed_up=True)
        self.run()
        return self.keys, self.values, self.targets


def linear_into(h: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write W h + b to `out`."""
    if bias is None:
        torch.mm(h, weight.T, out=out)
    else:
        torch.addmm(bias, h, weight.T, out=out)


def packed_encoder_blocker(model: Seq2Seq, device: torch.device) -> str | None:
    """Why sources are encoded by the model's own encoder and not end to end; None: they are."""
    encoder = model.encoder
    if type(encoder) is not TransformerEncoder:
        return f"the encoder is {type(encoder).__name__}, not a Transformer"
    if type(model.frontend) is not TokenEmbedding:
        return "the sources are not plain token ids"
    if (blocker := encoder.packing_blocker()) is not None:
        return str(blocker)
    block, position = next(encoder.stack.layers())
    if type(block.mixer) is not SelfAttention:
        return f"the encoder mixes tokens by {type(block.mixer).__name__}"
    if type(block.mixer_norm) not in (LayerNorm, RMSNorm):
        return f"the encoder's norm is {type(block.mixer_norm).__name__}"
    if type(position) not in (SinusoidalPositions, LearnedPositions, NoPositions):
        return f"the encoder's positions are {type(position).__name__}"
    return head_width_blocker(block.mixer) if device.type == "cuda" else None
