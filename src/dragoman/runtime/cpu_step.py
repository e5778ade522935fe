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

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.core.interfaces import Capacity, Memory, Segments
from dragoman.nn.attention import MultiHead, Places
from dragoman.nn.blocks import Block, Stack
from dragoman.nn.decoders.transformer import TransformerDecoder
from dragoman.nn.encoders.transformer import TransformerEncoder
from dragoman.nn.mixers import SelfAttention
from dragoman.nn.positions import Nowhere
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.runtime.linears import joined

BLOCK = 64  # outputs are padded to a multiple of this, so that a search can look at them block by block
ROOM = 8  # nodes a hypothesis has room for at first


class Layer:
    """The products of one block, and what stands between them."""

    def __init__(self, block: Block, precision: str) -> None:
        self.block, self.pre, self.mixer, self.cross = block, block.pre, block.mixer, block.cross_attention
        mixer, feed = block.mixer, block.feedforward
        self.qkv, self.o = joined([mixer.Wq, mixer.Wk, mixer.Wv], precision), joined([mixer.Wo], precision)
        self.widths = [mixer.Wq.out_features, mixer.Wk.out_features, mixer.Wv.out_features]
        if self.cross is not None:
            self.cross_q, self.cross_o = joined([self.cross.Wq], precision), joined([self.cross.Wo], precision)
        self.f = feed.f
        self.W1 = joined([feed.W1] if feed.W3 is None else [feed.W1, feed.W3], precision)
        self.W2, self.gated = joined([feed.W2], precision), feed.W3 is not None

    @staticmethod
    def normed(x: Tensor, norm: Any) -> Tensor:
        return norm(x)  # type: ignore[no-any-return]

    def before(self, x: Tensor, norm: Any) -> Tensor:
        return self.normed(x, norm) if self.pre else x

    def after(self, x: Tensor, y: Tensor, norm: Any) -> Tensor:
        x = y.add_(x)
        return x if self.pre else self.normed(x, norm)

    def feedforward(self, x: Tensor) -> Tensor:
        """x (M, D)"""
        norm = self.block.feedforward_norm
        h = self.W1(self.before(x, norm))
        if self.gated:
            h, gate = h.chunk(2, -1)
            h = self.f(h) * gate
        else:
            h = h.relu_() if self.f is F.relu else self.f(h)
        return self.after(x, self.W2(h), norm)


@dataclass
class Cache:
    """What a batch has computed so far. Search sees its `select` and `reorder` (core/tree.py)."""

    keys: list[Tensor]  # of the nodes, by layer: (B, G, room, d_k)
    values: list[Tensor]
    seen: Tensor | None  # (B, k, room): which nodes a hypothesis descends from; None: all of them, k is 1
    place: Tensor  # (B, room): where each node stands
    n: int  # nodes in use, the most of any sentence
    t: int  # the next place
    source_keys: list[Tensor]  # by layer: (B, G, d_k, S)
    source_values: list[Tensor]  # (B, G, S, d_v)
    missing: Tensor | None  # (B, 1, 1, S): true for padding; None: there is none

    def select(self, rows: Tensor) -> Cache:
        n = self.n
        return Cache(
            [x[rows, :, :n] for x in self.keys],
            [x[rows, :, :n] for x in self.values],
            None if self.seen is None else self.seen[rows, :, :n],
            self.place[rows, :n],
            n,
            self.t,
            [x[rows] for x in self.source_keys],
            [x[rows] for x in self.source_values],
            None if self.missing is None else self.missing[rows],
        )

    def reorder(self, parents: Tensor) -> Cache:
        if self.seen is not None:
            self.seen = self.seen[torch.arange(len(parents))[:, None], parents]
        return self

    def grow(self, needed: int) -> None:
        """Make room for so many nodes."""
        room = self.place.shape[1]
        if needed <= room:
            return
        more = max(room + room // 4, needed) - room  # tight: what is read at each step should fit into the CPU's caches
        self.keys, self.values = ([F.pad(x, (0, 0, 0, more)) for x in xs] for xs in (self.keys, self.values))
        self.place = F.pad(self.place, (0, more))
        self.seen = None if self.seen is None else F.pad(self.seen, (0, more))

    def new_nodes(self, hypotheses: int) -> Tensor | None:
        """Nodes for what a step reads, (B, k): the first that nobody sees; None: the next one, for every sentence."""
        if hypotheses == 1:  # before the first step a beam is one beginning, which all hypotheses will descend from
            self.grow(self.n + 1)
            self.place[:, self.n] = self.t
            if self.seen is not None:
                self.seen[:, :, self.n] = True
            self.n += 1
            return None
        assert self.seen is not None
        B, k, _ = self.seen.shape
        self.grow(self.n + k)
        nodes = self.seen.any(1).to(torch.uint8).argsort(dim=-1, stable=True)[:, :k]
        self.seen.scatter_(2, nodes[:, None].expand(-1, k, -1), torch.eye(k, dtype=torch.bool).expand(B, k, k))
        self.place.scatter_(1, nodes, self.t)
        self.n = max(self.n, int(nodes.max()) + 1)
        return nodes

    def write(self, i: int, k: Tensor, v: Tensor, nodes: Tensor | None) -> None:
        """Put keys and values (B, k, G, ·) of a layer at these nodes."""
        for past, x in ((self.keys[i], k), (self.values[i], v)):
            if nodes is None:
                past[:, :, self.n - 1] = x[:, 0]
            else:
                past[torch.arange(len(x))[:, None], :, nodes] = x


class Transformer:
    """A Seq2Seq whose decoder is a Transformer, one step at a time; has `encode`, `start` and `step` like the model."""

    def __init__(self, model: Seq2Seq, precision: str) -> None:
        self.model, self.stack = model, model.decoder.stack
        blocks: Any = self.stack.blocks
        self.layers = [Layer(block, precision) for block in blocks]
        across = [block.cross_attention for block in blocks]
        self.Wk, self.Wv = joined([a.Wk for a in across], precision), joined([a.Wv for a in across], precision)
        self.table, self.factor = model.embedding.table.weight.detach(), model.embedding.factor
        self.size = model.output.out_features
        self.output = joined([padded(model.output)], precision)
        self.encoder = None
        if type(model.encoder) is TransformerEncoder and plain_attention(model.encoder.stack):
            self.encoder = [Layer(block, precision) for block in list[Any](model.encoder.stack.blocks)]
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
        for i, layer in enumerate(self.encoder):
            mixer, position, norm = layer.mixer, stack.inside(i), layer.block.mixer_norm
            qkv = layer.qkv(layer.before(x, norm)).view(B, S, -1)
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
            torch.zeros(B, k, room, dtype=torch.bool) if k > 1 else None,
            torch.zeros(B, room, dtype=torch.long),
            0,
            0,
            list(split(self.Wk(rows)).permute(2, 0, 3, 4, 1).contiguous()),  # 1.7 times as fast as (S, d_k)
            list(split(self.Wv(values)).permute(2, 0, 3, 1, 4).contiguous()),
            None if bool(mask.all()) else ~mask[:, None, None],
        )

    def step(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        """The contract of a search: tokens (B, k) → log p (B, k, V)."""
        log_p = torch.log_softmax(self.logits(tokens, state), -1)[:, : self.size]
        return log_p.view(*tokens.shape, -1), state

    def logits(self, tokens: Tensor, cache: Cache) -> Tensor:
        """tokens (B, k) → (B · k, V and some columns of −∞); the cache moves on by a place."""
        k, t = tokens.shape[1], torch.tensor([[cache.t]])
        x = self.embed(tokens.flatten(), cache.t)  # (M, D)
        nodes = cache.new_nodes(k)
        unseen = None if nodes is None or cache.seen is None else ~cache.seen[:, None, :, : cache.n]  # (B, 1, k, n)
        for i, layer in enumerate(self.layers):
            q, bias = self.write(x, i, cache, nodes, k, t)
            keys, values = cache.keys[i][:, :, : cache.n], cache.values[i][:, :, : cache.n]
            c = attended(layer.mixer, q, keys.transpose(-1, -2), values, bias, unseen)
            x = layer.after(x, layer.o(c), layer.block.mixer_norm)
            x = self.look_across(x, i, cache, k)
            x = layer.feedforward(x)
        cache.t += 1
        return self.output(x if self.stack.norm is None else self.stack.norm(x))

    def embed(self, tokens: Tensor, t: int) -> Tensor:
        stack: Any = self.stack
        if t >= len(self.places):  # what is added for a place does not depend on the token
            more = torch.arange(2 * t + 64 if stack.length is None else stack.length)[None]
            self.places = stack.inside(0)(torch.zeros(1, more.shape[1], self.model.decoder.d), more)[0]
        x: Tensor = stack.inward(F.embedding(tokens, self.table) * self.factor).add_(self.places[t])
        return x if stack.embedding_norm is None else Layer.normed(x, stack.embedding_norm)

    def write(
        self, x: Tensor, i: int, cache: Cache, nodes: Tensor | None, k: int, t: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Put keys and values of x (M, D) into the cache; its queries (B, H, k, d_k), and a bias on their scores."""
        layer, position = self.layers[i], self.stack.inside(i)
        qkv = layer.qkv(layer.before(x, layer.block.mixer_norm))
        q, key, value = (
            y.view(-1, k, h, y.shape[-1] // h)
            for y, h in zip(torch.split(qkv, layer.widths, -1), heads(layer.mixer), strict=True)
        )  # (B, k, H or G, ·)
        q = q.transpose(1, 2)
        if type(position).turn is not Nowhere.turn:
            q, key = position.turn(q, t), position.turn(key.transpose(1, 2), t).transpose(1, 2)
        cache.write(i, key, value, nodes)
        biased = type(position).bias is not Nowhere.bias
        return q, position.bias(q, t, cache.place[:, : cache.n]) if biased else None

    def look_across(self, x: Tensor, i: int, cache: Cache, k: int) -> Tensor:
        """Attention of the hypotheses of each sentence over its source."""
        layer = self.layers[i]
        cross, norm = layer.cross, layer.block.cross_norm
        assert cross is not None
        q = layer.cross_q(layer.before(x, norm))
        q = cross.split(q.view(-1, k, q.shape[-1]), cross.heads)  # (B, H, k, d_k)
        c = attended(cross, q, cache.source_keys[i], cache.source_values[i], None, cache.missing)
        return layer.after(x, layer.cross_o(c), norm)


def attended(
    attention: MultiHead, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, unseen: Tensor | None
) -> Tensor:
    """q (B, H, k, d_k) over keys (B, G, d_k, n) and values (B, G, n, d_v) → the heads side by side, (B · k, H d_v).

    Two plain products: for so few queries the fused kernel takes 1.1 to 2.8 times as long. In bfloat16 a whole
    decoding was no faster.
    """
    B, H, k, d = q.shape
    G = attention.key_heads
    e = (q * (attention.scale or 1.0)).reshape(B, G, H // G * k, d) @ keys  # (B, G, H/G · k, n)
    e = e.view(B, H, k, -1)
    if bias is not None:
        e = e + bias
    if unseen is not None:
        e.masked_fill_(unseen, -torch.inf)
    c = e.softmax(-1).view(B, G, H // G * k, -1) @ values
    return c.view(B, H, k, -1).transpose(1, 2).reshape(B * k, -1)


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
        and model.pointer is None
    )
