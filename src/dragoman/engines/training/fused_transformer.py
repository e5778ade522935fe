"""A Transformer's loss on packed rows, with all that stands between two matrix products in one kernel.

    y = norm(x)
    self-attention    q, k, v = [Wq; Wk; Wv] y          x, y = x + drop(Wo attend(q, k, v) + b), its norm
    cross-attention   q = Wq y    k, v = [Wk; Wv] h     x, y = x + drop(Wo attend(q, k, v) + b), its norm
    feed-forward      h = drop(act(W₁ y + b))           x, y = x + drop(W₂ h + b), its norm

(with norms before the sub-layers; with norms after them, x is what the norm gives). The equations are those of
nn/blocks.py, on the same parameters, for which gradients come back. Matrices that read the same vectors stand one below
the other, in half precision if that is asked for, and are refreshed by one copy at every step. `serves` says which
models; others run their own modules, compiled.

N positions, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.core.types import PackedBatch, Segments
from dragoman.nn.blocks import Stack
from dragoman.nn.frontends.tokens import Tokens
from dragoman.nn.kernels.entropy import linear_cross_entropy
from dragoman.nn.layers import LayerNorm, RMSNorm
from dragoman.nn.losses import agreeing
from dragoman.nn.positions import Sinusoidal, rotates
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention

REACH = 4096  # places that positions are kept for; longer rows are left to the modules
ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu", F.silu: "swish"}


def serves(model: Seq2Seq) -> bool:
    return model.packs() is None and all(_fits(side.stack) for side in (model.encoder, model.decoder))


def _fits(stack: Stack) -> bool:
    for module in stack.blocks:
        block: Any = module
        norms = [block.mixer_norm, block.feedforward_norm, block.cross_norm or block.mixer_norm]
        if type(block.mixer) is not SelfAttention:
            return False
        if not all(type(norm) in (LayerNorm, RMSNorm) for norm in norms):
            return False
        if block.feedforward.W3 is not None or block.feedforward.f not in ACTIVATIONS:
            return False
    return not rotates(stack.inside(0))  # nothing comes between product and attention


def _projects(stack: Stack) -> bool:
    return isinstance(stack.inward, nn.Linear)


# -- matrices ----------------------------------------------------------------------------------------------------------


class Product:
    """[W_1; W_2; …] x: several matrices that read the same vectors as one, with or without their biases."""

    def __init__(self, layers: Sequence[nn.Linear], kind: torch.dtype, biased: bool) -> None:
        self.layers = list(layers)
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        self.biased = biased and biases[0] is not None
        self.W = torch.cat([w.detach() for w in weights]).to(kind)
        self.b = torch.cat([b.detach() for b in biases]).to(kind) if self.biased else None
        sizes = [len(w) for w in weights]
        self.copies = list(zip(torch.split(self.W, sizes), weights, strict=True))
        if self.b is not None:
            self.copies += list(zip(torch.split(self.b, sizes), biases, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        parameters = [layer.weight for layer in self.layers]
        if self.biased:
            parameters += [layer.bias for layer in self.layers]
        return _Product.apply(x, self.W, self.b, len(self.layers), *parameters)  # type: ignore[no-any-return,no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, b: Tensor | None, count: int, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(x, W)
        ctx.sizes, ctx.biased = [len(p) for p in parameters[:count]], b is not None
        return F.linear(x, W, b)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, W = ctx.saved_tensors
        dy = grads[0]
        same = dy.dtype == torch.float32
        dW = dy.T @ x if same else torch.mm(dy.T, x, out_dtype=torch.float32)
        found = list(torch.split(dW, ctx.sizes))
        if ctx.biased:
            from dragoman.nn.kernels.fused_triton import sum_rows

            found += list(torch.split(sum_rows(dy.contiguous()), ctx.sizes))
        return dy @ W if ctx.needs_input_grad[0] else None, None, None, None, *found


# -- attention ---------------------------------------------------------------------------------------------------------


class _Attend(torch.autograd.Function):
    """One tensor or two, (N, (H + 2G) · D) or (N, H · D) and (M, 2G · D) → (N, H · D); gradients go back likewise."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor | None,
        widths: tuple[int, int, int, int],
        q_starts: Tensor,
        k_starts: Tensor,
        longest: int,
        causal: bool,
        scale: float,
    ) -> Tensor:
        from dragoman.nn.kernels import packed_triton

        q, k, v = parted(first, second, widths)
        c, lse = packed_triton.forward(q, k, v, q_starts, k_starts, longest, causal, scale)
        ctx.save_for_backward(first, second, c, lse, q_starts, k_starts)
        ctx.rest = widths, longest, causal, scale
        return c.flatten(1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from dragoman.nn.kernels import packed_triton

        first, second, c, lse, q_starts, k_starts = ctx.saved_tensors
        widths, longest, causal, scale = ctx.rest
        d_first = torch.empty_like(first)
        d_second = None if second is None else torch.empty_like(second)
        packed_triton.backward(
            grads[0].view(c.shape),
            *parted(first, second, widths),
            c,
            lse,
            q_starts,
            k_starts,
            longest,
            causal,
            scale,
            parted(d_first, d_second, widths),
        )
        return d_first, d_second, *(None,) * 6


def parted(first: Tensor, second: Tensor | None, widths: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Views of q (N, H, D_k), k and v (M, G, ·) in what was computed in one product or two."""
    H, G, d_k, d_v = widths
    q, rest = (first, second) if second is not None else torch.split(first, [H * d_k, G * (d_k + d_v)], 1)
    k, v = torch.split(rest, [G * d_k, G * d_v], 1)
    return q.view(-1, H, d_k), k.view(-1, G, d_k), v.view(-1, G, d_v)


# -- the model ---------------------------------------------------------------------------------------------------------


class Fused:
    """The summed loss of packed batches, and the same gradients as the model's own modules give."""

    def __init__(self, model: Seq2Seq, kind: torch.dtype) -> None:
        self.model, self.kind = model, kind
        self.seed = torch.zeros(1, dtype=torch.int64, device=model.output.weight.device)
        self.products: dict[nn.Module, tuple[Product, ...]] = {}
        self.positions: dict[nn.Module, Tensor] = {}  # what is added to the embeddings of each place
        for side in (model.encoder, model.decoder):
            stack = side.stack
            if type(stack.inside(0)) is Sinusoidal and stack.embedding_norm is None and not _projects(stack):
                places = torch.arange(REACH, device=self.seed.device)[None]
                zeros = torch.zeros(1, REACH, model.embedding.d, device=self.seed.device)
                self.positions[stack] = stack.inside(0)(zeros, places)[0].contiguous()
            for block in stack.blocks:
                self._prepare(block)
        copies = [copy for found in self.products.values() for product in found for copy in product.copies]
        self.halves, self.fulls = [mine for mine, _ in copies], [p.detach() for _, p in copies]

    def _prepare(self, block: Any) -> None:
        a, c, f, kind = block.mixer, block.cross_attention, block.feedforward, self.kind
        self.products[a] = Product([a.Wq, a.Wk, a.Wv], kind, True), Product([a.Wo], kind, False)
        if c is not None:
            across = Product([c.Wq], kind, True), Product([c.Wk, c.Wv], kind, True), Product([c.Wo], kind, False)
            self.products[c] = across
        self.products[f] = Product([f.W1], kind, False), Product([f.W2], kind, False)

    def __call__(self, batch: PackedBatch, smoothing: float, r_drop: float = 0.0) -> Tensor:
        torch._foreach_copy_(self.halves, self.fulls)
        self.site = 0
        o = self._hidden(batch)
        W, b, gold = self.model.output.weight, self.model.output.bias, batch.gold[0]
        if not r_drop:
            return linear_cross_entropy(o, W, b, gold, smoothing)
        other = self._hidden(batch)  # what is dropped depends on the site, and the sites go on
        half, bias = W.to(o.dtype), None if b is None else b.to(o.dtype)
        first, second = (F.linear(hidden, half, bias)[None] for hidden in (o, other))
        return agreeing(first, second, gold[None], smoothing, r_drop)

    def _hidden(self, batch: PackedBatch) -> Tensor:
        model = self.model
        x = self._embedded(model.encoder.stack, model.frontend, batch.source, batch.sources)
        h = self._stack(model.encoder.stack, x, batch.sources, None, None)
        y = self._embedded(model.decoder.stack, model.embedding, batch.target, batch.targets)
        return self._stack(model.decoder.stack, y, batch.targets, h, batch.sources)

    def _embedded(self, stack: Stack, frontend: Tokens, ids: Tensor, side: Segments) -> Tensor:
        from dragoman.nn.kernels.fused_triton import Embed

        assert side.places is not None
        self.site += 1
        added = self.positions.get(stack)
        if added is None:  # positions that are learned or somebody else's, a projection, a norm: as the modules have it
            return stack.embed(frontend(ids), side.places, None)[0]
        return Embed.apply(  # type: ignore[no-any-return,no-untyped-call]
            frontend.table.weight, ids[0], side.places[0], added, frontend.factor, stack.dropout.p, self.seed, self.site
        )

    def _stack(
        self, stack: Stack, x: Tensor, side: Segments, memory: Tensor | None, sources: Segments | None
    ) -> Tensor:
        blocks: list[Any] = list(stack.blocks)
        causal, pre = memory is not None, blocks[0].pre
        norms = [norm for b in blocks for norm in (b.mixer_norm, b.cross_norm, b.feedforward_norm) if norm is not None]
        after = iter([*norms[1:], stack.norm] if pre else norms)  # the norm that follows each sub-layer
        y = x.to(self.kind)
        if pre:
            x, y = self._add(x, None, None, 0.0, norms[0], False)
        for block in blocks:
            a, c, f, p = block.mixer, block.cross_attention, block.feedforward, block.dropout.p
            qkv, Wo = self.products[a]
            found = Wo(self._attend(a, qkv(y), None, side, side, causal))
            x, y = self._add(x, found, a.Wo.bias, p, next(after), not pre)
            if c is not None and memory is not None and sources is not None:
                Wq, kv, Wo = self.products[c]
                found = Wo(self._attend(c, Wq(y), kv(memory), side, sources, False))
                x, y = self._add(x, found, c.Wo.bias, p, next(after), not pre)
            W1, W2 = self.products[f]
            found = W2(self._activate(W1(y), f))
            x, y = self._add(x, found, f.W2.bias, p, next(after), not pre)
        return y

    def _attend(
        self, layer: Any, first: Tensor, second: Tensor | None, side: Segments, keys: Segments, causal: bool
    ) -> Tensor:
        H, G = layer.heads, layer.key_heads
        widths = H, G, layer.Wq.out_features // H, layer.Wv.out_features // G
        longest = max(side.longest, keys.longest)
        return _Attend.apply(first, second, widths, side.starts, keys.starts, longest, causal, layer.scale)  # type: ignore[no-any-return,no-untyped-call]

    def _add(
        self, x: Tensor, f: Tensor | None, bias: Tensor | None, p: float, norm: Any, post: bool
    ) -> tuple[Tensor, Tensor]:
        from dragoman.nn.kernels.fused_triton import AddNorm

        self.site += 1
        centered = isinstance(norm, LayerNorm)
        offset = norm.bias if centered else None
        return AddNorm.apply(  # type: ignore[no-any-return,no-untyped-call]
            x, f, bias, norm.weight, offset, norm.eps, centered, p, self.seed, self.site, self.kind, post
        )

    def _activate(self, z: Tensor, layer: Any) -> Tensor:
        from dragoman.nn.kernels.fused_triton import Activate

        self.site += 1
        kind = ACTIVATIONS[layer.f]
        return Activate.apply(z, layer.W1.bias, kind, layer.dropout.p, self.seed, self.site)  # type: ignore[no-any-return,no-untyped-call]
