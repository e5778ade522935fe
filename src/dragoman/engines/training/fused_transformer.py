"""The loss of a Transformer on packed rows, with one kernel for everything between two matrix products.

    y = norm(x)
    self-attention    q, k, v = [Wq; Wk; Wv] y          x, y = x + drop(Wo attend(q, k, v) + b), its norm
    cross-attention   q = Wq y    k, v = [Wk; Wv] h     x, y = x + drop(Wo attend(q, k, v) + b), its norm
    feed-forward      h = drop(act(W₁ y + b))           x, y = x + drop(W₂ h + b), its norm

(pre-norm; post-norm: x is the output of the norm). The equations are those of nn/blocks.py on the same parameters, and
gradients are for these parameters. Matrices that read the same vector are concatenated, in bfloat16 if the training is,
and are refreshed from the parameters by one copy at every step.

N positions, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.core.types import PackedBatch, Segments
from dragoman.nn.attention import MultiHeadAttention
from dragoman.nn.blocks import TransformerBlock, TransformerStack
from dragoman.nn.frontends.tokens import TokenEmbedding
from dragoman.nn.kernels.entropy import linear_cross_entropy
from dragoman.nn.layers import FeedForward, LayerNorm, NormLayer, RMSNorm
from dragoman.nn.losses import r_drop_loss
from dragoman.nn.positions import SinusoidalPositions, may_rotate
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.nn.token_mixers import SelfAttention

MAX_POSITIONS = 4096  # positions in the table of sinusoids; longer rows run through the modules
ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu", F.silu: "swish"}


def fused_transformer_blocker(model: Seq2Seq) -> str | None:
    """Why a model cannot train through the fused kernels; None: it can."""
    return model.packing_blocker() or _stack_blocker(model.encoder.stack) or _stack_blocker(model.decoder.stack)


def _stack_blocker(stack: TransformerStack) -> str | None:
    for block, _ in stack.layers():
        if type(block.mixer) is not SelfAttention:
            return f"the kernels compute self-attention, not {type(block.mixer).__name__}"
        for norm in (block.mixer_norm, block.feedforward_norm, block.cross_norm or block.mixer_norm):
            if type(norm) not in (LayerNorm, RMSNorm):
                return f"the kernels compute layer and RMS norms, not {type(norm).__name__}"
        if block.feedforward.W3 is not None or block.feedforward.f not in ACTIVATIONS:
            return f"the kernels compute the activations {', '.join(ACTIVATIONS.values())}, without a gate"
    if may_rotate(stack.position_scheme(0)):
        return "positions that rotate queries and keys come between projection and attention"
    return None


def run_function(function: type[torch.autograd.Function], *arguments: object) -> Any:
    """Apply an autograd function, whose outputs torch does not type."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


# -- projections -------------------------------------------------------------------------------------------------------


class ConcatLinear:
    """[W_1; W_2; …] x: several projections of the same vector as one, with or without their biases."""

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype, has_bias: bool) -> None:
        self.layers = list(layers)
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        self.has_bias = has_bias and biases[0] is not None
        self.W = torch.cat([w.detach() for w in weights]).to(dtype)
        self.b = torch.cat([b.detach() for b in biases]).to(dtype) if self.has_bias else None
        sizes = [len(w) for w in weights]
        self.copies = list(zip(torch.split(self.W, sizes), weights, strict=True))
        if self.b is not None:
            self.copies += list(zip(torch.split(self.b, sizes), biases, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        """[W_1; W_2; …] x, with the biases if it has them; gradients go to the layers' own parameters."""
        parameters = [layer.weight for layer in self.layers]
        if self.has_bias:
            parameters += [layer.bias for layer in self.layers]
        y: Tensor = run_function(_ConcatLinearFunction, x, self.W, self.b, len(self.layers), *parameters)
        return y


class _ConcatLinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, b: Tensor | None, count: int, *parameters: Tensor) -> Tensor:
        """W x + b with the concatenated W and b; `parameters` are only there to get gradients."""
        ctx.save_for_backward(x, W)
        ctx.sizes, ctx.has_bias = [len(p) for p in parameters[:count]], b is not None
        return F.linear(x, W, b)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """∂x, and the parts of ∂W and ∂b in float32 for the single parameters; None for W, b and count."""
        x, W = ctx.saved_tensors
        dy = grads[0]
        is_float32 = dy.dtype == torch.float32
        dW = dy.T @ x if is_float32 else torch.mm(dy.T, x, out_dtype=torch.float32)
        gradients = list(torch.split(dW, ctx.sizes))
        if ctx.has_bias:
            from dragoman.nn.kernels.fused_triton import sum_rows

            gradients += list(torch.split(sum_rows(dy.contiguous()), ctx.sizes))
        return dy @ W if ctx.needs_input_grad[0] else None, None, None, None, *gradients


# -- attention ---------------------------------------------------------------------------------------------------------


class _PackedAttention(torch.autograd.Function):
    """q, k, v in one tensor (N, (H + 2G) · D), or in two, (N, H · D) and (M, 2G · D) → (N, H · D)."""

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
        """softmax(scale q·k) v within each packed row, (N, H · D_v); q, k, v are views of `first` and `second`."""
        from dragoman.nn.kernels import packed_triton

        q, k, v = split_qkv(first, second, widths)
        c, lse = packed_triton.forward(q, k, v, q_starts, k_starts, longest, causal, scale)
        ctx.save_for_backward(first, second, c, lse, q_starts, k_starts)
        ctx.rest = widths, longest, causal, scale
        return c.flatten(1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """∂first and ∂second in one kernel; None for the other arguments."""
        from dragoman.nn.kernels import packed_triton

        first, second, c, lse, q_starts, k_starts = ctx.saved_tensors
        widths, longest, causal, scale = ctx.rest
        d_first = torch.empty_like(first)
        d_second = None if second is None else torch.empty_like(second)
        dc, qkv, d_qkv = grads[0].view(c.shape), split_qkv(first, second, widths), split_qkv(d_first, d_second, widths)
        packed_triton.backward(dc, *qkv, c, lse, q_starts, k_starts, longest, causal, scale, d_qkv)
        return d_first, d_second, *(None,) * 6


def split_qkv(first: Tensor, second: Tensor | None, widths: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Views of q (N, H, D_k), k and v (M, G, ·) in the output of one projection or two."""
    H, G, d_k, d_v = widths
    q, rest = (first, second) if second is not None else torch.split(first, [H * d_k, G * (d_k + d_v)], 1)
    k, v = torch.split(rest, [G * d_k, G * d_v], 1)
    return q.view(-1, H, d_k), k.view(-1, G, d_k), v.view(-1, G, d_v)


# -- the model ---------------------------------------------------------------------------------------------------------


class FusedTransformer:
    """The summed loss of packed batches, with the gradients that the model's own modules would give."""

    def __init__(self, model: Seq2Seq, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self.seed = torch.zeros(1, dtype=torch.int64, device=model.output.weight.device)
        self.linears: dict[nn.Module, tuple[ConcatLinear, ...]] = {}
        self.positions: dict[nn.Module, Tensor] = {}  # the sinusoids that are added to the embeddings
        for side in (model.encoder, model.decoder):
            stack = side.stack
            is_sinusoidal = type(stack.position_scheme(0)) is SinusoidalPositions
            if is_sinusoidal and stack.embedding_norm is None and not isinstance(stack.input_proj, nn.Linear):
                t = torch.arange(MAX_POSITIONS, device=self.seed.device)[None]
                zeros = torch.zeros(1, MAX_POSITIONS, model.embedding.d, device=self.seed.device)
                self.positions[stack] = stack.position_scheme(0)(zeros, t)[0].contiguous()
            for block, _ in stack.layers():
                self._prepare(block)
        copies = [pair for linears in self.linears.values() for linear in linears for pair in linear.copies]
        self.packed_weights, self.parameters = [view for view, _ in copies], [p.detach() for _, p in copies]

    def _prepare(self, block: TransformerBlock) -> None:
        def concat(has_bias: bool, *layers: nn.Linear) -> ConcatLinear:
            return ConcatLinear(layers, self.dtype, has_bias)

        a, c, f = block.mixer, block.cross_attention, block.feedforward
        self.linears[a] = concat(True, a.Wq, a.Wk, a.Wv), concat(False, a.Wo)
        if c is not None:
            self.linears[c] = concat(True, c.Wq), concat(True, c.Wk, c.Wv), concat(False, c.Wo)
        self.linears[f] = concat(False, f.W1), concat(False, f.W2)

    def __call__(self, batch: PackedBatch, smoothing: float, r_drop: float = 0.0) -> Tensor:
        """The summed loss of a batch, from refreshed weights; with `r_drop`, of two passes and their divergence."""
        torch._foreach_copy_(self.packed_weights, self.parameters)
        self.site = 0  # numbers the dropouts of a step: each one drops by seed and site
        o = self._hidden(batch)
        W, b, gold = self.model.output.weight, self.model.output.bias, batch.gold[0]
        if not r_drop:
            return linear_cross_entropy(o, W, b, gold, smoothing)
        other = self._hidden(batch)  # at new sites, so that other units are dropped
        weight, bias = W.to(o.dtype), None if b is None else b.to(o.dtype)
        first, second = (F.linear(hidden, weight, bias)[None] for hidden in (o, other))
        return r_drop_loss(first, second, gold[None], smoothing, r_drop)

    def _hidden(self, batch: PackedBatch) -> Tensor:
        """The hidden vectors of all targets before the output layer, (N, D), by teacher forcing."""
        model = self.model
        x = self._embed(model.encoder.stack, model.frontend, batch.source, batch.sources)
        h = self._stack(model.encoder.stack, x, batch.sources, None, None)
        y = self._embed(model.decoder.stack, model.embedding, batch.target, batch.targets)
        return self._stack(model.decoder.stack, y, batch.targets, h, batch.sources)

    def _embed(self, stack: TransformerStack, frontend: TokenEmbedding, ids: Tensor, side: Segments) -> Tensor:
        """x = drop(s E[id] + P[t]), (N, D): by a kernel for sinusoids, else by the modules; a new dropout site."""
        from dragoman.nn.kernels.fused_triton import Embed

        assert side.positions is not None
        self.site += 1
        added = self.positions.get(stack)
        if added is None:  # other positions, an input projection or a norm: the modules compute it
            return stack.embed_inputs(frontend(ids), side.positions, None)[0]
        table, dropped = frontend.table.weight, (stack.dropout.p, self.seed, self.site)
        x: Tensor = run_function(Embed, table, ids[0], side.positions[0], added, frontend.factor, *dropped)
        return x

    def _stack(
        self, stack: TransformerStack, x: Tensor, side: Segments, memory: Tensor | None, sources: Segments | None
    ) -> Tensor:
        """The blocks of an encoder, or of a decoder over `memory`: x (N, D) → the output after the last norm."""
        blocks = [block for block, _ in stack.layers()]
        causal, is_pre = memory is not None, blocks[0].is_pre_norm
        norms = [norm for b in blocks for norm in (b.mixer_norm, b.cross_norm, b.feedforward_norm) if norm is not None]
        next_norm = iter([*norms[1:], stack.norm] if is_pre else norms)  # the norm that follows each sub-layer
        y = x.to(self.dtype)
        if is_pre:
            x, y = self._add(x, None, None, 0.0, norms[0], False)
        for block in blocks:
            a, c, f, p = block.mixer, block.cross_attention, block.feedforward, block.dropout.p
            qkv, Wo = self.linears[a]
            added = Wo(self._attend(a, qkv(y), None, side, side, causal))
            x, y = self._add(x, added, a.Wo.bias, p, next(next_norm), not is_pre)
            if c is not None and memory is not None and sources is not None:
                Wq, kv, Wo = self.linears[c]
                added = Wo(self._attend(c, Wq(y), kv(memory), side, sources, False))
                x, y = self._add(x, added, c.Wo.bias, p, next(next_norm), not is_pre)
            W1, W2 = self.linears[f]
            added = W2(self._activate(W1(y), f))
            x, y = self._add(x, added, f.W2.bias, p, next(next_norm), not is_pre)
        return y

    def _attend(
        self,
        layer: MultiHeadAttention,
        first: Tensor,
        second: Tensor | None,
        side: Segments,
        keys: Segments,
        causal: bool,
    ) -> Tensor:
        """Attention over packed rows, (N, H · D_v), of the layer's shape; q, k, v are in `first` and `second`."""
        H, G = layer.heads, layer.key_heads
        widths = H, G, layer.Wq.out_features // H, layer.Wv.out_features // G
        longest = max(side.max_length, keys.max_length)
        rest = widths, side.starts, keys.starts, longest, causal, layer.scale
        c: Tensor = run_function(_PackedAttention, first, second, *rest)
        return c

    def _add(
        self, x: Tensor, f: Tensor | None, bias: Tensor | None, p: float, norm: NormLayer | None, is_post: bool
    ) -> tuple[Tensor, Tensor]:
        """x + drop(f + bias) as residual, and its norm y; is_post: the norm is the residual. A new dropout site."""
        from dragoman.nn.kernels.fused_triton import AddNorm

        self.site += 1
        assert isinstance(norm, (LayerNorm, RMSNorm))
        is_centered = isinstance(norm, LayerNorm)
        normed = norm.weight, norm.bias if isinstance(norm, LayerNorm) else None, norm.eps, is_centered
        dropped = p, self.seed, self.site
        both: tuple[Tensor, Tensor] = run_function(AddNorm, x, f, bias, *normed, *dropped, self.dtype, is_post)
        return both

    def _activate(self, z: Tensor, layer: FeedForward) -> Tensor:
        """drop(act(z + b₁)) of the feed-forward layer; takes a new dropout site."""
        from dragoman.nn.kernels.fused_triton import Activate

        self.site += 1
        name = ACTIVATIONS[layer.f]
        h: Tensor = run_function(Activate, z, layer.W1.bias, name, layer.dropout.p, self.seed, self.site)
        return h
