"""Sources on their way to a decoder: encoded end to end, without padding, into keys and values for all its layers.

    ids (N,) ─embedding→ x ─layers→ h (N, D) ─W_k, W_v of all decoder layers→ keys, values (N, L · G · d)

The kernels of a lot of sources are recorded for its size, rounded up, and launched as one: a GPU needs less time for a
few thousand positions than a host to launch a hundred kernels. Encoders of other kinds run as they are.

N positions of n sources, S room for a source's positions, L layers, H heads, G key heads, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.core.types import PAD
from dragoman.engines.cuda.graphs import Graphs
from dragoman.engines.cuda.packed_weights import Layers, Stream, joined, shape
from dragoman.nn.encoders.transformer import TransformerEncoder
from dragoman.nn.frontends.tokens import Tokens
from dragoman.nn.kernels.packed import SIZES, packed_attention
from dragoman.nn.layers import LayerNorm, RMSNorm
from dragoman.nn.positions import Learned, NoPositions, Sinusoidal
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention

LOT = 8192  # positions that are encoded at a time: from here on a GPU gains nothing by more


@dataclass(frozen=True)
class Lot:
    """Sources that go into slots, on the host: their ids end to end, and the length and slot of each."""

    ids: np.ndarray
    lengths: np.ndarray
    slots: np.ndarray

    def places(self) -> np.ndarray:
        """(N,): how far into its source each position stands."""
        starts = np.cumsum(self.lengths) - self.lengths
        found: np.ndarray = np.arange(len(self.ids)) - np.repeat(starts, self.lengths)
        return found

    def padded(self) -> np.ndarray:
        """(n, S): ids with padding after them."""
        found = np.full((len(self.lengths), max(int(self.lengths.max(initial=0)), 1)), PAD, np.int64)
        found[np.repeat(np.arange(len(self.lengths)), self.lengths), self.places()] = self.ids
        return found


def sent(x: np.ndarray, device: torch.device) -> Tensor:
    """An array on its way to the device."""
    return ready(x, device).to(device, non_blocking=True)


def ready(x: np.ndarray, device: torch.device) -> Tensor:
    """An array where a device can read it by itself."""
    t = torch.from_numpy(np.ascontiguousarray(x))
    return t.pin_memory() if device.type == "cuda" else t


class Encoding:
    """A lot of sources → keys and values of the cross-attentions of all layers, and where they go."""

    MOST = 128  # sizes that are recorded

    def __init__(self, model: Seq2Seq, own: Seq2Seq, dtype: torch.dtype, graphs: Graphs) -> None:
        """`own` is the model in that dtype."""
        self.own, self.dtype, self.graphs, self.device = own, dtype, graphs, model.output.weight.device
        across = [block.cross_attention for block in model.decoder.stack.blocks]
        self.Wk, self.bk = joined([a.Wk for a in across], dtype)
        self.Wv, self.bv = joined([a.Wv for a in across], dtype)
        self.layers = Layers(model.encoder.stack, model.frontend, dtype) if reads(model) else None
        self.readers: dict[tuple[int, int, int], Reader] = {}
        self.table: Tensor | None = None

    def __call__(self, lot: Lot, S: int) -> tuple[Tensor, Tensor, Tensor]:
        """keys and values (N, ·), and where in (B, S, ·) each position goes, −1 for none."""
        if self.layers is None:
            return self.padded(lot, S)
        size = self.size(lot)
        reader = self.readers.get(size) or Reader(self, *size)
        if size[0] <= LOT and len(self.readers) < self.MOST:
            self.readers[size] = reader
        return reader(lot, S)

    def size(self, lot: Lot) -> tuple[int, int, int]:
        """How many positions and sources a reader is to have room for, and a bound on the length of each."""
        N = rounded(len(lot.ids))
        n = 1 << (max(len(lot.lengths), N // 8) - 1).bit_length()  # more than there are, to have but one for most
        return N, n, 1 << max(int(lot.lengths.max(initial=0)) - 1, 16).bit_length()

    def padded(self, lot: Lot, S: int) -> tuple[Tensor, Tensor, Tensor]:
        source = lot.padded()
        there = np.arange(source.shape[1]) < lot.lengths[:, None]
        at = np.where(there, lot.slots[:, None] * S + np.arange(source.shape[1]), -1)
        memory = self.own.encode(sent(source, self.device), sent(lot.lengths, self.device))
        h, values = memory.states, memory.states if memory.values is None else memory.values
        keys = F.linear(h.flatten(0, 1).to(self.dtype), self.Wk, self.bk)
        values = F.linear(values.flatten(0, 1).to(self.dtype), self.Wv, self.bv)
        return keys, values, sent(at.ravel().astype(np.int32), self.device)

    def read(self, ids: Tensor, places: Tensor, starts: Tensor, longest: int, table: Tensor | None) -> Tensor:
        """ids (N,) of sources that begin at `starts` → h (N, D)."""
        w = self.layers
        assert w is not None
        x = torch.empty(len(ids), w.D, device=self.device)
        w.embed(ids[:, None], places, table, x)
        stream = Stream(w, x)
        for layer in w.layers:
            H, G, d_k, d_v, scale = layer.back
            qkv = stream.read(layer.norms[0], layer.Wqkv, layer.bqkv)
            q, k, v = torch.split(qkv, [H * d_k, G * d_k, G * d_v], -1)
            q, k, v = q.view(-1, H, d_k), k.view(-1, G, d_k), v.view(-1, G, d_v)
            c = packed_attention(q, k, v, starts, starts, longest, False, scale).flatten(1)
            stream.add(c, layer.Wo, layer.bo, layer.norms[0])
            stream.feed(layer)
        return stream.end()

    def positions(self, longest: int) -> Tensor | None:
        """The table of places, as long as any source so far."""
        assert self.layers is not None
        if self.table is None or len(self.table) < longest:
            self.table = self.layers.places(max(longest, 512))
        return self.table

    @cached_property
    def rooms(self) -> tuple[Tensor, Tensor]:
        """Where the keys and values of a lot lie until they are in their slots."""
        return self.room(LOT)

    def room(self, N: int) -> tuple[Tensor, Tensor]:
        keys, values = (torch.empty(N, len(W), dtype=self.dtype, device=self.device) for W in (self.Wk, self.Wv))
        return keys, values


class Reader:
    """The encoder for up to N positions of n sources; recorded when a size comes up for the second time."""

    def __init__(self, encoding: Encoding, N: int, n: int, longest: int) -> None:
        self.encoding, self.N, self.longest, self.device = encoding, N, longest, encoding.device
        self.given = torch.zeros(3 * N + n + 1, dtype=torch.int32, device=self.device)
        self.ids, self.places, self.at, self.starts = torch.split(self.given, [N, N, N, n + 1])
        self.keys, self.values = (x[:N] for x in (encoding.rooms if N <= LOT else encoding.room(N)))
        self.table = encoding.positions(longest)
        self.used, self.run = 0, self.read

    def read(self) -> object:
        e = self.encoding
        h = e.read(self.ids, self.places, self.starts, self.longest, self.table)
        return into(h, e.Wk, e.bk, self.keys), into(h, e.Wv, e.bv, self.values)

    def __call__(self, lot: Lot, S: int) -> tuple[Tensor, Tensor, Tensor]:
        count, given = len(lot.ids), np.zeros(len(self.given), np.int32)
        ids, places, at, starts = np.split(given, [self.N, 2 * self.N, 3 * self.N])
        at[:] = -1  # what fills up belongs to no source and goes nowhere
        ids[:count], places[:count] = lot.ids, lot.places()
        at[:count] = np.repeat(lot.slots * S, lot.lengths) + places[:count]
        starts[1 : len(lot.lengths) + 1] = np.cumsum(lot.lengths)
        starts[len(lot.lengths) + 1 :] = count
        self.given.copy_(ready(given, self.device), non_blocking=True)
        self.used += 1
        if self.used == 2:
            self.run = self.encoding.graphs.record(self.read, again=True)
        self.run()
        return self.keys, self.values, self.at


def into(h: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """W h + b written to `out`."""
    return torch.mm(h, weight.T, out=out) if bias is None else torch.addmm(bias, h, weight.T, out=out)


def rounded(n: int) -> int:
    """A number of positions rounded up by an eighth at most, and to a multiple of 16, so that few sizes come up."""
    step = max(1 << max(n - 1, 1).bit_length() >> 4, 16)
    return max(-(-n // step) * step, step)


def reads(model: Seq2Seq) -> bool:
    """Whether `Encoding.read` computes this model's encoder."""
    encoder = model.encoder
    if type(encoder) is not TransformerEncoder or type(model.frontend) is not Tokens or encoder.packs() is not None:
        return False
    block: Any = encoder.stack.blocks[0]
    if type(block.mixer) is not SelfAttention or type(block.mixer_norm) not in (LayerNorm, RMSNorm):
        return False
    _, _, d_k, d_v, _ = shape(block.mixer)
    whole = model.output.weight.device.type != "cuda" or (d_k in SIZES and d_v in SIZES)  # in one kernel
    return whole and type(encoder.stack.inside(0)) in (Sinusoidal, Learned, NoPositions)
