"""Where things stand: what attention, which sees a set, is told about order.

    added to x        sinusoidal   PE(t, 2i) = sin(t / 10000^(2i/D)),  PE(t, 2i+1) = cos(t / 10000^(2i/D))
                      learned      P[t]
    added to scores   shaw         e_ts += q_t · A^K[clip(s − t)] / √d        c_t += Σ_s a_ts A^V[clip(s − t)]
                      t5           e_ts += b_h[bucket(s − t)]
                      xl           e_ts += (q_t + v_h) · W_h PE(s − t) / √d
                      alibi        e_ts −= m_h |t − s|
    turns q and k     rotary       pair i of the vector at t, by the angle t / base^(2i/d)

B batch, H heads, T queries at places t, S keys at places s, D width, d width of a head. Places are tensors, (B, T) and
(B, S) or (1, ·), never Python ints: a step can continue anywhere, and rows may stand at different places.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dragoman.core.errors import PartError
from dragoman.core.registry import PositiveFloat, PositiveInt, Registry

Layout = Literal["interleaved", "halves"]


class Inside(NamedTuple):
    """The attention that positions act in; a causal one looks only back."""

    heads: int
    d_head: int
    causal: bool


class Positions(Protocol):
    """Tells a set of vectors apart by place."""

    length: int | None  # how far it reaches (None: any distance)
    each_layer: bool  # every block has its own, rather than one for the whole stack
    rotates: bool  # `turn` changes queries and keys
    biases: bool  # `bias` has something to add to the scores
    sees_weights: bool  # `mix` has something to add, so the weights must be formed

    def __call__(self, x: Tensor, t: Tensor) -> Tensor: ...  # x (B, T, D), before the first block

    def turn(self, x: Tensor, t: Tensor) -> Tensor: ...  # queries or keys (B, H, T, d)

    def bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None: ...  # onto the scores, (B | 1, H, T, S)

    def mix(self, a: Tensor, t: Tensor, s: Tensor) -> Tensor | None: ...  # onto Σ a v, (B, H, T, d), a (B, H, T, S)


positions: Registry[Positions] = Registry("position")


class Nowhere(nn.Module):
    """What every scheme does where it has nothing to say: leave things as they are.

    What a scheme does inside attention follows from what it overrides, so that it cannot forget to declare it.
    """

    length: int | None = None
    each_layer = False
    rotates = biases = sees_weights = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.rotates = cls.turn is not Nowhere.turn
        cls.biases = cls.bias is not Nowhere.bias
        cls.sees_weights = cls.mix is not Nowhere.mix

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x

    def turn(self, x: Tensor, t: Tensor) -> Tensor:
        return x

    def bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return None

    def mix(self, a: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return None


@positions.register("none")
class NoPositions(Nowhere):
    """x as it is: a set without order."""

    def __init__(self, d: int, inside: Inside | None) -> None:
        super().__init__()


# -- added to the vectors ----------------------------------------------------------------------------------------------


@positions.register("sinusoidal")
class Sinusoidal(Nowhere):
    """x + PE(t), sines and cosines of geometric wavelengths; runs past the training length."""

    def __init__(self, d: int, inside: Inside | None, *, layout: Layout = "interleaved") -> None:
        super().__init__()
        if d % 2:
            raise PartError(f"sinusoidal positions need an even width, not {d}")
        self.layout = layout
        self.register_buffer("rates", _rates(d, 10000.0), persistent=False)
        self.rates: Tensor

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[..., None].float() * self.rates  # (B, T, D/2)
        return x + _join(torch.sin(angles), torch.cos(angles), self.layout).to(x.dtype)


@positions.register("learned")
class Learned(Nowhere):
    """x + P[t], one trained vector for each place up to `length`."""

    def __init__(self, d: int, inside: Inside | None, *, length: PositiveInt = 1024) -> None:
        super().__init__()
        self.length = length
        self.table = nn.Embedding(length, d)
        nn.init.normal_(self.table.weight, std=d**-0.5)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x + self.table(t)  # type: ignore[no-any-return]


# -- added to the scores -----------------------------------------------------------------------------------------------


@positions.register("shaw")
class Shaw(Nowhere):
    """e_ts = q_t · (k_s + A^K[s − t]) / √d, distances clipped at `distance`; `values` adds A^V too (Shaw et al. 2018).

    One vector for each distance, shared by the heads; every block has its own.
    """

    each_layer = True

    def __init__(self, d: int, inside: Inside | None, *, distance: PositiveInt = 16, values: bool = False) -> None:
        super().__init__()
        inside = _needed(inside, "shaw")
        self.distance, self.scale, self.sees_weights = distance, inside.d_head**-0.5, values
        self.keys = _vectors(2 * distance + 1, inside.d_head)  # A^K
        self.values = _vectors(2 * distance + 1, inside.d_head) if values else None  # A^V

    def bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        # q against all 2k + 1 vectors, then the right one for each pair: no (T, S, d) tensor is formed.
        e: Tensor = q @ self.keys.to(q.dtype).T * self.scale  # (B, H, T, 2k + 1)
        return e.gather(-1, _clipped(t, s, self.distance).expand(*q.shape[:-1], -1))  # (B, H, T, S)

    def mix(self, a: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        if self.values is None:
            return None
        # The weights of all keys at one clipped distance, summed; then the vectors of the distances, averaged.
        seen = a.new_zeros(*a.shape[:-1], 2 * self.distance + 1)  # (B, H, T, 2k + 1)
        seen = seen.scatter_add(-1, _clipped(t, s, self.distance).expand_as(a), a)
        return seen @ self.values.to(a.dtype)  # (B, H, T, d)


@positions.register("xl")
class XL(Nowhere):
    """e_ts = (q_t · k_s + (q_t + v_h) · W_h PE(s − t)) / √d, PE as in sinusoidal (Transformer-XL, Dai et al. 2019).

    W and v are each block's own. Their u, which a query adds before the content of keys, is the bias of the queries'
    own matrix here. Distances beyond `distance` count as that one.
    """

    each_layer = True

    def __init__(self, d: int, inside: Inside | None, *, distance: PositiveInt = 128) -> None:
        super().__init__()
        self.inside, self.distance = _needed(inside, "xl"), distance
        if d % 2:
            raise PartError(f"xl positions need an even width, not {d}")
        angles = torch.arange(-distance, distance + 1)[:, None].float() * _rates(d, 10000.0)  # (2k + 1, D/2)
        self.register_buffer("waves", _join(torch.sin(angles), torch.cos(angles), "interleaved"), persistent=False)
        self.waves: Tensor  # PE of each distance
        self.W = _vectors(d, self.inside.heads * self.inside.d_head)
        self.v = nn.Parameter(torch.zeros(self.inside.heads, 1, self.inside.d_head))

    def bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        r = (self.waves.to(self.W.dtype) @ self.W).view(-1, *self.v.shape[::2]).movedim(0, -1)  # (H, d, 2k + 1)
        e: Tensor = (q + self.v.to(q.dtype)) @ r.to(q.dtype) * self.inside.d_head**-0.5  # (B, H, T, 2k + 1)
        return e.gather(-1, _clipped(t, s, self.distance).expand(*q.shape[:-1], -1))  # (B, H, T, S)


@positions.register("t5")
class T5(Nowhere):
    """e_ts + b_h[bucket(s − t)]: buckets grow with the distance, up to `distance` (Raffel et al. 2020).

    Of the buckets of one direction, the nearer half is one distance each and the others grow geometrically; the last
    takes all that is farther. Unless attention is causal, half of the buckets is for keys that come later.
    """

    def __init__(
        self, d: int, inside: Inside | None, *, buckets: PositiveInt = 32, distance: PositiveInt = 128
    ) -> None:
        super().__init__()
        inside = _needed(inside, "t5")
        self.later = 0 if inside.causal else buckets // 2  # the bucket where later keys begin
        exact = (buckets - self.later) // 2
        if exact < 1 or buckets % 2 or distance <= exact:
            raise PartError(
                f"t5 positions cannot share distances up to {distance} among {buckets} buckets; "
                "take an even number of buckets, 4 or more, and a distance above it"
            )
        self.table = nn.Embedding(buckets, inside.heads)
        nn.init.normal_(self.table.weight, std=d**-0.5)
        self.register_buffer("edges", _edges(buckets - self.later, distance), persistent=False)
        self.edges: Tensor

    def bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        b: Tensor = self.table(self.bucket(_distance(t, s)[..., 0, :, :]))  # (B, T, S, H)
        return b.movedim(-1, -3).to(q.dtype)  # (B, H, T, S)

    def bucket(self, distance: Tensor) -> Tensor:
        far = distance.abs() if self.later else (-distance).clamp(min=0)
        return torch.bucketize(far, self.edges, right=True) + self.later * (distance > 0)


@positions.register("alibi")
class ALiBi(Nowhere):
    """e_ts − m_h |t − s|, a fixed slope for each head; runs past the training length (Press et al. 2022)."""

    def __init__(self, d: int, inside: Inside | None) -> None:
        super().__init__()
        slopes = torch.tensor(_slopes(_needed(inside, "alibi").heads))
        self.register_buffer("slopes", slopes[:, None, None], persistent=False)  # (H, 1, 1)
        self.slopes: Tensor

    def bias(self, q: Tensor, t: Tensor, s: Tensor) -> Tensor | None:
        return (-self.slopes * _distance(t, s).abs()).to(q.dtype)  # (B, H, T, S)


def _distance(t: Tensor, s: Tensor) -> Tensor:
    """How far each key stands after each query, s − t: (B, 1, T, S)."""
    return s[..., None, None, :] - t[..., None, :, None]


def _clipped(t: Tensor, s: Tensor, most: int) -> Tensor:
    """The row for each query and key in a table of the distances −most … most, (B, 1, T, S)."""
    return _distance(t, s).clamp(-most, most) + most


def _vectors(n: int, d: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(n, d)))


def _edges(buckets: int, distance: int) -> Tensor:
    """The distance at which each bucket but the first begins.

    bucket(n) = n below m = buckets / 2, then m + ⌊log(n/m) / log(distance/m) · (buckets − m)⌋, at most buckets − 1.
    Solved for n, once and in double precision, as a float32 logarithm may fall on either side of an edge.
    """
    m = buckets // 2
    growing = [m * (distance / m) ** (j / (buckets - m)) for j in range(1, buckets - m)]
    return torch.tensor([*range(1, m + 1), *(math.ceil(n - 1e-9) for n in growing)])


def _slopes(heads: int) -> list[float]:
    """2^(−8h/H) for h = 1 … H; where H is no power of two, every other one of the next power fills the rest."""
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * (heads - power), 2)]


# -- turning queries and keys ------------------------------------------------------------------------------------------


@positions.register("rotary")
class Rotary(Nowhere):
    """Queries and keys turned by t / base^(2i/d), so that q·k depends on t − s alone (Su et al. 2021)."""

    def __init__(
        self, d: int, inside: Inside | None, *, base: PositiveFloat = 10000.0, layout: Layout = "interleaved"
    ) -> None:
        super().__init__()
        d_head = _needed(inside, "rotary").d_head
        if d_head % 2:
            raise PartError(f"rotary positions turn pairs and need heads of an even width, not {d_head}")
        self.layout = layout
        self.register_buffer("rates", _rates(d_head, base), persistent=False)
        self.rates: Tensor

    def turn(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[..., None, :, None].float() * self.rates  # (B, 1, T, d/2)
        cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
        if self.layout == "interleaved":
            x1, x2 = x[..., 0::2], x[..., 1::2]  # (B, H, T, d/2)
        else:
            x1, x2 = x.chunk(2, -1)
        return _join(x1 * cos - x2 * sin, x1 * sin + x2 * cos, self.layout)


def _needed(inside: Inside | None, name: str) -> Inside:
    if inside is None:
        raise PartError(
            f"{name} positions act inside the heads of an attention, and there are none here; use sinusoidal or learned"
        )
    return inside


# -- what a fast path may rely on --------------------------------------------------------------------------------------


def rotates(position: Positions) -> bool:
    """Whether a scheme changes queries and keys; one that does not say so may."""
    return getattr(position, "rotates", True)


def only_adds(position: Positions) -> bool:
    """Whether x + P[t] is all that becomes of x before the first block, P the same for every x: then a table serves."""
    return type(position).forward in (Nowhere.forward, Sinusoidal.forward, Learned.forward)  # type: ignore[attr-defined]


def acts_inside(position: Positions) -> bool:
    """Whether a scheme does anything inside attention."""
    return rotates(position) or position.biases or position.sees_weights


# -- angles ------------------------------------------------------------------------------------------------------------


def _rates(d: int, base: float) -> Tensor:
    """base^(−2i/d) for each pair i, (d/2,)."""
    return torch.exp(torch.arange(0, d, 2, dtype=torch.float64) * (-math.log(base) / d)).float()


def _join(first: Tensor, second: Tensor, layout: Layout) -> Tensor:
    """Pairs back into vectors, (…, d/2) twice → (…, d): side by side, or all the firsts and then all the seconds."""
    return torch.stack((first, second), -1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), -1)
