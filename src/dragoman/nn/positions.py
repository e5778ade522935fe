"""Position schemes: attention treats its inputs as a set, and these tell it their order.

    added to x        sinusoidal   PE(t, 2i) = sin(t / 10000^(2i/D)),  PE(t, 2i+1) = cos(t / 10000^(2i/D))
                      learned      P[t]
    added to scores   shaw         e_ts += q_t · A^K[clip(s − t)] / √d        c_t += Σ_s a_ts A^V[clip(s − t)]
                      t5           e_ts += b_h[bucket(s − t)]
                      xl           e_ts += (q_t + v_h) · W_h PE(s − t) / √d
                      alibi        e_ts −= m_h |t − s|
    rotates q and k   rotary       pair i of the vector at t, by the angle t / base^(2i/d)

B batch, H heads, T queries at positions t, S keys at positions s, D width, d width of a head. Positions are tensors,
(B, T) and (B, S) or (1, ·), never Python ints: a step can continue anywhere, and rows may be at different positions.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import NonNegativeInt, PositiveFloat, PositiveInt, Registry

Layout = Literal["interleaved", "halves"]
MAX_HEADS = 10_000


class HeadSpec(NamedTuple):
    """The heads of the attention that a scheme acts in."""

    heads: int
    d_head: int
    causal: bool  # queries attend to earlier keys only


class PositionScheme(nn.Module):
    """Adds the order of positions to vectors before the first block, or to attention inside the blocks."""

    max_positions: int | None = None  # None: no limit
    per_layer = False  # every block has its own parameters, rather than one set for the whole stack
    # These three follow from the methods that a subclass overrides.
    rotates = False
    has_score_bias = False
    needs_weights = False  # `value_bias` returns a tensor, so the attention weights must be formed

    def __init__(self, d: int, heads: HeadSpec | None) -> None:
        super().__init__()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.rotates = cls.rotate is not PositionScheme.rotate
        cls.has_score_bias = cls.score_bias is not PositionScheme.score_bias
        cls.needs_weights = cls.value_bias is not PositionScheme.value_bias

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The inputs of the first block with their positions t (B or 1, T): x (B, T, D) → (B, T, D)"""
        return x

    def rotate(self, x: Tensor, t: Tensor) -> Tensor:
        """Queries or keys (B, H, T, d), rotated to the positions t."""
        return x

    def score_bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        """What is added to the scores of queries q (B, H, T, d) for keys at s: (B or 1, H, T, S); None: nothing."""
        return None

    def value_bias(self, a: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        """What is added to the context Σ a v for weights a (B, H, T, S): (B, H, T, d); None: nothing."""
        return None


positions: Registry[PositionScheme] = Registry("position")


@positions.register("none")
class NoPositions(PositionScheme):
    """x as it is: a set without order."""


@positions.register("sinusoidal")
class SinusoidalPositions(PositionScheme):
    """x + PE(t), sines and cosines of geometric wavelengths; works beyond the training length.

    Other programs differ in three ways: Hugging Face's Marian has the sines before the cosines (`layout: halves`);
    tensor2tensor, fairseq and Marian divide by D/2 − 1, so that the last wavelength is 10000 · 2π (`endpoint`); fairseq
    counts positions from 2 and OpenNMT from 1 (`first`).
    """

    def __init__(
        self,
        d: int,
        heads: HeadSpec | None,
        *,
        layout: Layout = "interleaved",
        endpoint: bool = False,
        first: NonNegativeInt = 0,
    ) -> None:
        super().__init__(d, heads)
        if d % 2 or (endpoint and d < 4):
            raise PartError(f"sinusoidal positions need an even width{', of at least 4' if endpoint else ''}, not {d}")
        self.layout, self.first = layout, first
        self.register_buffer("frequencies", _frequencies(d, 10000.0, endpoint), persistent=False)
        self.frequencies: Tensor

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = (t + self.first)[..., None].float() * self.frequencies  # (B, T, D/2)
        return x + _join_pairs(torch.sin(angles), torch.cos(angles), self.layout).to(x.dtype)


@positions.register("learned")
class LearnedPositions(PositionScheme):
    """x + P[t], one trained vector for each of `length` positions."""

    def __init__(self, d: int, heads: HeadSpec | None, *, length: PositiveInt = 1024) -> None:
        super().__init__(d, heads)
        self.max_positions = length
        self.table = nn.Embedding(length, d)
        nn.init.normal_(self.table.weight, std=d**-0.5)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y: Tensor = x + self.table(t)
        return y


@positions.register("shaw")
class ShawPositions(PositionScheme):
    """e_ts = q_t · (k_s + A^K[s − t]) / √d, distances clipped at `distance`; `values` adds A^V too (Shaw et al. 2018).

    One vector for each distance, shared by the heads; every block has its own vectors.
    """

    per_layer = True

    def __init__(self, d: int, heads: HeadSpec | None, *, distance: PositiveInt = 16, values: bool = False) -> None:
        super().__init__(d, heads)
        heads = _require_heads(heads, "shaw")
        self.distance, self.scale, self.needs_weights = distance, heads.d_head**-0.5, values
        self.keys = _xavier_parameter(2 * distance + 1, heads.d_head)  # A^K
        self.values = _xavier_parameter(2 * distance + 1, heads.d_head) if values else None  # A^V

    def score_bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        # q against all 2k + 1 vectors, then the right one for each pair: no (T, S, d) tensor is formed.
        e: Tensor = q @ self.keys.to(q.dtype).T * self.scale  # (B, H, T, 2k + 1)
        return e.gather(-1, _clipped_index(t, s, self.distance).expand(*q.shape[:-1], -1))  # (B, H, T, S)

    def value_bias(self, a: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        if self.values is None:
            return None
        # The weights of all keys at one clipped distance, summed; then the vectors of the distances, averaged.
        by_distance = a.new_zeros(*a.shape[:-1], 2 * self.distance + 1)  # (B, H, T, 2k + 1)
        by_distance = by_distance.scatter_add(-1, _clipped_index(t, s, self.distance).expand_as(a), a)
        return by_distance @ self.values.to(a.dtype)  # (B, H, T, d)


@positions.register("xl")
class TransformerXLPositions(PositionScheme):
    """e_ts = (q_t · k_s + (q_t + v_h) · W_h PE(s − t)) / √d, PE as in sinusoidal (Transformer-XL, Dai et al. 2019).

    Every block has its own W and v. The paper's u, which is added to queries before the dot product with keys, is the
    bias of W_Q here. Distances are clipped at `distance`.
    """

    per_layer = True

    def __init__(self, d: int, heads: HeadSpec | None, *, distance: PositiveInt = 128) -> None:
        super().__init__(d, heads)
        self.heads, self.distance = _require_heads(heads, "xl"), distance
        if d % 2:
            raise PartError(f"xl positions need an even width, not {d}")
        angles = torch.arange(-distance, distance + 1)[:, None].float() * _frequencies(d, 10000.0)  # (2k + 1, D/2)
        sinusoids = _join_pairs(torch.sin(angles), torch.cos(angles), "interleaved")
        self.register_buffer("sinusoids", sinusoids, persistent=False)
        self.sinusoids: Tensor  # PE of each distance
        self.W = _xavier_parameter(d, self.heads.heads * self.heads.d_head)
        self.v = nn.Parameter(torch.zeros(self.heads.heads, 1, self.heads.d_head))

    def score_bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        r = (self.sinusoids.to(self.W.dtype) @ self.W).view(-1, *self.v.shape[::2]).movedim(0, -1)  # (H, d, 2k + 1)
        e: Tensor = (q + self.v.to(q.dtype)) @ r.to(q.dtype) * self.heads.d_head**-0.5  # (B, H, T, 2k + 1)
        return e.gather(-1, _clipped_index(t, s, self.distance).expand(*q.shape[:-1], -1))  # (B, H, T, S)


@positions.register("t5")
class T5Positions(PositionScheme):
    """e_ts + b_h[bucket(s − t)]: buckets grow with the distance, up to `distance` (Raffel et al. 2020).

    In each direction the nearer half of the buckets hold one distance each, the others grow geometrically, and the last
    holds all larger distances. Unless attention is causal, half of the buckets are for later keys.
    """

    def __init__(
        self, d: int, heads: HeadSpec | None, *, buckets: PositiveInt = 32, distance: PositiveInt = 128
    ) -> None:
        super().__init__(d, heads)
        heads = _require_heads(heads, "t5")
        self.later = 0 if heads.causal else buckets // 2  # the first bucket of later keys
        exact = (buckets - self.later) // 2
        if exact < 1 or buckets % 2 or distance <= exact:
            raise PartError(
                f"t5 positions cannot divide distances up to {distance} into {buckets} buckets; "
                "use an even number of buckets, 4 or more, and a larger distance"
            )
        self.table = nn.Embedding(buckets, heads.heads)
        nn.init.normal_(self.table.weight, std=d**-0.5)
        self.register_buffer("edges", _bucket_edges(buckets - self.later, distance), persistent=False)
        self.edges: Tensor

    def score_bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        b: Tensor = self.table(self.bucket_index(_relative_positions(t, s)[..., 0, :, :]))  # (B, T, S, H)
        return b.movedim(-1, -3).to(q.dtype)  # (B, H, T, S)

    def bucket_index(self, distance: Tensor) -> Tensor:
        """The bucket of each relative position s − t; of causal attention all later keys share the first."""
        size = distance.abs() if self.later else (-distance).clamp(min=0)
        return torch.bucketize(size, self.edges, right=True) + self.later * (distance > 0)


@positions.register("alibi")
class ALiBiPositions(PositionScheme):
    """e_ts − m_h |t − s|, a fixed slope for each head; works beyond the training length (Press et al. 2022)."""

    def __init__(self, d: int, heads: HeadSpec | None) -> None:
        super().__init__(d, heads)
        slopes = torch.tensor(_alibi_slopes(_require_heads(heads, "alibi").heads))
        self.register_buffer("slopes", slopes[:, None, None], persistent=False)  # (H, 1, 1)
        self.slopes: Tensor

    def score_bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return (-self.slopes * _relative_positions(t, s).abs()).to(q.dtype)  # (B, H, T, S)


def _relative_positions(t: Tensor, s: Tensor) -> Tensor:
    """s − t, positive where the key is later than the query: (B, 1, T, S)."""
    return s[..., None, None, :] - t[..., None, :, None]


def _clipped_index(t: Tensor, s: Tensor, limit: int) -> Tensor:
    """The row of each query and key in a table of the distances −limit … limit, (B, 1, T, S)."""
    return _relative_positions(t, s).clamp(-limit, limit) + limit


def _xavier_parameter(n: int, d: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(n, d)))


def _bucket_edges(buckets: int, distance: int) -> Tensor:
    """The distance at which each bucket after the first starts.

    bucket(n) = n below m = buckets / 2, then m + ⌊log(n/m) / log(distance/m) · (buckets − m)⌋, at most buckets − 1.
    Solved for n once and in double precision: a float32 logarithm may fall on either side of an edge.
    """
    m = buckets // 2
    growing = [m * (distance / m) ** (j / (buckets - m)) for j in range(1, buckets - m)]
    return torch.tensor([*range(1, m + 1), *(math.ceil(n - 1e-9) for n in growing)])


def _alibi_slopes(heads: int) -> list[float]:
    """2^(−8h/H) for each head h = 1 … H; where H is no power of two, every other one of the next power fills up."""
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * (heads - power), 2)]


@positions.register("rotary")
class RotaryPositions(PositionScheme):
    """Queries and keys rotated by t / base^(2i/d), so that q·k depends on t − s alone (Su et al. 2021)."""

    def __init__(
        self, d: int, heads: HeadSpec | None, *, base: PositiveFloat = 10000.0, layout: Layout = "interleaved"
    ) -> None:
        super().__init__(d, heads)
        d_head = _require_heads(heads, "rotary").d_head
        if d_head % 2:
            raise PartError(f"rotary positions rotate pairs and need heads of an even width, not {d_head}")
        self.layout = layout
        self.register_buffer("frequencies", _frequencies(d_head, base), persistent=False)
        self.frequencies: Tensor

    def rotate(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[..., None, :, None].float() * self.frequencies  # (B, 1, T, d/2)
        cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
        if self.layout == "interleaved":
            x1, x2 = x[..., 0::2], x[..., 1::2]  # (B, H, T, d/2)
        else:
            x1, x2 = x.chunk(2, -1)
        return _join_pairs(x1 * cos - x2 * sin, x1 * sin + x2 * cos, self.layout)


def _require_heads(heads: HeadSpec | None, name: str) -> HeadSpec:
    if heads is None:
        raise PartError(f"{name} positions need multi-head attention, which this part lacks; use sinusoidal or learned")
    if heads.heads > MAX_HEADS:
        raise PartError(f"{heads.heads:,} heads are more than the {MAX_HEADS:,} that {name} positions allow")
    return heads


# -- what engines may assume -------------------------------------------------------------------------------------------


def is_additive(position: PositionScheme) -> bool:
    """Whether the inputs of the first block are x + P[t] with one table P for all x, so that P can be cached."""
    additive = PositionScheme.forward, SinusoidalPositions.forward, LearnedPositions.forward
    return getattr(type(position), "forward", None) in additive


def may_rotate(position: PositionScheme) -> bool:
    """Whether a scheme rotates queries and keys; a third party's scheme without a flag `rotates` may."""
    return getattr(position, "rotates", True)


def acts_in_attention(position: PositionScheme) -> bool:
    """Whether a scheme changes queries, keys, scores or contexts."""
    return may_rotate(position) or position.has_score_bias or position.needs_weights


def _frequencies(d: int, base: float, endpoint: bool = False) -> Tensor:
    """base^(−2i/d) for each pair i, (d/2,); with `endpoint` base^(−i/(d/2 − 1))."""
    pairs = torch.arange(0, d, 2, dtype=torch.float64)
    return torch.exp(pairs * (-math.log(base) / (d - 2 if endpoint else d))).float()


def _join_pairs(first: Tensor, second: Tensor, layout: Layout) -> Tensor:
    """Two halves of pairs → vectors, (…, d/2) twice → (…, d): interleaved, or one half after the other."""
    return torch.stack((first, second), -1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), -1)
