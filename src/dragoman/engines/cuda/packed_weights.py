"""The weights of a Transformer as the kernels read them, and the residual stream between its sub-layers.

    pre    h = norm(x)   x ← x + W_o attention(W_qkv h)    h = norm(x)   x ← x + W₂ f(W₁ h)
    post   x ← norm(x + W_o attention(W_qkv x))            x ← norm(x + W₂ f(W₁ x))

as in nn/blocks.py; encode.py and step.py compute the attention.

H heads, G key heads, D width, C positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.attention import MultiHeadAttention
from dragoman.nn.blocks import TransformerBlock, TransformerStack
from dragoman.nn.frontends.tokens import TokenEmbedding
from dragoman.nn.kernels.packed import HEAD_WIDTHS
from dragoman.nn.layers import LayerNorm, NormLayer, RMSNorm
from dragoman.nn.positions import LearnedPositions, SinusoidalPositions

if TYPE_CHECKING:
    from dragoman.engines.cuda.kernels.residual import NormWeights


class AttentionShape(NamedTuple):
    """The sizes of a multi-head attention with e = scale · q·k."""

    heads: int
    key_heads: int
    d_k: int
    d_v: int
    scale: float


def attention_shape(attention: MultiHeadAttention) -> AttentionShape:
    """The heads, widths and scale of an attention module."""
    H, G = attention.heads, attention.key_heads
    d_k, d_v = attention.Wq.out_features // H, attention.Wv.out_features // G
    return AttentionShape(H, G, d_k, d_v, float(attention.scale or 0.0))


def head_width_blocker(attention: MultiHeadAttention) -> str | None:
    """Why the kernel for packed attention cannot compute the heads of a module; None: it can."""
    _, _, d_k, d_v, _ = attention_shape(attention)
    if d_k in HEAD_WIDTHS and d_v in HEAD_WIDTHS:
        return None
    return f"the kernel takes heads of width {', '.join(map(str, HEAD_WIDTHS))}, not {d_k} and {d_v}"


class PackedBlock:
    """The weights of a Transformer block, those that read the same vector in one matrix."""

    def __init__(self, block: TransformerBlock, dtype: torch.dtype, norms: Sequence[NormWeights]) -> None:
        """`norms`: those before (post: after) self-attention, cross-attention if there is one, and feed-forward."""
        mixer, cross, feedforward = block.mixer, block.cross_attention, block.feedforward
        self.Wqkv, self.bqkv = concat_linears([mixer.Wq, mixer.Wk, mixer.Wv], dtype)
        self.Wo, self.bo = concat_linears([mixer.Wo], dtype)
        self.self_shape, self.norms = attention_shape(mixer), norms
        if cross is not None:
            self.cross_Wq, self.cross_bq = concat_linears([cross.Wq], dtype)
            self.cross_Wo, self.cross_bo = concat_linears([cross.Wo], dtype)
            self.cross_shape = attention_shape(cross)
        self.W1, self.b1 = concat_linears([feedforward.W1], dtype)
        self.W2, self.b2 = concat_linears([feedforward.W2], dtype)
        self.W3: Tensor | None = None
        self.b3: Tensor | None = None
        if feedforward.W3 is not None:
            self.W3, self.b3 = concat_linears([feedforward.W3], dtype)
        self.f = feedforward.f


class PackedStack:
    """The weights of a stack of blocks, and of the embedding before it."""

    def __init__(self, stack: TransformerStack, embedding: TokenEmbedding, dtype: torch.dtype) -> None:
        from dragoman.engines.cuda.kernels import residual

        is_post = stack.norm is None

        def pack_norm(norm: NormLayer) -> NormWeights:
            assert isinstance(norm, (LayerNorm, RMSNorm))
            is_rms, weight = isinstance(norm, RMSNorm), norm.weight.detach().float()
            bias = norm.bias.detach().float() if isinstance(norm, LayerNorm) else torch.zeros_like(weight)
            return residual.NormWeights(weight, bias, float(norm.eps or 0.0), is_rms, is_post)

        def pack_block(block: TransformerBlock) -> PackedBlock:
            norms = [block.mixer_norm, block.cross_norm, block.feedforward_norm]
            return PackedBlock(block, dtype, [pack_norm(norm) for norm in norms if norm is not None])

        self.residual, self.stack, self.dtype, self.device = residual, stack, dtype, embedding.table.weight.device
        self.blocks = [pack_block(block) for block, _ in stack.layers()]
        self.norm = None if stack.norm is None else pack_norm(stack.norm)
        self.embedding_norm = stack.embedding_norm
        self.input_proj = None if isinstance(stack.input_proj, nn.Identity) else stack.input_proj
        self.table, self.factor = embedding.table.weight.detach().to(dtype), float(embedding.factor)
        self.D: int = next(stack.layers())[0].mixer.Wo.out_features

    def position_table(self, C: int) -> Tensor | None:
        """The vector that is added to a token at each position, (C, D); None: nothing is added."""
        position = self.stack.position_scheme(0)
        if not isinstance(position, (SinusoidalPositions, LearnedPositions)):
            return None
        t = torch.arange(C, device=self.device)[None].clamp(
            max=C if position.max_positions is None else position.max_positions - 1
        )
        added: Tensor = position(torch.zeros(1, C, self.D, device=self.device), t)
        return added[0].float()

    def embed(self, tokens: Tensor, t: Tensor, table: Tensor | None, x: Tensor) -> None:
        """Write the embedded tokens (B, k), at positions t (B,), projected and normed, to x (B · k, D) in float32."""
        if self.input_proj is None:
            self.residual.embed(tokens, t, self.table, self.factor, table, x)
        else:
            weight, bias = self.input_proj.weight.to(self.dtype), self.input_proj.bias.to(self.dtype)
            y = F.linear(F.embedding(tokens, self.table) * self.factor, weight, bias)
            if table is not None:
                y = y + table[t.long()][:, None]
            x.copy_(y.flatten(0, 1))
        if self.embedding_norm is not None:
            x.copy_(self.embedding_norm(x))


class ResidualStream:
    """x (n, D) in float32 between the sub-layers of a stack, and h, its norm in the dtype of the weights.

    A sum and the norm after it are one kernel, so `add` only keeps its summand until the next `project` needs h.
    """

    def __init__(self, stack: PackedStack, x: Tensor) -> None:
        self.residual, self.is_pre, self.last_norm, self.x = stack.residual, stack.norm is not None, stack.norm, x
        self.h = torch.empty_like(x, dtype=stack.dtype) if self.is_pre else x.to(stack.dtype)
        self.y: Tensor | None = None  # the summand that is not yet added
        self.norm: NormWeights | None = None  # pre: the norm that made h; post: the one to apply with y

    def project(self, norm: NormWeights, W: Tensor, b: Tensor | None, relu: bool = False) -> Tensor:
        """W h + b, or relu(W h + b), where h is x after all pending summands, normalized by `norm` (pre-norm)."""
        self._update_h(norm)
        if relu and b is not None and W.is_cuda:
            return torch._addmm_activation(b, self.h, W.T)
        y = F.linear(self.h, W, b)
        return F.relu(y) if relu else y

    def add(self, c: Tensor, W: Tensor, b: Tensor | None, norm: NormWeights) -> None:
        """x ← x + W c + b; post: x ← norm(x + W c + b). The sum is computed when h is needed next."""
        self.y = F.linear(c, W, b)
        self.norm = norm if not self.is_pre else None

    def _update_h(self, norm: NormWeights | None) -> None:
        """Add the pending summand to x and compute h: pre by `norm`, post by the norm that came with the summand."""
        if self.is_pre and self.norm is not norm:
            self.residual.add_norm(self.x, self.y, norm, self.h)
            self.norm = norm
        elif not self.is_pre and self.y is not None:
            self.residual.add_norm(self.x, self.y, self.norm, self.h)
        self.y = None

    def add_feedforward(self, block: PackedBlock) -> None:
        """x ← x + W₂ f(W₁ h), or gated: x ← x + W₂ (f(W₁ h) ⊙ W₃ h); biases included, post: normed."""
        norm, uses_relu = block.norms[-1], block.f is F.relu and block.W3 is None
        inner = self.project(norm, block.W1, block.b1, uses_relu)
        if not uses_relu:
            inner = block.f(inner)
        if block.W3 is not None:
            inner = inner * self.project(norm, block.W3, block.b3)
        self.add(inner, block.W2, block.b2, norm)

    def output(self) -> Tensor:
        """h after all pending summands and the last norm, (n, D)."""
        self._update_h(self.last_norm)
        return self.h


def concat_linears(linears: Sequence[nn.Linear], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The weights and biases of several projections of the same vector as one projection in `dtype`."""
    weight = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return weight, torch.cat(biases).to(dtype) if biases else None
