"""From scores to weights: how much of its attention a query gives to each key.

    softmax    a_j = exp(e_j) / Σ_i exp(e_i)
    sparsemax  a = [e − τ]₊              entmax15  a = [e/2 − τ]₊²        τ such that Σ_j a_j = 1
    hard       a = one key, drawn from softmax(e)
    local_m    softmax over |s − p| ≤ D with p = t
    local_p    the same with p = S sigmoid(vᵀ tanh(W q)), times exp(−(s − p)² / 2σ²), σ = D/2

e (…, T, S) holds scores of T queries for S keys; `mask` broadcasts to it, true where a query may look; t the places of
the queries and lengths the number of real keys, both broadcast to (…, T). What may not be seen weighs 0; a query that
may see nothing gets zeros. Extras: "choice" (…, T), the log-probability of what was drawn; "penalty" (…, T), to be
added to the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from dragoman.core.registry import PositiveFloat, PositiveInt, Registry, UnitInterval
from dragoman.nn.layers import linear

Extras = dict[str, Tensor]


class Normalizer(Protocol):
    """Scores → weights; `samples`: it draws in training; `ordered`: the places of the keys matter."""

    samples: bool
    ordered: bool

    def __call__(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]: ...


normalizers: Registry[Normalizer] = Registry("normalizer")


# -- all keys --------------------------------------------------------------------------------------------------------


@normalizers.register("softmax")
class Softmax(nn.Module):
    """a = softmax(e): every key a query may see gets something."""

    samples = ordered = False

    def __init__(self, d_q: int) -> None:
        super().__init__()

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        return like(e, softmax(e, mask)), {}


@normalizers.register("sparsemax")
class Sparsemax(nn.Module):
    """a = [e − τ]₊, the point of the simplex nearest to e: most keys get exactly 0 (Martins and Astudillo 2016)."""

    samples = ordered = False

    def __init__(self, d_q: int) -> None:
        super().__init__()

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        return like(e, masked(_Sparsemax.apply, e, mask)), {}


@normalizers.register("entmax15")
class Entmax15(nn.Module):
    """a = [e/2 − τ]₊², halfway between softmax and sparsemax: far keys get exactly 0 (Peters et al. 2019)."""

    samples = ordered = False

    def __init__(self, d_q: int) -> None:
        super().__init__()

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        return like(e, masked(_Entmax15.apply, e, mask)), {}


def softmax(e: Tensor, mask: Tensor | None) -> Tensor:
    return masked(lambda x: x.softmax(-1), e, mask)


def masked(rule: Callable[[Tensor], Tensor], e: Tensor, mask: Tensor | None) -> Tensor:
    """The rule over the keys a query may see, in float32 at least; 0 elsewhere."""
    x = wide(e)
    if not x.numel():
        return x  # no queries or no keys
    if mask is None:
        return rule(x)
    # The lowest finite number rather than −∞: its weight is the same 0, and a row without keys stays free of NaN.
    return rule(x.masked_fill(~mask, torch.finfo(x.dtype).min)).masked_fill(~mask, 0.0)


def wide(x: Tensor) -> Tensor:
    return x.float() if x.element_size() < 4 else x


def like(e: Tensor, a: Tensor) -> Tensor:
    """Weights in the type of the scores; autocast keeps float32, as it does for torch's own softmax."""
    return a if torch.is_autocast_enabled(e.device.type) else a.to(e.dtype)


class _Sparsemax(torch.autograd.Function):
    """With e sorted downwards, the first k keys are seen: k is the last with 1 + k e_k > Σ_{j≤k} e_j."""

    @staticmethod
    def forward(ctx: Any, e: Tensor) -> Tensor:
        x, down, k = _sorted(e)
        sums = down.cumsum(-1)
        size = _size(1 + k * down > sums)
        tau = (sums.gather(-1, size - 1) - 1) / size
        a = (x - tau).clamp(min=0)
        ctx.save_for_backward(a)
        return a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """da/de = diag(r) − r rᵀ / Σr with r = 1 for the keys seen, else 0."""
        return _backward(grads[0], (ctx.saved_tensors[0] > 0).to(grads[0].dtype))


class _Entmax15(torch.autograd.Function):
    """Of the first k keys, τ solves Σ_{j≤k} (e_j/2 − τ)² = 1; k is the last whose e_k/2 is not below its τ."""

    @staticmethod
    def forward(ctx: Any, e: Tensor) -> Tensor:
        x, down, k = _sorted(e / 2)
        mean, square = down.cumsum(-1) / k, down.square().cumsum(-1) / k
        tau = mean - (1 / k - (square - mean.square())).clamp(min=0).sqrt()
        size = _size((tau <= down) & (down > -1))  # rounding alone may let in keys at −1
        a = (x - tau.gather(-1, size - 1)).clamp(min=0).square()
        ctx.save_for_backward(a)
        return a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """da/de = diag(r) − r rᵀ / Σr with r = √a."""
        return _backward(grads[0], ctx.saved_tensors[0].sqrt())


def _sorted(e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """e with its maximum moved to 0; the same downwards, nothing below −1, where no key is seen; the numbers 1 … S."""
    down = e.sort(-1, descending=True).values
    top = down[..., :1]
    k = torch.arange(1, e.shape[-1] + 1, dtype=e.dtype, device=e.device)
    return e - top, (down - top).clamp(min=-1), k


def _size(seen: Tensor) -> Tensor:
    """How many keys are seen: the best one always, so that scores that are no numbers give weights that are none."""
    return seen.sum(-1, keepdim=True).clamp(min=1)


def _backward(grad: Tensor, r: Tensor) -> Tensor:
    return r * (grad - (grad * r).sum(-1, keepdim=True) / r.sum(-1, keepdim=True))


# -- one key ---------------------------------------------------------------------------------------------------------


@normalizers.register("hard")
class Hard(nn.Module):
    """a = one key: drawn from softmax(e) in training, the best one in evaluation (Xu et al. 2015).

    A draw has no gradient. Instead it leaves "choice", `reward` × log p(the key drawn), which the model's loss
    multiplies by the advantage: its own value less a moving baseline, held constant. The gradient of that product is,
    on average, that of the expected loss (the score-function estimator), and the baseline makes it less noisy. Of what
    comes n steps after it, a draw is credited with `discount`ⁿ: 1 is exact, less is less noisy. The "penalty"
    −`entropy` × H(softmax(e)) keeps the draws diverse. A `soft` share of the looks in training is at softmax(e) itself,
    as the paper's is at half of the pictures: through it all that is looked at learns, not only the key drawn.
    """

    samples, ordered = True, False

    def __init__(
        self,
        d_q: int,
        *,
        reward: PositiveFloat = 1.0,
        discount: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5,
        entropy: Annotated[float, Field(ge=0.0)] = 0.0,
        soft: UnitInterval = 0.0,
    ) -> None:
        super().__init__()
        self.reward, self.discount, self.entropy, self.soft = reward, discount, entropy, soft

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        p = softmax(e, mask)
        if not self.training:
            return like(e, one_hot(p.argmax(-1), p, mask)), {}
        # A race of exponential clocks: key j wins with probability p_j, and a row without keys is no special case.
        drawn = (p / torch.empty_like(p).exponential_()).argmax(-1)
        log_p = masked(lambda x: x.log_softmax(-1), e, mask)
        a, choice = one_hot(drawn, p, mask), self.reward * log_p.gather(-1, drawn[..., None])[..., 0]
        if self.soft:
            softly = torch.rand_like(choice) < self.soft
            a, choice = torch.where(softly[..., None], p, a), choice.masked_fill(softly, 0.0)  # nothing was drawn
        extras = {"choice": choice}
        if self.entropy:
            extras["penalty"] = self.entropy * (p * log_p).sum(-1)
        return like(e, a), extras


def one_hot(key: Tensor, p: Tensor, mask: Tensor | None) -> Tensor:
    """1 for the key, 0 for the others: (…, T) → (…, T, S); still 0 for one that may not be seen."""
    a = nn.functional.one_hot(key, p.shape[-1]).to(p.dtype)
    return a if mask is None else a.masked_fill(~mask, 0.0)


# -- near keys -------------------------------------------------------------------------------------------------------


@normalizers.register("local_m")
class LocalMonotonic(nn.Module):
    """softmax over the keys at most `window` from the query's own place (Luong et al. 2015, local-m)."""

    samples, ordered = False, True

    def __init__(self, d_q: int, *, window: PositiveInt = 10) -> None:
        super().__init__()
        self.window = window

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        p = torch.arange(e.shape[-2], device=e.device) if t is None else t
        return like(e, softmax(e, near(p, self.window, visible(e, mask, lengths)))), {}


@normalizers.register("local_p")
class LocalPredictive(nn.Module):
    """softmax over the keys at most `window` from a place p predicted from q, less the farther (Luong's local-p).

    p = S sigmoid(vᵀ tanh(W q)) with S the number of real keys. The weights are multiplied by a Gaussian around p with
    σ = window / 2, through which p learns; they then sum to less than 1, as in the paper.
    """

    samples, ordered = False, True

    def __init__(self, d_q: int, *, window: PositiveInt = 10) -> None:
        super().__init__()
        self.window = window
        self.W, self.v = linear(d_q, d_q, bias=False), linear(d_q, 1, bias=False)

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        real = visible(e, mask, lengths)
        share = torch.sigmoid(wide(self.v(torch.tanh(self.W(q)))[..., 0]))  # (..., T)
        p = share * (last(real) + 1 if lengths is None else lengths)
        s = torch.arange(e.shape[-1], device=e.device)
        bell = torch.exp(-((s - p[..., None]) ** 2) / (2 * (self.window / 2) ** 2))  # (..., T, S)
        return like(e, softmax(e, near(p, self.window, real)) * bell), {}


def visible(e: Tensor, mask: Tensor | None, lengths: Tensor | None) -> Tensor:
    """What a query may see, as a mask that broadcasts to e: the mask, else the real keys, else everything."""
    if mask is not None:
        return mask
    s = torch.arange(e.shape[-1], device=e.device)
    return s < (e.shape[-1] if lengths is None else lengths[..., None])


def last(mask: Tensor) -> Tensor:
    """The place of the last key each query may see; −1 where there is none."""
    s = torch.arange(mask.shape[-1], device=mask.device)
    return nn.functional.pad(torch.where(mask, s, -1), (1, 0), value=-1).amax(-1)


def near(p: Tensor, window: int, real: Tensor) -> Tensor:
    """Those of the real keys at most `window` from p; around the last one where p is too far from all of them."""
    s = torch.arange(real.shape[-1], device=real.device)
    inside = real & ((s - p[..., None]).abs() <= window)
    around_last = real & ((s - last(real)[..., None]).abs() <= window)
    return torch.where(inside.any(-1, keepdim=True), inside, around_last)
