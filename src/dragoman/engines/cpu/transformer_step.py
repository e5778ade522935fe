"""A Transformer on a CPU: the encoder, and one decoding step, with weights repacked once (linears.py).

    h = norm(x)      q, k, v = W_qkv h      c = look back      x ← x + W_o c          (post: x ← norm(x + W_o c))
    h = norm(x)      q = W_q h              c = look across    x ← x + W_o c
    h = norm(x)      x ← x + W₂ f(W₁ h)

The hypotheses of a sentence are paths in a tree, and a key and a value lie at each of its nodes:

    place      1    2    3    4                     seen by       1  2  3  4  4' 3'
    node       a ── b ── c ── d                     hypothesis 1  ×  ×  ×  ×
                    │    └─── d'                    hypothesis 2  ×  ×  ×     ×
                    └── c'                          hypothesis 3  ×  ×           ×

So a beam that reorders its hypotheses reorders the rows of the table at the right, and no key or value ever moves. A
node that nobody sees any more is written over. All hypotheses of a sentence look at its nodes in one call. A trained
model's beam of 5 had 35 nodes a sentence after 20 tokens, 60 to 70 in the worst of 64 sentences, where a cache for each
hypothesis has 100 keys to read and to copy.

B sentences, k hypotheses, M = B·k rows, n nodes, S source positions, H heads, G key heads, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.core.types import Capacity, Memory, Segments
from dragoman.engines.cpu.packed_linear import joined
from dragoman.nn.attention import MultiHead, Places
from dragoman.nn.blocks import Block, Stack
from dragoman.nn.decoders.transformer import TransformerDecoder
from dragoman.nn.encoders.transformer import TransformerEncoder
from dragoman.nn.layers import LayerNorm, RMSNorm
from dragoman.nn.positions import only_adds, rotates
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention

BLOCK = 64  # outputs are padded to a multiple of this, so that a search can look at them block by block
ROOM = 8  # nodes a hypothesis has room for at first
NOTHING = torch.zeros(1, 1, 1)  # what a product is added to, zero times
Function = Callable[[Tensor], Tensor]
Nodes = tuple[Tensor, Tensor]  # sentences (B, 1) and nodes of each (B, k)
Numbers = np.ndarray[Any, np.dtype[Any]]


class Layer:
    """The products of one block, what stands between them, and what its attention needs to know.

    All is taken out of the modules once: a step of a small model is a hundred calls of a microsecond or two each, and
    walking through modules to find them took as long as they did.
    """

    def __init__(self, block: Block, position: Any, precision: str) -> None:
        self.pre, self.mixer, self.position = block.pre, block.mixer, position
        mixer, cross, feed = block.mixer, block.cross_attention, block.feedforward
        self.look = Look(mixer)
        self.turns, self.biases = rotates(position), position.biases
        self.qkv, self.o = joined([mixer.Wq, mixer.Wk, mixer.Wv], precision), joined([mixer.Wo], precision)
        self.widths = [mixer.Wq.out_features, mixer.Wk.out_features, mixer.Wv.out_features]
        self.mixer_norm, self.feedforward_norm = function(block.mixer_norm), function(block.feedforward_norm)
        if cross is not None:
            self.across, self.cross_norm = Look(cross), function(block.cross_norm)
            self.cross_q, self.cross_o = joined([cross.Wq], precision), joined([cross.Wo], precision)
        self.f = torch.relu_ if feed.f is F.relu else feed.f
        self.W1 = joined([feed.W1] if feed.W3 is None else [feed.W1, feed.W3], precision)
        self.W2, self.gated = joined([feed.W2], precision), feed.W3 is not None

    def after(self, x: Tensor, y: Tensor, norm: Function) -> Tensor:
        x = y.add_(x)
        return x if self.pre else norm(x)

    def feedforward(self, x: Tensor) -> Tensor:
        """x (M, D)"""
        norm = self.feedforward_norm
        h = self.W1(norm(x) if self.pre else x)
        if self.gated:
            h, gate = h.chunk(2, -1)
            h = self.f(h) * gate
        else:
            h = self.f(h)
        return self.after(x, self.W2(h), norm)


class Look:
    """c = softmax(s q kᵀ) v for the heads of an attention, as two plain products.

    For so few queries the fused kernel takes 1.1 to 2.8 times as long. In bfloat16 a whole decoding was no faster.
    """

    def __init__(self, attention: MultiHead) -> None:
        self.heads, self.key_heads, self.scale = attention.heads, attention.key_heads, attention.scale or 1.0

    def queries(self, q: Tensor, k: int) -> Tensor:
        """(M, H d_k) → (B · G, H/G · k, d_k): those that look at the same keys side by side."""
        H, G = self.heads, self.key_heads
        if k > 1:
            q = q.view(-1, k, H, q.shape[1] // H).transpose(1, 2)
        return q.reshape(-1, H // G * k, q.shape[-1] if k > 1 else q.shape[1] // H)

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, k: int, bias: Tensor | None, unseen: Tensor | None
    ) -> Tensor:
        """Those queries over keys (B · G, d_k, n) and values (B · G, n, d_v) → the heads side by side, (M, H d_v)."""
        H = self.heads
        e = torch.baddbmm(NOTHING, q, keys, beta=0, alpha=self.scale)  # (B · G, H/G · k, n)
        if bias is not None:
            e = (e.view(-1, H, k, e.shape[-1]) + bias).view_as(e)
        if unseen is not None:
            e.view(-1, H, k, e.shape[-1]).masked_fill_(unseen, -torch.inf)
        c = torch.bmm(torch.softmax(e, -1), values)
        if k > 1:
            c = c.view(-1, H, k, c.shape[-1]).transpose(1, 2)
        return c.reshape(-1, H * c.shape[-1])


def function(norm: Any) -> Function:
    """What a norm computes, without its module, whose call takes as long again."""
    if type(norm) is LayerNorm:
        shape, weight, bias, eps = norm.normalized_shape, norm.weight.detach(), norm.bias.detach(), norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    if type(norm) is RMSNorm:
        size, gain, least = norm.normalized_shape, norm.weight.detach(), norm.eps
        return lambda x: torch.rms_norm(x, size, gain, least)
    return norm  # type: ignore[no-any-return]


@dataclass
class Cache:
    """What a batch has computed so far. Search sees its `select` and `reorder` (core/tree.py).

    Who sees what is small and asked about many times a step: it is in numpy, whose calls are the shorter ones.
    """

    keys: list[Tensor]  # of the nodes, by layer: (B, G, room, d_k)
    values: list[Tensor]
    seen: Numbers | None  # (B, k, room): which nodes a hypothesis descends from; None: all of them, k is 1
    place: Numbers  # (B, room): where each node stands
    n: int  # nodes in use, the most of any sentence
    t: int  # the next place
    source_keys: list[Tensor]  # by layer: (B · G, d_k, S)
    source_values: list[Tensor]  # (B · G, S, d_v)
    missing: Tensor | None  # (B, 1, 1, S): true for padding; None: there is none

    def select(self, rows: Tensor) -> Cache:
        n, B, places = self.n, len(self.place), rows.numpy()

        def of_source(x: Tensor) -> Tensor:
            return x.view(B, -1, *x.shape[1:])[rows].flatten(0, 1)

        return Cache(
            [x[rows, :, :n] for x in self.keys],
            [x[rows, :, :n] for x in self.values],
            None if self.seen is None else self.seen[places, :, :n],
            self.place[places, :n],
            n,
            self.t,
            [of_source(x) for x in self.source_keys],
            [of_source(x) for x in self.source_values],
            None if self.missing is None else self.missing[rows],
        )

    def reorder(self, parents: Tensor) -> Cache:
        if self.seen is not None:
            self.seen = self.seen[np.arange(len(parents))[:, None], parents.numpy()]
        return self

    def grow(self, needed: int) -> None:
        """Make room for so many nodes."""
        room = self.place.shape[1]
        if needed <= room:
            return
        more = max(room + room // 4, needed) - room  # tight: what is read at each step should fit into the CPU's caches
        self.keys, self.values = ([F.pad(x, (0, 0, 0, more)) for x in xs] for xs in (self.keys, self.values))
        self.place = np.pad(self.place, ((0, 0), (0, more)))
        self.seen = None if self.seen is None else np.pad(self.seen, ((0, 0), (0, 0), (0, more)))

    def new_nodes(self, hypotheses: int) -> Nodes | None:
        """Nodes for what a step reads: the first that nobody sees; None: the next one, for every sentence."""
        if hypotheses == 1:  # before the first step a beam is one beginning, which all hypotheses will descend from
            self.grow(self.n + 1)
            self.place[:, self.n] = self.t
            if self.seen is not None:
                self.seen[:, :, self.n] = True
            self.n += 1
            return None
        assert self.seen is not None
        k = self.seen.shape[1]
        self.grow(self.n + k)
        nodes = self.seen.any(1).argsort(axis=1, kind="stable")[:, :k]
        rows, each = np.arange(len(nodes))[:, None], np.arange(k)
        self.seen[rows, :, nodes] = each[:, None] == each
        self.place[rows, nodes] = self.t
        self.n = max(self.n, int(nodes.max()) + 1)
        return torch.from_numpy(rows), torch.from_numpy(nodes)

    def unseen(self, nodes: Nodes | None) -> Tensor | None:
        """(B, 1, k, n): true where a hypothesis does not descend from a node; None: all do from all."""
        return None if nodes is None or self.seen is None else torch.from_numpy(~self.seen[:, None, :, : self.n])

    def write(self, i: int, k: Tensor, v: Tensor, nodes: Nodes | None) -> None:
        """Put keys and values (M, G ·) of a layer at these nodes."""
        for past, x in ((self.keys[i], k), (self.values[i], v)):
            B, G, _, width = past.shape
            if nodes is None:
                past.select(2, self.n - 1).copy_(x.view(B, G, width))
            else:
                rows, places = nodes
                past[rows, :, places] = x.view(B, -1, G, width)

    def past(self, i: int) -> tuple[Tensor, Tensor]:
        """The keys (B · G, d_k, n) and values (B · G, n, d_v) of a layer so far."""
        keys, values = self.keys[i].flatten(0, 1), self.values[i].flatten(0, 1)
        return keys[:, : self.n].mT, values[:, : self.n]


class Transformer:
    """A Seq2Seq whose decoder is a Transformer, one step at a time; has `encode`, `start` and `step` like the model."""

    def __init__(self, model: Seq2Seq, precision: str) -> None:
        self.model, self.stack = model, model.decoder.stack
        blocks: Any = self.stack.blocks
        self.layers = [Layer(block, self.stack.inside(i), precision) for i, block in enumerate(blocks)]
        across = [block.cross_attention for block in blocks]
        self.Wk, self.Wv = joined([a.Wk for a in across], precision), joined([a.Wv for a in across], precision)
        self.table, self.factor = model.embedding.table.weight.detach(), model.embedding.factor
        self.size = model.output.out_features
        self.output = joined([padded(model.output)], precision)
        self.encoder = None
        if type(model.encoder) is TransformerEncoder and plain_attention(model.encoder.stack):
            stack: Any = model.encoder.stack
            self.encoder = [Layer(block, stack.inside(i), precision) for i, block in enumerate(stack.blocks)]
        self.inward = None if isinstance(self.stack.inward, nn.Identity) else self.stack.inward
        self.first_norm, self.last_norm = (
            None if norm is None else function(norm) for norm in (self.stack.embedding_norm, self.stack.norm)
        )
        self.places = self.stack.inside(0)(torch.zeros(1, 0, model.decoder.d), torch.zeros(1, 0, dtype=torch.long))[0]

    # -- the source --------------------------------------------------------------------------------------------------

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        if self.encoder is None:
            return self.model.encode(source, lengths)
        stack: Stack = self.model.encoder.stack
        B, S = source.shape
        real = Segments(lengths).mask(S)
        t = torch.arange(S)[None]
        mask = None if bool(real.all()) else real[:, None, None]
        places = Places(t, mask, False, lengths[:, None, None], real)
        x = stack.embed(self.model.frontend(source), t, real).flatten(0, 1)  # (B · S, D)
        for layer in self.encoder:
            mixer, position, norm = layer.mixer, layer.position, layer.mixer_norm
            qkv = layer.qkv(norm(x) if layer.pre else x).view(B, S, -1)
            q, k, v = (mixer.split(y, h) for y, h in zip(torch.split(qkv, layer.widths, -1), heads(mixer), strict=True))
            q, k = position.turn(q, t), position.turn(k, t)
            c = mixer.attend(q, mixer.score.prepare(k), v, places, position)  # (B, H, S, d_v)
            x = layer.after(x, layer.o(c.transpose(1, 2).reshape(B * S, -1)), norm)
            x = layer.feedforward(x)
        x = x if stack.norm is None else stack.norm(x)
        return Memory(x.view(B, S, -1), lengths, x.new_zeros(B, 0), source=source)

    # -- step by step ------------------------------------------------------------------------------------------------

    def start(self, memory: Memory, capacity: Capacity) -> Cache:
        k, B = capacity.hypotheses, len(memory.lengths)
        rows = memory.states.flatten(0, 1)
        values = rows if memory.values is None else memory.values.flatten(0, 1)
        room, mask, G = k * min(ROOM, capacity.length), memory.mask, self.layers[0].mixer.key_heads
        wk, wv = (w // G for w in self.layers[0].widths[1:])

        def split(x: Tensor) -> Tensor:  # (B, S, L, G, ·)
            return x.view(B, -1, len(self.layers), G, x.shape[-1] // (len(self.layers) * G))

        return Cache(
            [torch.zeros(B, G, room, wk) for _ in self.layers],  # zeros: a masked NaN would still be one
            [torch.zeros(B, G, room, wv) for _ in self.layers],
            np.zeros((B, k, room), bool) if k > 1 else None,
            np.zeros((B, room), np.int64),
            0,
            0,
            list(split(self.Wk(rows)).permute(2, 0, 3, 4, 1).flatten(1, 2)),  # 1.7 times as fast as (S, d_k)
            list(split(self.Wv(values)).permute(2, 0, 3, 1, 4).flatten(1, 2)),
            None if bool(mask.all()) else ~mask[:, None, None],
        )

    def step(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        """The contract of a search: tokens (B, k) → log p (B, k, V)."""
        log_p = torch.log_softmax(self.logits(tokens, state), -1)[:, : self.size]
        return log_p.view(*tokens.shape, -1), state

    def logits(self, tokens: Tensor, cache: Cache) -> Tensor:
        """tokens (B, k) → (B · k, V and some columns of −∞); the cache moves on by a place."""
        k = tokens.shape[1]
        x = self.embed(tokens.reshape(-1), cache.t)  # (M, D)
        nodes = cache.new_nodes(k)
        unseen = cache.unseen(nodes)
        for i, layer in enumerate(self.layers):
            q, bias = self.write(x, i, cache, nodes, k)
            x = layer.after(x, layer.o(layer.look(q, *cache.past(i), k, bias, unseen)), layer.mixer_norm)
            q = layer.across.queries(layer.cross_q(layer.cross_norm(x) if layer.pre else x), k)
            c = layer.across(q, cache.source_keys[i], cache.source_values[i], k, None, cache.missing)
            x = layer.after(x, layer.cross_o(c), layer.cross_norm)
            x = layer.feedforward(x)
        cache.t += 1
        return self.output(x if self.last_norm is None else self.last_norm(x))

    def embed(self, tokens: Tensor, t: int) -> Tensor:
        if t >= len(self.places):  # what is added for a place does not depend on the token
            stack: Any = self.stack
            more = torch.arange(2 * t + 64 if stack.length is None else stack.length)[None]
            self.places = stack.inside(0)(torch.zeros(1, more.shape[1], self.model.decoder.d), more)[0]
        x = torch.embedding(self.table, tokens).mul_(self.factor)
        x = (x if self.inward is None else self.inward(x)).add_(self.places[t])
        return x if self.first_norm is None else self.first_norm(x)

    def write(self, x: Tensor, i: int, cache: Cache, nodes: Nodes | None, k: int) -> tuple[Tensor, Tensor | None]:
        """Put keys and values of x (M, D) into the cache; its queries as `Look` has them, a bias on their scores."""
        layer = self.layers[i]
        qkv = layer.qkv(layer.mixer_norm(x) if layer.pre else x)
        q, key, value = qkv.split_with_sizes(layer.widths, -1)
        if not layer.turns and not layer.biases:
            cache.write(i, key, value, nodes)
            return layer.look.queries(q, k), None
        return self.write_in_order(layer, i, q, key, value, cache, nodes, k)

    def write_in_order(
        self,
        layer: Layer,
        i: int,
        q: Tensor,
        key: Tensor,
        value: Tensor,
        cache: Cache,
        nodes: Nodes | None,
        k: int,
    ) -> tuple[Tensor, Tensor | None]:
        """The same where positions act inside attention."""
        t, position, bias = torch.tensor([[cache.t]]), layer.position, None
        q, keys = (
            position.turn(y.view(-1, k, h, y.shape[-1] // h).transpose(1, 2), t)
            for y, h in ((q, layer.look.heads), (key, layer.look.key_heads))
        )  # (B, H or G, k, d_k)
        cache.write(i, keys.transpose(1, 2).reshape(key.shape), value, nodes)
        if layer.biases:
            bias = position.bias(q, t, torch.from_numpy(cache.place[:, : cache.n]))
        return layer.look.queries(q.transpose(1, 2).reshape(len(key), -1), k), bias


def heads(attention: MultiHead) -> tuple[int, int, int]:
    """How many there are of queries, keys and values."""
    return attention.heads, attention.key_heads, attention.key_heads


def padded(output: nn.Linear) -> nn.Linear:
    """The output layer with a multiple of BLOCK outputs; those that are no token have a bias of −∞."""
    spare = -output.out_features % BLOCK
    wide = nn.Linear(output.in_features, output.out_features + spare, device="meta")
    bias = output.weight.new_zeros(output.out_features) if output.bias is None else output.bias
    wide.weight = nn.Parameter(F.pad(output.weight, (0, 0, 0, spare)), requires_grad=False)
    wide.bias = nn.Parameter(F.pad(bias, (0, spare), value=-torch.inf), requires_grad=False)
    return wide


def plain_attention(stack: Any) -> bool:
    """Whether the blocks of a stack are what `Layer` computes."""
    block: Any = stack.blocks[0]
    attentions = [block.mixer] if block.cross_attention is None else [block.mixer, block.cross_attention]
    fused = type(block.mixer) is SelfAttention and all(attention.fused for attention in attentions)
    return fused and not stack.inside(0).sees_weights


def fits(model: Any) -> bool:
    """Whether `Transformer` computes this model."""
    return (
        isinstance(model, Seq2Seq)
        and type(model.decoder) is TransformerDecoder
        and model.decoder.source == "attention"
        and plain_attention(model.decoder.stack)
        and only_adds(model.decoder.stack.inside(0))
        and model.pointer is None
    )
