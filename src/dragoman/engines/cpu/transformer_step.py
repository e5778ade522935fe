"""A Transformer on a CPU: the encoder, and one decoding step, with weights repacked once (packed_linear.py).

    h = norm(x)      q, k, v = W_qkv h      c = self-attention      x ← x + W_o c          (post: x ← norm(x + W_o c))
    h = norm(x)      q = W_q h              c = cross-attention     x ← x + W_o c
    h = norm(x)      x ← x + W₂ f(W₁ h)

The hypotheses of a sentence are paths in a tree, and each node has a key and a value:

    position   1    2    3    4                     read by       1  2  3  4  4' 3'
    node       a ── b ── c ── d                     hypothesis 1  ×  ×  ×  ×
                    │    └─── d'                    hypothesis 2  ×  ×  ×     ×
                    └── c'                          hypothesis 3  ×  ×           ×

A beam that reorders its hypotheses reorders the rows of the table on the right, and no key or value ever moves. A node
that no hypothesis reads any more is overwritten. All hypotheses of a sentence attend to its nodes in one call. A
trained model's beam of 5 had 35 nodes a sentence after 20 tokens, 60 to 70 in the worst of 64 sentences; a cache for
each hypothesis would have 100 keys to read and to copy.

B sentences, k hypotheses, M = B·k rows, n nodes, S source positions, H heads, G key heads, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.core.types import Capacity, Memory, Segments
from dragoman.engines.cpu.packed_linear import pack_linears
from dragoman.nn.attention import AttentionMask, MultiHeadAttention
from dragoman.nn.blocks import TransformerBlock, TransformerStack
from dragoman.nn.decoders.transformer import TransformerDecoder
from dragoman.nn.encoders.transformer import TransformerEncoder
from dragoman.nn.layers import LayerNorm, NormLayer, RMSNorm
from dragoman.nn.losses import output_log_probs
from dragoman.nn.positions import PositionScheme, is_additive, may_rotate
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention

INITIAL_NODES = 8  # nodes for each hypothesis that a cache starts with
ZERO = torch.zeros(1, 1, 1)  # the ignored summand of baddbmm
Function = Callable[[Tensor], Tensor]
Nodes = tuple[Tensor, Tensor]  # sentences (B, 1) and nodes of each (B, k)


class BlockWeights:
    """The repacked projections, norms and sizes of one Transformer block.

    They are taken out of the modules once: a step of a small model is a hundred calls of a microsecond or two each, and
    finding them in the modules took as long as the calls.
    """

    def __init__(self, block: TransformerBlock, position: PositionScheme) -> None:
        self.is_pre_norm, self.mixer, self.position = block.is_pre_norm, block.mixer, position
        mixer, cross, feed = block.mixer, block.cross_attention, block.feedforward
        self.self_attention = BatchedAttention(mixer)
        self.rotates, self.has_bias = may_rotate(position), position.has_score_bias
        self.qkv, self.o = pack_linears([mixer.Wq, mixer.Wk, mixer.Wv]), pack_linears([mixer.Wo])
        self.widths = [mixer.Wq.out_features, mixer.Wk.out_features, mixer.Wv.out_features]
        self.mixer_norm, self.feedforward_norm = norm_function(block.mixer_norm), norm_function(block.feedforward_norm)
        if cross is not None and block.cross_norm is not None:
            self.cross_attention, self.cross_norm = BatchedAttention(cross), norm_function(block.cross_norm)
            self.cross_q, self.cross_o = pack_linears([cross.Wq]), pack_linears([cross.Wo])
        self.f = torch.relu_ if feed.f is F.relu else feed.f
        self.W1 = pack_linears([feed.W1] if feed.W3 is None else [feed.W1, feed.W3])
        self.W2, self.gated = pack_linears([feed.W2]), feed.W3 is not None

    def add_residual(self, x: Tensor, y: Tensor, norm: Function) -> Tensor:
        """x + y, written into the memory of y; post-norm: normalized."""
        x = y.add_(x)
        return x if self.is_pre_norm else norm(x)

    def feedforward(self, x: Tensor) -> Tensor:
        """The feed-forward sub-layer of x (M, D), with its residual and norm."""
        norm = self.feedforward_norm
        h = self.W1(norm(x) if self.is_pre_norm else x)
        if self.gated:
            h, gate = h.chunk(2, -1)
            h = self.f(h) * gate
        else:
            h = self.f(h)
        return self.add_residual(x, self.W2(h), norm)


class BatchedAttention:
    """c = softmax(s q kᵀ) v for all heads, as two batched matrix products.

    For so few queries the fused kernel takes 1.1 to 2.8 times as long.
    """

    def __init__(self, attention: MultiHeadAttention) -> None:
        self.heads, self.key_heads, self.scale = attention.heads, attention.key_heads, attention.scale or 1.0

    def queries(self, q: Tensor, k: int) -> Tensor:
        """q (M, H d_k) → (B · G, H/G · k, d_k): queries that share keys are rows of one matrix."""
        H, G = self.heads, self.key_heads
        if k > 1:
            q = q.view(-1, k, H, q.shape[1] // H).transpose(1, 2)
        return q.reshape(-1, H // G * k, q.shape[-1] if k > 1 else q.shape[1] // H)

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, k: int, bias: Tensor | None, masked: Tensor | None
    ) -> Tensor:
        """Queries over keys (B · G, d_k, n) and values (B · G, n, d_v) → the concatenated heads, (M, H d_v)."""
        H = self.heads
        e = torch.baddbmm(ZERO, q, keys, beta=0, alpha=self.scale)  # (B · G, H/G · k, n)
        if bias is not None:
            e = (e.view(-1, H, k, e.shape[-1]) + bias).view_as(e)
        if masked is not None:
            e.view(-1, H, k, e.shape[-1]).masked_fill_(masked, -torch.inf)
        c = torch.bmm(torch.softmax(e, -1), values)
        if k > 1:
            c = c.view(-1, H, k, c.shape[-1]).transpose(1, 2)
        return c.reshape(-1, H * c.shape[-1])


def norm_function(norm: NormLayer) -> Function:
    """A norm as a function: the call of its module takes as long as the norm itself."""
    if type(norm) is LayerNorm:
        shape, weight, bias, eps = norm.normalized_shape, norm.weight.detach(), norm.bias.detach(), norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    if type(norm) is RMSNorm:
        size, gain, least = norm.normalized_shape, norm.weight.detach(), norm.eps
        return lambda x: torch.rms_norm(x, size, gain, least)
    return norm


@dataclass
class TreeCache:
    """The keys and values of a batch so far. Searches use its `select` and `reorder` (core/tree.py).

    Ancestry and positions are small and read many times a step: they are in numpy, whose calls are shorter.
    """

    keys: list[Tensor]  # of the nodes, by layer: (B, G, size, d_k)
    values: list[Tensor]
    ancestors: np.ndarray | None  # (B, k, size): the nodes that a hypothesis descends from; None: all of them, k is 1
    position: np.ndarray  # (B, size): the position of each node
    n: int  # nodes in use, the maximum over the sentences
    t: int  # the next position
    source_keys: list[Tensor]  # by layer: (B · G, d_k, S)
    source_values: list[Tensor]  # (B · G, S, d_v)
    padding: Tensor | None  # (B, 1, 1, S): true for padding; None: there is none

    def select(self, rows: Tensor) -> TreeCache:
        """A cache with these sentences alone."""
        n, B, indices = self.n, len(self.position), rows.numpy()

        def select_source(x: Tensor) -> Tensor:
            return x.view(B, -1, *x.shape[1:])[rows].flatten(0, 1)

        return TreeCache(
            [x[rows, :, :n] for x in self.keys],
            [x[rows, :, :n] for x in self.values],
            None if self.ancestors is None else self.ancestors[indices, :, :n],
            self.position[indices, :n],
            n,
            self.t,
            [select_source(x) for x in self.source_keys],
            [select_source(x) for x in self.source_values],
            None if self.padding is None else self.padding[rows],
        )

    def reorder(self, parents: Tensor) -> TreeCache:
        """Let hypothesis j of sentence b continue parents[b, j]: reorders the ancestry in place, nothing else."""
        if self.ancestors is not None:
            self.ancestors = self.ancestors[np.arange(len(parents))[:, None], parents.numpy()]
        return self

    def grow(self, needed: int) -> None:
        """Allocate nodes in place until there are at least `needed`."""
        size = self.position.shape[1]
        if needed <= size:
            return
        more = max(size + size // 4, needed) - size  # little: what a step reads should fit into the CPU's caches
        self.keys, self.values = ([F.pad(x, (0, 0, 0, more)) for x in xs] for xs in (self.keys, self.values))
        self.position = np.pad(self.position, ((0, 0), (0, more)))
        self.ancestors = None if self.ancestors is None else np.pad(self.ancestors, ((0, 0), (0, 0), (0, more)))

    def new_nodes(self, hypotheses: int) -> Nodes | None:
        """Take unused nodes for the tokens of a step: their indices; None: the next one, for every sentence."""
        if hypotheses == 1:  # at the first step a beam is one hypothesis, which all others will descend from
            self.grow(self.n + 1)
            self.position[:, self.n] = self.t
            if self.ancestors is not None:
                self.ancestors[:, :, self.n] = True
            self.n += 1
            return None
        assert self.ancestors is not None
        k = self.ancestors.shape[1]
        self.grow(self.n + k)
        nodes = self.ancestors.any(1).argsort(axis=1, kind="stable")[:, :k]
        rows, each = np.arange(len(nodes))[:, None], np.arange(k)
        self.ancestors[rows, :, nodes] = each[:, None] == each
        self.position[rows, nodes] = self.t
        self.n = max(self.n, int(nodes.max()) + 1)
        return torch.from_numpy(rows), torch.from_numpy(nodes)

    def attention_mask(self, nodes: Nodes | None) -> Tensor | None:
        """(B, 1, k, n): true where a hypothesis does not descend from a node; None: every one descends from all."""
        return (
            None if nodes is None or self.ancestors is None else torch.from_numpy(~self.ancestors[:, None, :, : self.n])
        )

    def write(self, i: int, k: Tensor, v: Tensor, nodes: Nodes | None) -> None:
        """Write the keys and values (M, G ·) of layer i to these nodes (None: to the newest)."""
        for past, x in ((self.keys[i], k), (self.values[i], v)):
            B, G, _, width = past.shape
            if nodes is None:
                past.select(2, self.n - 1).copy_(x.view(B, G, width))
            else:
                rows, indices = nodes
                past[rows, :, indices] = x.view(B, -1, G, width)

    def past(self, i: int) -> tuple[Tensor, Tensor]:
        """The keys (B · G, d_k, n) and values (B · G, n, d_v) of layer i so far."""
        keys, values = self.keys[i].flatten(0, 1), self.values[i].flatten(0, 1)
        return keys[:, : self.n].mT, values[:, : self.n]


class CPUTransformer:
    """A Seq2Seq with a Transformer decoder on repacked weights; has `encode`, `start` and `step` like the model."""

    def __init__(self, model: Seq2Seq) -> None:
        self.model = model
        self.stack: TransformerStack = model.decoder.stack
        self.layers = [BlockWeights(block, position) for block, position in self.stack.layers()]
        cross = [block.cross_attention for block, _ in self.stack.layers() if block.cross_attention is not None]
        self.Wk = pack_linears([a.Wk for a in cross])
        self.Wv = pack_linears([a.Wv for a in cross])
        self.table, self.factor = model.embedding.table.weight.detach(), model.embedding.factor
        self.output = pack_linears([model.output])
        self.encoder: list[BlockWeights] | None = None
        if encoder_blocker(model) is None:
            self.encoder = [BlockWeights(block, position) for block, position in model.encoder.stack.layers()]
        self.input_proj = None if isinstance(self.stack.input_proj, nn.Identity) else self.stack.input_proj
        self.first_norm, self.last_norm = (
            None if norm is None else norm_function(norm) for norm in (self.stack.embedding_norm, self.stack.norm)
        )
        self.positions = self.position_vectors(0)

    def position_vectors(self, count: int) -> Tensor:
        """The vector that is added to the token at each position, (count, D)."""
        t = torch.arange(count)[None]
        vectors: Tensor = self.stack.position_scheme(0)(torch.zeros(1, count, self.model.decoder.d), t)[0]
        return vectors

    # -- the source --------------------------------------------------------------------------------------------------

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """The encoder's states as Memory, by repacked weights where the encoder is a Transformer that they serve."""
        if self.encoder is None:
            return self.model.encode(source, lengths)
        stack: TransformerStack = self.model.encoder.stack
        B, S = source.shape
        real = Segments(lengths).mask(S)
        t = torch.arange(S)[None]
        mask = None if bool(real.all()) else real[:, None, None]
        attention_mask = AttentionMask(t, mask, False, lengths[:, None, None], real)
        x = stack.embed_inputs(self.model.frontend(source), t, real).flatten(0, 1)  # (B · S, D)
        for layer in self.encoder:
            mixer, position, norm = layer.mixer, layer.position, layer.mixer_norm
            qkv = layer.qkv(norm(x) if layer.is_pre_norm else x).view(B, S, -1)
            heads = mixer.heads, mixer.key_heads, mixer.key_heads
            parts = zip(torch.split(qkv, layer.widths, -1), heads, strict=True)
            q, k, v = (mixer.split_heads(y, h) for y, h in parts)
            q, k = position.rotate(q, t), position.rotate(k, t)
            c = mixer.attend(q, mixer.score.prepare_keys(k), v, attention_mask, position)  # (B, H, S, d_v)
            x = layer.add_residual(x, layer.o(c.transpose(1, 2).reshape(B * S, -1)), norm)
            x = layer.feedforward(x)
        x = x if stack.norm is None else stack.norm(x)
        return Memory(x.view(B, S, -1), lengths, x.new_zeros(B, 0), source=source)

    # -- step by step ------------------------------------------------------------------------------------------------

    def start(self, memory: Memory, capacity: Capacity) -> TreeCache:
        """The cache before the first token, with the source's keys and values of all layers."""
        k, B = capacity.hypotheses, len(memory.lengths)
        rows = memory.states.flatten(0, 1)
        values = rows if memory.values is None else memory.values.flatten(0, 1)
        size, mask, G = k * min(INITIAL_NODES, capacity.length), memory.mask, self.layers[0].mixer.key_heads
        wk, wv = (w // G for w in self.layers[0].widths[1:])

        def split(x: Tensor) -> Tensor:  # (B, S, L, G, ·)
            return x.view(B, -1, len(self.layers), G, x.shape[-1] // (len(self.layers) * G))

        return TreeCache(
            [torch.zeros(B, G, size, wk) for _ in self.layers],  # zeros: a masked NaN would still be one
            [torch.zeros(B, G, size, wv) for _ in self.layers],
            np.zeros((B, k, size), bool) if k > 1 else None,
            np.zeros((B, size), np.int64),
            0,
            0,
            list(split(self.Wk(rows)).permute(2, 0, 3, 4, 1).flatten(1, 2)),  # 1.7 times as fast as (S, d_k)
            list(split(self.Wv(values)).permute(2, 0, 3, 1, 4).flatten(1, 2)),
            None if bool(mask.all()) else ~mask[:, None, None],
        )

    def step(self, tokens: Tensor, state: TreeCache) -> tuple[Tensor, TreeCache]:
        """tokens (B, k) → log p (B, k, V), as every search expects it, and the same cache, a position longer."""
        cache, k = state, tokens.shape[1]
        x = self.embed(tokens.reshape(-1), cache.t)  # (M, D)
        nodes = cache.new_nodes(k)
        masked = cache.attention_mask(nodes)
        for i, layer in enumerate(self.layers):
            q, bias = self.write(x, i, cache, nodes, k)
            x = layer.add_residual(
                x, layer.o(layer.self_attention(q, *cache.past(i), k, bias, masked)), layer.mixer_norm
            )
            q = layer.cross_attention.queries(layer.cross_q(layer.cross_norm(x) if layer.is_pre_norm else x), k)
            c = layer.cross_attention(q, cache.source_keys[i], cache.source_values[i], k, None, cache.padding)
            x = layer.add_residual(x, layer.cross_o(c), layer.cross_norm)
            x = layer.feedforward(x)
        cache.t += 1
        logits = self.output(x if self.last_norm is None else self.last_norm(x))
        return output_log_probs(logits).view(*tokens.shape, -1), cache

    def embed(self, tokens: Tensor, t: int) -> Tensor:
        """The first block's input, (M, D), for tokens (M,) at position t: embedding, projection, position, norm."""
        if t >= len(self.positions):  # the vector of a position does not depend on the token
            limit = self.stack.max_positions
            self.positions = self.position_vectors(2 * t + 64 if limit is None else limit)
        x = torch.embedding(self.table, tokens).mul_(self.factor)
        x = (x if self.input_proj is None else self.input_proj(x)).add_(self.positions[t])
        return x if self.first_norm is None else self.first_norm(x)

    def write(self, x: Tensor, i: int, cache: TreeCache, nodes: Nodes | None, k: int) -> tuple[Tensor, Tensor | None]:
        """Write keys and values of x (M, D) to layer i's cache; returns the queries, and a score bias or None."""
        layer = self.layers[i]
        qkv = layer.qkv(layer.mixer_norm(x) if layer.is_pre_norm else x)
        q, key, value = qkv.split_with_sizes(layer.widths, -1)
        if not layer.rotates and not layer.has_bias:
            cache.write(i, key, value, nodes)
            return layer.self_attention.queries(q, k), None
        return self.write_with_positions(layer, i, q, key, value, cache, nodes, k)

    def write_with_positions(
        self,
        layer: BlockWeights,
        i: int,
        q: Tensor,
        key: Tensor,
        value: Tensor,
        cache: TreeCache,
        nodes: Nodes | None,
        k: int,
    ) -> tuple[Tensor, Tensor | None]:
        """`write` for positions that rotate q and k or add a bias to the scores."""
        t, position, bias = torch.tensor([[cache.t]]), layer.position, None
        q, keys = (
            position.rotate(y.view(-1, k, h, y.shape[-1] // h).transpose(1, 2), t)
            for y, h in ((q, layer.self_attention.heads), (key, layer.self_attention.key_heads))
        )  # (B, H or G, k, d_k)
        cache.write(i, keys.transpose(1, 2).reshape(key.shape), value, nodes)
        if layer.has_bias:
            bias = position.score_bias(q, t, torch.from_numpy(cache.position[:, : cache.n]))
        return layer.self_attention.queries(q.transpose(1, 2).reshape(len(key), -1), k), bias


def stack_blocker(stack: TransformerStack) -> str | None:
    """Why `BlockWeights` does not compute the blocks of a stack; None: it does."""
    block, position = next(stack.layers())
    if type(block.mixer) is not SelfAttention:
        return f"it computes self-attention, not {type(block.mixer).__name__}"
    if not all(a.supports_fused_kernel for a in (block.mixer, block.cross_attention) if a is not None):
        return "its attention is a dot score under a softmax"
    if position.needs_weights:
        return f"{type(position).__name__} need the attention weights"
    return None


def encoder_blocker(model: Seq2Seq) -> str | None:
    """Why `CPUTransformer` encodes with the model's own encoder; None: it does not."""
    if type(model.encoder) is not TransformerEncoder:
        return f"the encoder is {type(model.encoder).__name__}, not a Transformer"
    return stack_blocker(model.encoder.stack)


def transformer_blocker(model: Seq2Seq) -> str | None:
    """Why `CPUTransformer` does not compute a model; None: it does."""
    if type(model.decoder) is not TransformerDecoder:
        return f"the decoder is {type(model.decoder).__name__}, not a Transformer"
    if model.decoder.source != "attention":
        return "source and target are one sequence (decoder.source)"
    if model.pointer is not None:
        return "the model copies words of the source (model.pointer)"
    position = model.decoder.stack.position_scheme(0)
    if not is_additive(position):
        return f"{type(position).__name__} do more to the embeddings than add a vector"
    return stack_blocker(model.decoder.stack)
