"""Score every key against every query, normalize, average the values.

    e = score(q, k)      a = normalize(e)      c = a v

`Attention` is one head with any score over states as they are. `MultiHeadAttention` is several heads over projections
of their own, which may share keys and values. Scores are in scores.py, normalizers in normalizers.py.

B batch, H heads, G key heads (H / G query heads share one), T queries, S keys, D width.

A dot score with softmax runs through the fused kernel, which never forms the weights a. `with record_attention() as
recorded:` turns the kernel off and collects the weights of every attention that runs inside, by module.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Memory, Segments
from dragoman.nn.kernels.dropout import dropout
from dragoman.nn.kernels.packed import packed_attention
from dragoman.nn.layers import linear
from dragoman.nn.normalizers import Normalizer, normalizers
from dragoman.nn.positions import PositionScheme
from dragoman.nn.scores import ScoreFunction, fused_scale, scores

RecordedAttention = dict[nn.Module, list[Tensor]]  # module → its weights (…, T, S), in the order of its calls
_recording: ContextVar[tuple[RecordedAttention, Collection[nn.Module]] | None] = ContextVar("recording", default=None)


@contextmanager
def record_attention(shape_only: Collection[nn.Module] = ()) -> Iterator[RecordedAttention]:
    """Collect the weights of every attention that runs inside: module → its weights in the order of calls.

    The modules in `shape_only` record empty weights (…, T, 0), which tell heads and queries and cost no memory.
    """
    recorded: RecordedAttention = {}
    token = _recording.set((recorded, shape_only))
    try:
        yield recorded
    finally:
        _recording.reset(token)


def is_recording() -> bool:
    """Whether the code runs inside `record_attention`."""
    return _recording.get() is not None


def recorded_weights(module: nn.Module | None, count: int) -> list[Tensor]:
    """The weights of a module's last `count` calls, if they are recorded; a layer that is shared runs several times."""
    recording = _recording.get()
    return recording[0].get(module, [])[-count:] if recording is not None and module is not None else []


def record(module: nn.Module, a: Tensor) -> None:
    """Add the weights of one call of `module` to the recording, if there is one: detached, or empty if `shape_only`."""
    if recording := _recording.get():
        recorded, shape_only = recording
        weights = a.new_empty(*a.shape[:-1], 0) if module in shape_only else a.detach()
        recorded.setdefault(module, []).append(weights)


@dataclass
class AttentionSource:
    """A source that is prepared to be attended to; the hypotheses of a sentence share it."""

    keys: Tensor  # (B, 1, S, ·)
    values: Tensor  # (B, 1, S, D)
    mask: Tensor  # (B, 1, S)
    lengths: Tensor  # (B, 1)


class AttentionOutput(NamedTuple):
    """The context, the weights, the updated past weights of the score, and terms for the loss."""

    c: Tensor  # (B, T, D)
    a: Tensor  # (B, T, S)
    past_weights: Tensor | None  # (B, T, S)
    extras: dict[str, Tensor]


class Attention(nn.Module):
    """One head with any score: c = Σ_j a_j v_j, where v are the states as they come."""

    def __init__(self, d_q: int, d_k: int, score: Part, normalizer: Part) -> None:
        super().__init__()
        self.score: ScoreFunction = scores.build(score, d_q, d_k)
        self.normalizer: Normalizer = normalizers.build(normalizer, d_q)

    def prepare_source(self, memory: Memory) -> AttentionSource:
        """What depends on the source alone, computed once per sentence."""
        keys, values = self.score.prepare_keys(memory.states), attention_values(memory)
        return AttentionSource(keys[:, None], values[:, None], memory.mask[:, None], memory.lengths[:, None])

    def forward(
        self, q: Tensor, source: AttentionSource, t: Tensor | None = None, past_weights: Tensor | None = None
    ) -> AttentionOutput:
        """c = normalize(score(q, keys)) values for queries q (B, T or K, D_q) at positions t (B or 1, T)."""
        e = self.score(q, source.keys[:, 0], past_weights)  # (B, T, S)
        a, extras = self.normalizer(e, source.mask, q, t, source.lengths)
        record(self, a)
        if past_weights is not None:
            penalty = self.score.penalty(past_weights, a)
            if penalty is not None:
                extras = extras | {"penalty": extras.get("penalty", 0.0) + penalty}
            past_weights = self.score.update_past_weights(past_weights, a)
        return AttentionOutput(a @ source.values[:, 0], a, past_weights, extras)


def attention_values(memory: Memory) -> Tensor:
    """The vectors that attention averages, (B, S, D): the memory's values, or its states where it has none."""
    return memory.states if memory.values is None else memory.values


class MultiHeadConfig(NamedTuple):
    """The options of a multi-head attention."""

    heads: int
    score: Part
    normalizer: Part
    dropout: float = 0.0  # of the weights
    key_heads: int | None = None  # heads of keys and values, shared by groups of query heads (None: one each)
    key_width: int | None = None  # of one head's queries and keys (None: D / H)
    value_width: int | None = None
    bias: bool = True
    fold_scaling_into_initializer: bool = False  # initialize W_q smaller by √d_k, for a score without that division


@dataclass
class AttentionMask:
    """The positions of the queries, and the keys that each may attend to. Keys stand at positions 0 … S−1."""

    t: Tensor  # (B or 1, T): positions of the queries
    allowed: Tensor | None  # broadcasts to (B, H, T, S): true where a query may attend; None: everywhere
    causal: bool = False  # query i attends to keys 0 … i only, besides `allowed`
    lengths: Tensor | None = None  # broadcasts to (B, H, T): the number of keys, for local windows
    real: Tensor | None = None  # (B, T): false at padded queries, for norms over a batch
    packed: tuple[Segments, Segments] | None = None  # of queries and keys that are packed without padding


class MultiHeadAttention(nn.Module):
    """Several attentions side by side on projections of their own: W_O [head_1; …; head_H]."""

    def __init__(self, d: int, d_memory: int, options: MultiHeadConfig) -> None:
        super().__init__()
        H = options.heads
        self.heads, self.key_heads, self.p = H, options.key_heads or H, options.dropout
        if d % H and (options.key_width is None or options.value_width is None):
            raise PartError(f"width {d} is not divisible by {H} heads")
        if H % self.key_heads:
            raise PartError(f"{H} heads are not divisible by {self.key_heads} key heads")
        d_k, d_v, G = options.key_width or d // H, options.value_width or d // H, self.key_heads
        self.Wq, self.Wk = linear(d, H * d_k, options.bias), linear(d_memory, G * d_k, options.bias)
        self.Wv, self.Wo = linear(d_memory, G * d_v, options.bias), linear(H * d_v, d, options.bias)
        self.score: ScoreFunction = scores.build(options.score, d_k, d_k)
        self.normalizer: Normalizer = normalizers.build(options.normalizer, d_k)
        if self.score.uses_past_weights:
            raise PartError(
                f"score '{options.score.name}' needs the weights of earlier steps, but a Transformer computes all "
                "steps at once; use it in an rnn decoder"
            )
        if self.normalizer.is_stochastic:
            raise PartError(
                f"normalizer '{options.normalizer.name}' samples one position per step and learns from its reward, "
                "which cannot be assigned to many heads and layers; use it in an rnn decoder"
            )
        if options.fold_scaling_into_initializer:
            if options.score.name != "dot":
                raise PartError(
                    "fold_scaling_into_initializer replaces the scaling that score 'dot' lacks, and the score is "
                    f"'{options.score.name}'; use 'dot', or leave the option out"
                )
            with torch.no_grad():
                self.Wq.weight.mul_(d_k**-0.5)
        self.scale = fused_scale(self.score)
        self.supports_fused_kernel = self.scale is not None and options.normalizer.name == "softmax"

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        """(…, S, H · D) → (…, H, S, D)"""
        return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-2, -3)

    def merge_heads(self, c: Tensor) -> Tensor:
        """W_O of the heads side by side: (…, H, T, D_v) → (…, T, D)"""
        o: Tensor = self.Wo(c.transpose(-2, -3).flatten(-2))
        return o

    def project_queries(self, x: Tensor, position: PositionScheme | None = None, t: Tensor | None = None) -> Tensor:
        """W_Q x, rotated to the positions t where the scheme does so: (…, T, D) → (…, H, T, d_k)"""
        q = self.split_heads(self.Wq(x), self.heads)
        return q if position is None or t is None else position.rotate(q, t)

    def project_keys_values(
        self,
        h: Tensor,
        position: PositionScheme | None = None,
        s: Tensor | None = None,
        values: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """W_K h, rotated to the positions s and prepared for the score, and W_V h (or values): (…, G, S, ·) each."""
        k = self.split_heads(self.Wk(h), self.key_heads)
        if position is not None and s is not None:
            k = position.rotate(k, s)
        v = self.split_heads(self.Wv(h if values is None else values), self.key_heads)
        return self.score.prepare_keys(k), v

    def forward(
        self, x: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, position: PositionScheme | None = None
    ) -> Tensor:
        """W_O of the heads' contexts: queries from x (B, T, D) attend to k, v (B, G, S, ·) → (B, T, D)."""
        return self.merge_heads(self.attend(self.project_queries(x, position, mask.t), k, v, mask, position))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, position: PositionScheme | None = None
    ) -> Tensor:
        """c = normalize(score(q, k) + bias) v, with dropout on the weights: q (B, H, T, ·) → (B, H, T, D_v)."""
        if mask.packed is not None:
            return self.attend_packed(q, k, v, mask.causal, *mask.packed)
        p = self.p if self.training else 0.0
        s = torch.arange(k.shape[-2], device=k.device)[None]  # (1, S)
        bias = None if position is None else position.score_bias(q, mask.t, s)  # (B, H, T, S)
        needs_weights = is_recording() or (position is not None and position.needs_weights)
        fused = self.supports_fused_kernel and not needs_weights
        allowed, causal = mask.allowed, mask.causal
        if causal and not (fused and allowed is None and bias is None):  # the kernel takes is_causal or a mask
            earlier = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            allowed, causal = earlier if allowed is None else allowed & earlier, False
        if fused:
            if bias is not None:
                allowed = bias.to(q.dtype) if allowed is None else bias.to(q.dtype).masked_fill(~allowed, -math.inf)
            return self.fused_attention(q, k, v, allowed, p, causal)
        if self.key_heads < self.heads:
            k, v = (x.repeat_interleave(self.heads // self.key_heads, -3) for x in (k, v))
        e = self.score(q, k)  # (B, H, T, S)
        e = e if bias is None else e + bias
        a, _ = self.normalizer(e, allowed, q, mask.t[:, None], mask.lengths)
        record(self, a)
        a = dropout(a, p)
        value_bias = None if position is None else position.value_bias(a, mask.t, s)  # (B, H, T, D_v)
        return a @ v if value_bias is None else a @ v + value_bias

    def fused_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, causal: bool) -> Tensor:
        """torch's scaled_dot_product_attention; when training on a CPU in bfloat16, computed in float32."""
        dtype = q.dtype  # one call took 61 ms in bfloat16 and 8 ms in float32
        slow = q.device.type == "cpu" and dtype == torch.bfloat16 and torch.is_grad_enabled()
        if slow:
            q, k, v = q.float(), k.float(), v.float()
            mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        with torch.autocast("cpu", enabled=False) if slow else nullcontext():
            c = nn.functional.scaled_dot_product_attention(
                q, k, v, mask, p, is_causal=causal, scale=self.scale, enable_gqa=self.key_heads < self.heads
            )
        return c.to(dtype)

    def attend_packed(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, queries: Segments, keys: Segments) -> Tensor:
        """`attend` over packed rows, each query attending to the keys of its row: q (1, H, N, ·) → (1, H, N, D_v)."""
        assert queries.starts is not None
        assert keys.starts is not None
        assert self.scale is not None
        longest = max(queries.max_length, keys.max_length)
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # (N, H, ·)
        c = packed_attention(q, k, v, queries.starts, keys.starts, longest, causal, self.scale)
        return c.transpose(0, 1)[None]

    def packing_blocker(self, position: PositionScheme | None) -> str | None:
        """Why this attention cannot run over packed rows; None: it can."""
        if not self.supports_fused_kernel:
            return "only dot scores with softmax have a kernel for packed rows"
        if self.p > 0:
            return "attention_dropout needs the attention weights"
        if position is not None and (position.has_score_bias or position.needs_weights):
            return "these positions change the attention scores"
        return None
