"""Score every key against every query, normalize, average the values.

    e = score(q, k)      a = normalize(e)      c = a v

One head with any score looks at states as they are (`Attention`); several heads look at projections of their own
(`MultiHead`), which may share keys and values. Scores are in scores.py, normalizers in normalizers.py.

B batch, H heads, G key heads (H / G queries share one), T queries, S keys, D width.

Weights are computed only when somebody looks: `with watching() as seen:` collects them from every attention that runs
inside, by module; otherwise a dot score with softmax goes through the fused kernel, which never forms them. Weights are
T · S numbers for every head and layer: of modules whose weights are too many, only the heads are noted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Segments
from dragoman.nn.kernels.dropout import drop
from dragoman.nn.kernels.packed import packed_attention
from dragoman.nn.layers import linear
from dragoman.nn.normalizers import normalizers
from dragoman.nn.scores import fused_scale, scores

# -- watching --------------------------------------------------------------------------------------------------------

Seen = dict[nn.Module, list[Tensor]]
_seen: ContextVar[Seen | None] = ContextVar("seen", default=None)


_counted: ContextVar[Collection[nn.Module]] = ContextVar("counted", default=())


@contextmanager
def record_attention(counted: Collection[nn.Module] = ()) -> Iterator[Seen]:
    """Collect the weights of every attention that runs inside: module → its weights in the order of calls.

    Those of `counted` have no columns: how many heads and queries there were is all that is noted of them.
    """
    seen: Seen = {}
    tokens = _seen.set(seen), _counted.set(counted)
    try:
        yield seen
    finally:
        _seen.reset(tokens[0])
        _counted.reset(tokens[1])


def watched() -> bool:
    return _seen.get() is not None


def notes(module: nn.Module | None, count: int) -> list[Tensor]:
    """What an attention weighed in its last so many calls, if somebody is watching; a shared layer has several."""
    return (_seen.get() or {}).get(module, [])[-count:] if module is not None else []


def note(module: nn.Module, a: Tensor) -> None:
    """Tell whoever is watching what an attention weighed."""
    seen = _seen.get()
    if seen is not None:
        seen.setdefault(module, []).append(a.new_empty(*a.shape[:-1], 0) if module in _counted.get() else a.detach())


# -- one head --------------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """What a look at the source gives: the context, the weights, what the score remembers, terms for the loss."""

    c: Tensor  # (B, T, D)
    a: Tensor  # (B, T, S)
    memo: Tensor | None
    extras: dict[str, Tensor]


class Attention(nn.Module):
    """One head with any score: c = Σ_j a_j v_j, where v are the states as they come."""

    def __init__(self, d_q: int, d_k: int, score: Part, normalizer: Part) -> None:
        super().__init__()
        self.score: Any = scores.build(score, d_q, d_k)
        self.normalizer: Any = normalizers.build(normalizer, d_q)
        self.remembers: bool = self.score.remembers

    def prepare(self, h: Tensor) -> Tensor:
        return self.score.prepare(h)  # type: ignore[no-any-return]

    def forward(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        memo: Tensor | None = None,
        t: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Look:
        """q (B, T, D_q), keys (B, S, ·), values (B, S, D), mask (B, 1, S), memo (B, T, S); t, lengths: see Places."""
        e = self.score(q, keys, memo)  # (B, T, S)
        a, extras = self.normalizer(e, mask, q, t, lengths)
        note(self, a)
        if memo is not None:
            penalty = self.score.penalty(memo, a)
            if penalty is not None:
                extras = extras | {"penalty": extras.get("penalty", 0.0) + penalty}
            memo = self.score.remember(memo, a)
        return Look(a @ values, a, memo, extras)


# -- many heads ------------------------------------------------------------------------------------------------------


class Heads(NamedTuple):
    """The options of heads that work side by side."""

    heads: int
    score: Part
    normalizer: Part
    dropout: float = 0.0
    key_heads: int | None = None  # how many keys and values there are for all heads to share (None: one each)
    key_width: int | None = None  # of one head's queries and keys (None: D / H)
    value_width: int | None = None
    bias: bool = True
    fold_scaling_into_initializer: bool = False  # W_q begins smaller by √d_k, for a score that is not divided by it


@dataclass
class Places:
    """Where queries and keys stand, and who may look at whom. Keys stand at 0 … S−1."""

    t: Tensor  # (B or 1, T): places of the queries
    mask: Tensor | None  # broadcasts to (B, H, T, S): true where looking is allowed; None: anywhere
    causal: bool = False  # query i sees keys 0 … i only, besides the mask
    lengths: Tensor | None = None  # broadcasts to (B, H, T): how many keys there are, for windows
    real: Tensor | None = None  # (B, T): true where a query's position is real, for norms over a batch
    packed: tuple[Segments, Segments] | None = None  # of queries and keys that lie end to end


class MultiHead(nn.Module):
    """Several attentions side by side on projections of their own: W_O [head_1; …; head_H]."""

    def __init__(self, d: int, d_memory: int, options: Heads) -> None:
        super().__init__()
        H = options.heads
        self.heads, self.key_heads, self.p = H, options.key_heads or H, options.dropout
        if d % H and (options.key_width is None or options.value_width is None):
            raise PartError(f"width {d} cannot be shared evenly by {H} heads")
        if H % self.key_heads:
            raise PartError(f"{H} heads cannot share {self.key_heads} key heads evenly")
        d_k, d_v, G = options.key_width or d // H, options.value_width or d // H, self.key_heads
        self.Wq, self.Wk = linear(d, H * d_k, options.bias), linear(d_memory, G * d_k, options.bias)
        self.Wv, self.Wo = linear(d_memory, G * d_v, options.bias), linear(H * d_v, d, options.bias)
        self.score: Any = scores.build(options.score, d_k, d_k)
        self.normalizer: Any = normalizers.build(options.normalizer, d_k)
        if self.score.remembers:
            raise PartError(
                f"a '{options.score.name}' score remembers what earlier steps looked at, but the heads of a "
                "Transformer compute all steps at once; use it in an rnn decoder"
            )
        if self.normalizer.samples:
            raise PartError(
                f"'{options.normalizer.name}' draws one position for each step and learns from that draw's reward, "
                "which cannot be told apart for many heads and layers; use it in an rnn decoder"
            )
        if options.fold_scaling_into_initializer:
            if options.score.name != "dot":
                raise PartError(
                    "fold_scaling_into_initializer stands for the division that a dot score leaves out, and "
                    f"'{options.score.name}' is another score; use 'dot', or leave the option out"
                )
            with torch.no_grad():
                self.Wq.weight.mul_(d_k**-0.5)
        self.scale = fused_scale(self.score)  # of a score s q·k, which a fused kernel computes under a softmax
        self.fused = self.scale is not None and options.normalizer.name == "softmax"

    def split(self, x: Tensor, heads: int) -> Tensor:
        """(…, S, H · D) → (…, H, S, D)"""
        return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-2, -3)

    def keys_values(
        self, h: Tensor, position: Any = None, s: Tensor | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What queries look at, projected once: (…, G, S, ·) each, keys as the score wants them."""
        k = self.split(self.Wk(h), self.key_heads)
        if position is not None:
            k = position.turn(k, s)
        return self.score.prepare(k), self.split(self.Wv(h if values is None else values), self.key_heads)

    def queries(self, x: Tensor, position: Any = None, t: Tensor | None = None) -> Tensor:
        q = self.split(self.Wq(x), self.heads)
        return q if position is None else position.turn(q, t)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, places: Places, position: Any = None) -> Tensor:
        """x (B, T, D) looks at k, v (B, G, S, ·)."""
        return self.join(self.attend(self.queries(x, position, places.t), k, v, places, position))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, places: Places, position: Any = None) -> Tensor:
        """q (B, H, T, ·) → (B, H, T, D_v). `position` is a scheme that acts inside attention, if there is one."""
        if places.packed is not None:
            return self.attend_packed(q, k, v, places.causal, *places.packed)
        p = self.p if self.training else 0.0
        s = torch.arange(k.shape[-2], device=k.device)[None]  # (1, S)
        bias = None if position is None else position.bias(q, places.t, s)  # (B, H, T, S)
        fused = self.fused and not watched() and not (position is not None and position.sees_weights)
        mask, causal = places.mask, places.causal
        if causal and not (fused and mask is None and bias is None):  # the kernel takes one or the other
            earlier = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            mask, causal = earlier if mask is None else mask & earlier, False
        if fused:
            if bias is not None:
                mask = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, -math.inf)
            return self.fused_attention(q, k, v, mask, p, causal)
        if self.key_heads < self.heads:
            k, v = (x.repeat_interleave(self.heads // self.key_heads, -3) for x in (k, v))
        e = self.score(q, k)  # (B, H, T, S)
        e = e if bias is None else e + bias
        a, _ = self.normalizer(e, mask, q, places.t[:, None], places.lengths)
        note(self, a)
        a = drop(a, p)
        extra = None if position is None else position.mix(a, places.t, s)
        return a @ v if extra is None else a @ v + extra

    def fused_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, causal: bool) -> Tensor:
        """torch's kernel; in training on a CPU always in float32: bfloat16 took 61 ms where it took 8."""
        kind = q.dtype
        slow = q.device.type == "cpu" and kind == torch.bfloat16 and torch.is_grad_enabled()
        if slow:
            q, k, v = q.float(), k.float(), v.float()
            mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        with torch.autocast("cpu", enabled=False) if slow else nullcontext():
            c = nn.functional.scaled_dot_product_attention(
                q, k, v, mask, p, is_causal=causal, scale=self.scale, enable_gqa=self.key_heads < self.heads
            )
        return c.to(kind)

    def packs(self, position: Any) -> str | None:
        """Why rows that lie end to end cannot be looked at; None: they can."""
        if not self.fused:
            return "only dot scores under a softmax have a kernel for rows without padding"
        if self.p > 0:
            return "attention_dropout needs the weights"
        if position is not None and (position.biases or position.sees_weights):
            return "positions that act on the scores need them"
        return None

    def attend_packed(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, queries: Segments, keys: Segments) -> Tensor:
        """q (1, H, N, ·) → (1, H, N, D_v), each row by itself."""
        assert queries.starts is not None
        assert keys.starts is not None
        assert self.scale is not None
        longest = max(queries.longest, keys.longest)
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # (N, H, ·)
        c = packed_attention(q, k, v, queries.starts, keys.starts, longest, causal, self.scale)
        return c.transpose(0, 1)[None]

    def join(self, heads: Tensor) -> Tensor:
        """(…, H, T, D_v) → W_O of the heads side by side, (…, T, D)"""
        return self.Wo(heads.transpose(-2, -3).flatten(-2))  # type: ignore[no-any-return]
