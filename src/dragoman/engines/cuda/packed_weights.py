"""The weights of a Transformer as kernels want them, and the residual stream that its parts read and add to.

    pre    h = norm(x)   x ← x + W_o attention(W_qkv h)    h = norm(x)   x ← x + W₂ f(W₁ h)
    post   x ← norm(x + W_o attention(W_qkv x))            x ← norm(x + W₂ f(W₁ x))

as in nn/blocks.py; encoding.py and stepping.py say what attention is, and what else a layer has.

H heads, G key heads, D width, C places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.attention import MultiHead
from dragoman.nn.blocks import Block, Stack
from dragoman.nn.frontends.tokens import Tokens
from dragoman.nn.layers import RMSNorm
from dragoman.nn.positions import Learned, Sinusoidal


class Layer:
    """The weights of a block as kernels want them."""

    def __init__(self, block: Block, dtype: torch.dtype, norm: Any) -> None:
        def cast(*parts: Any) -> Any:
            found = [p for p in parts if p is not None]
            return torch.cat(found).detach().to(dtype) if found else None

        mixer, cross, feed = block.mixer, block.cross_attention, block.feedforward
        self.Wqkv = cast(mixer.Wq.weight, mixer.Wk.weight, mixer.Wv.weight)
        self.bqkv = cast(mixer.Wq.bias, mixer.Wk.bias, mixer.Wv.bias)
        self.Wo, self.bo, self.back = cast(mixer.Wo.weight), cast(mixer.Wo.bias), shape(mixer)
        self.norms = [norm(block.mixer_norm)]
        if cross is not None:
            self.Wq, self.bq, self.across = cast(cross.Wq.weight), cast(cross.Wq.bias), shape(cross)
            self.Wc, self.bc = cast(cross.Wo.weight), cast(cross.Wo.bias)
            self.norms.append(norm(block.cross_norm))
        self.W1, self.b1 = cast(feed.W1.weight), cast(feed.W1.bias)
        self.W2, self.b2 = cast(feed.W2.weight), cast(feed.W2.bias)
        self.W3 = None if feed.W3 is None else cast(feed.W3.weight)
        self.b3 = None if feed.W3 is None else cast(feed.W3.bias)
        self.f = feed.f
        self.norms.append(norm(block.feedforward_norm))


def shape(attention: MultiHead) -> Any:
    from dragoman.engines.cuda.kernels.attention import Shape

    H, G = attention.heads, attention.key_heads
    d_k, d_v = attention.Wq.out_features // H, attention.Wv.out_features // G
    return Shape(H, G, d_k, d_v, float(attention.scale or 0.0))


class Layers:
    """The weights of a stack of blocks, and of the embedding before it."""

    def __init__(self, stack: Stack, embedding: Tokens, dtype: torch.dtype) -> None:
        from dragoman.engines.cuda.kernels import residual

        post = stack.norm is None

        def norm(module: Any) -> residual.Norm:
            rms, weight = isinstance(module, RMSNorm), module.weight.detach().float()
            bias = torch.zeros_like(weight) if rms else module.bias.detach().float()
            return residual.Norm(weight, bias, float(module.eps), rms, post)

        blocks: Any = stack.blocks
        self.residual, self.stack, self.dtype, self.device = residual, stack, dtype, embedding.table.weight.device
        self.layers = [Layer(block, dtype, norm) for block in blocks]
        self.norm = None if stack.norm is None else norm(stack.norm)
        self.embedding_norm = stack.embedding_norm
        self.inward = None if isinstance(stack.inward, nn.Identity) else stack.inward
        self.table, self.factor = embedding.table.weight.detach().to(dtype), float(embedding.factor)
        self.D: int = blocks[0].mixer.Wo.out_features

    def places(self, C: int) -> Tensor | None:
        """What is added to a token for its place, (C, D); None: nothing."""
        position = self.stack.inside(0)
        if not isinstance(position, (Sinusoidal, Learned)):
            return None
        t = torch.arange(C, device=self.device)[None].clamp(max=C if position.length is None else position.length - 1)
        added: Tensor = position(torch.zeros(1, C, self.D, device=self.device), t)
        return added[0].float()

    def embed(self, tokens: Tensor, t: Tensor, places: Tensor | None, x: Tensor) -> None:
        """tokens (B, k) at t (B,) to x (B · k, D) in float32."""
        if self.inward is None:
            self.residual.embed(tokens, t, self.table, self.factor, places, x)
        else:
            weight, bias = self.inward.weight.to(self.dtype), self.inward.bias.to(self.dtype)
            y = F.linear(F.embedding(tokens, self.table) * self.factor, weight, bias)
            if places is not None:
                y = y + places[t.long()][:, None]
            x.copy_(y.flatten(0, 1))
        if self.embedding_norm is not None:
            x.copy_(self.embedding_norm(x))


class Stream:
    """The residual stream of some rows: x (n, D) in float32 whatever the weights are in; h is x, normed, like them."""

    def __init__(self, layers: Layers, x: Tensor) -> None:
        self.residual, self.pre, self.last, self.x = layers.residual, layers.norm is not None, layers.norm, x
        self.h = torch.empty_like(x, dtype=layers.dtype) if self.pre else x.to(layers.dtype)
        self.y: Tensor | None = None  # what has not been added yet
        self.norm: Any = None  # the one by which h has been normed, or with y, post, is to be

    def read(self, norm: Any, W: Tensor, b: Tensor | None, relu: bool = False) -> Tensor:
        """f(W h + b)."""
        self.settle(norm)
        if relu and b is not None and W.is_cuda:
            return torch._addmm_activation(b, self.h, W.T)
        y = F.linear(self.h, W, b)
        return F.relu(y) if relu else y

    def add(self, c: Tensor, W: Tensor, b: Tensor | None, norm: Any) -> None:
        """x ← x + W c + b; post: normed by `norm`."""
        self.y = F.linear(c, W, b)
        self.norm = norm if not self.pre else None

    def settle(self, norm: Any) -> None:
        """h as the next part wants it. A sum and a norm are one kernel, so the sum has waited for it."""
        if self.pre and self.norm is not norm:
            self.residual.add_norm(self.x, self.y, norm, self.h)
            self.norm = norm
        elif not self.pre and self.y is not None:
            self.residual.add_norm(self.x, self.y, self.norm, self.h)
        self.y = None

    def feed(self, layer: Layer) -> None:
        """x ← x + W₂ f(W₁ h), or gated."""
        norm, rectifies = layer.norms[-1], layer.f is F.relu and layer.W3 is None
        inner = self.read(norm, layer.W1, layer.b1, rectifies)
        if not rectifies:
            inner = layer.f(inner)
        if layer.W3 is not None:
            inner = inner * self.read(norm, layer.W3, layer.b3)
        self.add(inner, layer.W2, layer.b2, norm)

    def end(self) -> Tensor:
        """h after the last norm."""
        self.settle(self.last)
        return self.h


def joined(linears: Sequence[nn.Linear], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Several projections of the same vectors as one."""
    weight = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return weight, torch.cat(biases).to(dtype) if biases else None
