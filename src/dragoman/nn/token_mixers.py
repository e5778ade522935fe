"""Token mixers: the first sub-layer of a Transformer block, which passes information between positions.

    attention        W_O [head_1; …; head_H], each head a softmax over the allowed positions (Vaswani et al. 2017)
    parameter_free   y_i = Σ_j softmax_j(x_i·x_j) x_j
    average          g_t = FFN(1/t Σ_{j≤t} x_j)   i, f = σ(W [x_t; g_t])   y_t = i ⊙ x_t + f ⊙ g_t   (Zhang et al. 2018)
    ssru             f_t = σ(W_f x_t + b)   c_t = f_t ⊙ c_{t-1} + (1 − f_t) ⊙ W x_t   y_t = ReLU(c_t)  (Kim et al. 2019)

The last two keep one vector where attention keeps all keys and values, so a decoder's step costs the same at any
length. They read from left to right, so they work in decoders only.

B sentences, K hypotheses, H heads, T positions, C capacity, D width.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import Part, Registry
from dragoman.nn.attention import AttentionMask, MultiHeadAttention, MultiHeadConfig, record
from dragoman.nn.layers import Activation, FeedForward, linear
from dragoman.nn.normalizers import masked_softmax, match_dtype
from dragoman.nn.positions import PositionScheme


class BlockConfig(NamedTuple):
    """The options that all blocks of a stack share."""

    heads: MultiHeadConfig
    feedforward: int
    activation: Activation
    norm: Part
    norm_order: Literal["pre", "post"]
    dropout: float
    mixer: Part
    causal: bool  # positions see only earlier positions


class TokenMixer(Protocol):
    """(B, T, D) → (B, T, D), each position from those that it may see; `packing_blocker` is optional."""

    has_heads: bool  # position schemes can act inside it
    is_left_to_right: bool  # it can only see earlier positions

    def __call__(self, x: Tensor, mask: AttentionMask, position: PositionScheme) -> Tensor: ...

    def start(self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: PositionScheme) -> Any:
        """The state after a prefix x (B, S, D) of `lengths` positions, with room for `capacity` more; S may be 0."""
        ...

    def step(self, x: Tensor, state: Any, t: Tensor, position: PositionScheme) -> tuple[Tensor, Any]:
        """One position for each hypothesis, x (B, K, D) at t (B, 1) → (B, K, D), and the next state."""
        ...


mixers: Registry[TokenMixer] = Registry("mixer")


KeyValueCache = tuple[Tensor, Tensor]  # the keys and values of earlier positions, (B, K, G, C, ·) each


def allocate_cache(x: Tensor, hypotheses: int, capacity: int) -> Tensor:
    """(B, …, S, D) → (B, K, …, S + C, D): x for every hypothesis, followed by zeros for later positions."""
    longer = nn.functional.pad(x, (0, 0, 0, capacity))
    return longer[:, None].expand(-1, hypotheses, *longer.shape[1:]).contiguous()


def write_cache(cache: Tensor, x: Tensor, t: Tensor) -> None:
    """Write x (B, K, …, 1, D) into a cache (B, K, …, C, D) at position t (B, 1)."""
    index = t.view(-1, *(1,) * (x.dim() - 1))
    cache.scatter_(-2, index.expand_as(x), x)


def past_mask(cache: Tensor, t: Tensor, hypotheses: int) -> Tensor:
    """(B · K, 1, 1, C): true at the positions of a cache up to t (B, 1)."""
    past = torch.arange(cache.shape[-2], device=t.device) <= t  # (B, C)
    return past.repeat_interleave(hypotheses, 0)[:, None, None]


@mixers.register("attention")
class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention: W_O [head_1; …; head_H]."""

    has_heads, is_left_to_right = True, False

    def __init__(self, d: int, config: BlockConfig) -> None:
        super().__init__(d, d, config.heads)

    def forward(self, x: Tensor, mask: AttentionMask, position: PositionScheme) -> Tensor:  # type: ignore[override]
        k, v = self.project_keys_values(x, position, mask.t)
        return super().forward(x, k, v, mask, position)

    def start(
        self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: PositionScheme
    ) -> KeyValueCache:
        k, v = self.project_keys_values(x, position, torch.arange(x.shape[1], device=x.device)[None])
        return allocate_cache(k, hypotheses, capacity), allocate_cache(v, hypotheses, capacity)

    def step(
        self, x: Tensor, state: KeyValueCache, t: Tensor, position: PositionScheme
    ) -> tuple[Tensor, KeyValueCache]:
        (B, K), rows = x.shape[:2], x.flatten(0, 1)[:, None]  # (B · K, 1, D)
        row_t = t.repeat_interleave(K, 0)  # (B · K, 1)
        k, v = (y.view(B, K, *y.shape[1:]) for y in self.project_keys_values(rows, position, row_t))  # (B, K, G, 1, ·)
        keys, values = state
        write_cache(keys, k, t)
        write_cache(values, v, t)
        mask = AttentionMask(row_t, past_mask(keys, t, K), lengths=row_t[:, None] + 1)
        y = super().forward(rows, keys.flatten(0, 1), values.flatten(0, 1), mask, position)
        return y.view(x.shape), state


@mixers.register("parameter_free")
class ParameterFreeAttention(nn.Module):
    """y_i = Σ_j softmax_j(x_i·x_j) x_j: attention with nothing to learn."""

    has_heads = is_left_to_right = False

    def __init__(self, d: int, config: BlockConfig, *, scale: bool = False) -> None:
        super().__init__()
        self.scale = d**-0.5 if scale else 1.0  # x_i·x_j / √D, as Transformers do

    def forward(self, x: Tensor, mask: AttentionMask, position: PositionScheme) -> Tensor:
        allowed = None if mask.allowed is None else mask.allowed[:, 0]
        if mask.causal:
            earlier = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            allowed = earlier if allowed is None else allowed & earlier
        return self.attend(x, x, allowed)

    def attend(self, q: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(q xᵀ) x, recorded: q (B, T, D) attends to x (B, S, D); mask broadcasts to (B, T, S)."""
        e = q @ x.transpose(-1, -2) * self.scale  # (B, T, S)
        a = match_dtype(e, masked_softmax(e, mask))
        record(self, a[:, None])
        return a @ x

    def start(self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: PositionScheme) -> Tensor:
        return allocate_cache(x, hypotheses, capacity)  # (B, K, C, D)

    def step(self, x: Tensor, state: Tensor, t: Tensor, position: PositionScheme) -> tuple[Tensor, Tensor]:
        write_cache(state, x[:, :, None], t)
        mask = past_mask(state, t, x.shape[1])[:, 0]  # (B · K, 1, C)
        return self.attend(x.flatten(0, 1)[:, None], state.flatten(0, 1), mask).view(x.shape), state


def require_causal(name: str, config: BlockConfig) -> None:
    """Raise PartError if a mixer that reads from left to right is built outside of a decoder."""
    if not config.causal:
        raise PartError(
            f"mixer '{name}' reads from left to right, so it works only in decoders; "
            "use mixer 'attention' or 'parameter_free'"
        )


@mixers.register("average")
class AverageAttention(nn.Module):
    """g_t = FFN(mean of x_1 … x_t), gated with x_t (average attention, Zhang et al. 2018)."""

    has_heads, is_left_to_right = False, True

    def __init__(self, d: int, config: BlockConfig, *, feedforward: bool = True, gate: bool = True) -> None:
        super().__init__()
        require_causal("average", config)
        bias, inner = config.heads.bias, config.feedforward
        self.feedforward: nn.Module = (
            FeedForward(d, inner, "relu", config.dropout, bias) if feedforward else nn.Identity()
        )
        self.gate = linear(2 * d, 2 * d, bias) if gate else None

    def forward(self, x: Tensor, mask: AttentionMask, position: PositionScheme) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return self.apply_gate(x, x.cumsum(1) / counts)

    def apply_gate(self, x: Tensor, mean: Tensor) -> Tensor:
        """i ⊙ x + f ⊙ g with i, f = σ(W [x; g]) and g = FFN(mean); g itself without a gate."""
        g: Tensor = self.feedforward(mean)
        if self.gate is None:
            return g
        i, f = torch.sigmoid(self.gate(torch.cat([x, g], -1))).chunk(2, -1)
        return i * x + f * g

    def start(self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: PositionScheme) -> Tensor:
        """The sum of a prefix's real inputs for each hypothesis, (B, K, D); `capacity` and `position` are ignored."""
        real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        total = (x * real[..., None]).sum(1)
        return total[:, None].expand(-1, hypotheses, -1).contiguous()  # (B, K, D): Σ x_j so far

    def step(self, x: Tensor, state: Tensor, t: Tensor, position: PositionScheme) -> tuple[Tensor, Tensor]:
        total = state + x
        return self.apply_gate(x, total / (t + 1)[..., None]), total


@mixers.register("ssru")
class SSRU(nn.Module):
    """c_t = f_t ⊙ c_{t-1} + (1 − f_t) ⊙ W x_t, y_t = ReLU(c_t): the simpler simple recurrent unit (Kim et al. 2019)."""

    has_heads, is_left_to_right = False, True

    def __init__(self, d: int, config: BlockConfig) -> None:
        super().__init__()
        require_causal("ssru", config)
        self.W, self.Wf = linear(d, d, bias=False), linear(d, d, config.heads.bias)

    def forward(self, x: Tensor, mask: AttentionMask, position: PositionScheme) -> Tensor:
        return torch.relu(self.scan(x))

    def scan(self, x: Tensor) -> Tensor:
        """c_1 … c_T, (B, T, D), by a parallel scan of log T passes.

        After the pass with stride n, c_t holds the contribution of the last 2n inputs and f_t the factor of everything
        before them; two such spans combine to (f_t f_{t−n}, c_t + f_t c_{t−n}).
        """
        f = torch.sigmoid(self.Wf(x))
        c: Tensor = (1 - f) * self.W(x)
        stride = 1
        while stride < x.shape[1]:
            early = nn.functional.pad(c, (0, 0, stride, 0))[:, : x.shape[1]]  # c_{t−n}, zeros where there is none
            kept = nn.functional.pad(f, (0, 0, stride, 0))[:, : x.shape[1]]
            c, f, stride = c + f * early, f * kept, 2 * stride
        return c

    def start(self, x: Tensor, lengths: Tensor, hypotheses: int, capacity: int, position: PositionScheme) -> Tensor:
        """c after a prefix's last real position, for each hypothesis, (B, K, D); ignores `capacity` and `position`."""
        before = nn.functional.pad(self.scan(x), (0, 0, 1, 0))  # c_0 = 0, c_1, …, c_S
        c = before.gather(1, lengths[:, None, None].expand(-1, 1, x.shape[-1]))  # (B, 1, D)
        return c.expand(-1, hypotheses, -1).contiguous()

    def step(self, x: Tensor, state: Tensor, t: Tensor, position: PositionScheme) -> tuple[Tensor, Tensor]:
        f = torch.sigmoid(self.Wf(x))
        c = f * state + (1 - f) * self.W(x)
        return torch.relu(c), c
