"""How a position of a Transformer block learns of the others: the first sub-layer of every block.

    attention        W_O [head_1; …; head_H], each head a softmax over the positions it may see (Vaswani et al. 2017)
    parameter_free   y_i = Σ_j softmax_j(x_i·x_j) x_j
    average          g_t = FFN(1/t Σ_{j≤t} x_j)   i, f = σ(W [x_t; g_t])   y_t = i ⊙ x_t + f ⊙ g_t   (Zhang et al. 2018)
    ssru             f_t = σ(W_f x_t + b)   c_t = f_t ⊙ c_{t-1} + (1 − f_t) ⊙ W x_t   y_t = ReLU(c_t)  (Kim et al. 2019)

The last two keep one vector where attention keeps all keys and values, so a decoder's step costs the same at any
length; they read from left to right and serve decoders only.

All positions at once (`forward`), or one more for each hypothesis (`step`). `start` takes what stands before the first
step, (B, S, D) of which `lengths` are real (S is 0 where nothing does), and makes the state with room for `capacity`
more positions of K hypotheses each.

B sentences, K hypotheses, H heads, T positions, C capacity, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Registry
from dragoman.nn.attention import Heads, MultiHead, Places, note
from dragoman.nn.layers import FeedForward, linear
from dragoman.nn.normalizers import like, softmax


class Mixing(NamedTuple):
    """What a mixer is built for."""

    heads: Heads
    feedforward: int
    dropout: float
    causal: bool  # whether positions see only those before them


class Mixer(Protocol):
    """(B, T, D) → (B, T, D), each position from those it may see."""

    has_heads: bool  # whether positions can act inside it
    left_to_right: bool  # whether it can only look back

    def __call__(self, x: Tensor, places: Places, position: Any) -> Tensor: ...

    def start(self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: Any) -> Any: ...

    def step(self, x: Tensor, state: Any, t: Tensor, position: Any) -> tuple[Tensor, Any]: ...  # x (B, K, D), t (B, 1)

    def packs(self, position: Any) -> str | None: ...  # why it cannot mix rows that lie end to end; None: it can


mixers: Registry[Mixer] = Registry("mixer")

ONLY_PADDED = "'{}' mixes only rows with padding"


@dataclass
class Cache:
    """Keys and values of the positions so far, (B, K, G, C, ·) each."""

    k: Tensor
    v: Tensor


def room(x: Tensor, hypotheses: int, capacity: int) -> Tensor:
    """(B, …, S, D) → (B, K, …, S + C, D): the same for every hypothesis, and empty places after it."""
    longer = nn.functional.pad(x, (0, 0, 0, capacity))
    return longer[:, None].expand(-1, hypotheses, *longer.shape[1:]).contiguous()


def write(cache: Tensor, x: Tensor, t: Tensor) -> None:
    """Put x (B, K, …, 1, D) at place t (B, 1) of a cache (B, K, …, C, D)."""
    place = t.view(-1, *(1,) * (x.dim() - 1))
    cache.scatter_(-2, place.expand_as(x), x)


def so_far(cache: Tensor, t: Tensor, hypotheses: int) -> Tensor:
    """(B · K, 1, 1, C): the places up to t."""
    past = torch.arange(cache.shape[-2], device=t.device) <= t  # (B, C)
    return past.repeat_interleave(hypotheses, 0)[:, None, None]


@mixers.register("attention")
class SelfAttention(MultiHead):
    """W_O [head_1; …; head_H]: every head weighs the positions it may see."""

    has_heads, left_to_right = True, False

    def __init__(self, d: int, mixing: Mixing) -> None:
        super().__init__(d, d, mixing.heads)

    def forward(self, x: Tensor, places: Places, position: Any) -> Tensor:  # type: ignore[override]
        k, v = self.keys_values(x, position, places.t)
        return super().forward(x, k, v, places, position)

    def start(self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: Any) -> Cache:
        k, v = self.keys_values(x, position, torch.arange(x.shape[1], device=x.device)[None])
        return Cache(room(k, hypotheses, capacity), room(v, hypotheses, capacity))

    def step(self, x: Tensor, state: Cache, t: Tensor, position: Any) -> tuple[Tensor, Cache]:
        (B, K), rows = x.shape[:2], x.flatten(0, 1)[:, None]  # (B · K, 1, D)
        place = t.repeat_interleave(K, 0)  # (B · K, 1)
        k, v = (y.view(B, K, *y.shape[1:]) for y in self.keys_values(rows, position, place))  # (B, K, G, 1, ·)
        write(state.k, k, t)
        write(state.v, v, t)
        places = Places(place, so_far(state.k, t, K), lengths=place[:, None] + 1)
        y = super().forward(rows, state.k.flatten(0, 1), state.v.flatten(0, 1), places, position)
        return y.view(x.shape), state


@mixers.register("parameter_free")
class ParameterFree(nn.Module):
    """y_i = Σ_j softmax_j(x_i·x_j) x_j: attention with nothing to learn."""

    has_heads = left_to_right = False

    def __init__(self, d: int, mixing: Mixing, *, scale: bool = False) -> None:
        super().__init__()
        self.scale = d**-0.5 if scale else 1.0  # x_i·x_j / √D, as Transformers do

    def forward(self, x: Tensor, places: Places, position: Any) -> Tensor:
        mask = None if places.mask is None else places.mask[:, 0]
        if places.causal:
            earlier = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            mask = earlier if mask is None else mask & earlier
        return self.look(x, x, mask)

    def look(self, q: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """q (B, T, D) looks at x (B, S, D); mask broadcasts to (B, T, S)."""
        e = q @ x.transpose(-1, -2) * self.scale  # (B, T, S)
        a = like(e, softmax(e, mask))
        note(self, a[:, None])
        return a @ x

    def start(self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: Any) -> Tensor:
        return room(x, hypotheses, capacity)  # (B, K, C, D)

    def step(self, x: Tensor, state: Tensor, t: Tensor, position: Any) -> tuple[Tensor, Tensor]:
        write(state, x[:, :, None], t)
        mask = so_far(state, t, x.shape[1])[:, 0]  # (B · K, 1, C)
        return self.look(x.flatten(0, 1)[:, None], state.flatten(0, 1), mask).view(x.shape), state

    def packs(self, position: Any) -> str | None:
        return ONLY_PADDED.format("parameter_free")


def only_causal(name: str, mixing: Mixing) -> None:
    if not mixing.causal:
        raise PartError(
            f"'{name}' reads from left to right, so it serves decoders alone; "
            "where both sides are seen use mixer 'attention' or 'parameter_free'"
        )


@mixers.register("average")
class Average(nn.Module):
    """g_t = FFN(mean of x_1 … x_t), gated with x_t (average attention, Zhang et al. 2018)."""

    has_heads, left_to_right = False, True

    def __init__(self, d: int, mixing: Mixing, *, feedforward: bool = True, gate: bool = True) -> None:
        super().__init__()
        only_causal("average", mixing)
        bias, inner = mixing.heads.bias, mixing.feedforward
        self.feedforward = FeedForward(d, inner, "relu", mixing.dropout, bias) if feedforward else nn.Identity()
        self.gate = linear(2 * d, 2 * d, bias) if gate else None

    def forward(self, x: Tensor, places: Places, position: Any) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return self.gated(x, x.cumsum(1) / counts)

    def gated(self, x: Tensor, mean: Tensor) -> Tensor:
        g = self.feedforward(mean)
        if self.gate is None:
            return g  # type: ignore[no-any-return]
        i, f = torch.sigmoid(self.gate(torch.cat([x, g], -1))).chunk(2, -1)
        return i * x + f * g  # type: ignore[no-any-return]

    def start(self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: Any) -> Tensor:
        real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        total = (x * real[..., None]).sum(1)
        return total[:, None].expand(-1, hypotheses, -1).contiguous()  # (B, K, D): Σ x_j so far

    def step(self, x: Tensor, state: Tensor, t: Tensor, position: Any) -> tuple[Tensor, Tensor]:
        total = state + x
        return self.gated(x, total / (t + 1)[..., None]), total

    def packs(self, position: Any) -> str | None:
        return ONLY_PADDED.format("average")


@mixers.register("ssru")
class SSRU(nn.Module):
    """c_t = f_t ⊙ c_{t-1} + (1 − f_t) ⊙ W x_t, y_t = ReLU(c_t): the simpler simple recurrent unit (Kim et al. 2019)."""

    has_heads, left_to_right = False, True

    def __init__(self, d: int, mixing: Mixing) -> None:
        super().__init__()
        only_causal("ssru", mixing)
        self.W, self.Wf = linear(d, d, bias=False), linear(d, d, mixing.heads.bias)

    def forward(self, x: Tensor, places: Places, position: Any) -> Tensor:
        return torch.relu(self.cells(x))

    def cells(self, x: Tensor) -> Tensor:
        """c_1 … c_T, (B, T, D), in log T passes.

        After the pass with stride n, c_t is what the last 2n inputs make of it and f_t how much is kept of what was
        before them; two such spans join to (f_t f_{t−n}, c_t + f_t c_{t−n}).
        """
        f = torch.sigmoid(self.Wf(x))
        c: Tensor = (1 - f) * self.W(x)
        stride = 1
        while stride < x.shape[1]:
            early = nn.functional.pad(c, (0, 0, stride, 0))[:, : x.shape[1]]  # c_{t−n}, zeros where there is none
            kept = nn.functional.pad(f, (0, 0, stride, 0))[:, : x.shape[1]]
            c, f, stride = c + f * early, f * kept, 2 * stride
        return c

    def start(self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: Any) -> Tensor:
        before = nn.functional.pad(self.cells(x), (0, 0, 1, 0))  # c_0 = 0, c_1, …, c_S
        c = before.gather(1, lengths[:, None, None].expand(-1, 1, x.shape[-1]))  # (B, 1, D): after the last real one
        return c.expand(-1, hypotheses, -1).contiguous()

    def step(self, x: Tensor, state: Tensor, t: Tensor, position: Any) -> tuple[Tensor, Tensor]:
        f = torch.sigmoid(self.Wf(x))
        c = f * state + (1 - f) * self.W(x)
        return torch.relu(c), c

    def packs(self, position: Any) -> str | None:
        return ONLY_PADDED.format("ssru")
