"""From attention scores to attention weights: how much each query attends to each key.

    softmax    a_j = exp(e_j) / Σ_i exp(e_i)
    sparsemax  a = [e − τ]₊              entmax15  a = [e/2 − τ]₊²        τ such that Σ_j a_j = 1
    hard       a = one key, sampled from softmax(e)
    local_m    softmax over |s − p| ≤ D with p = t
    local_p    the same with p = S sigmoid(vᵀ tanh(W q)), times exp(−(s − p)² / 2σ²), σ = D/2

e (…, T, S) are the scores of T queries for S keys. `mask` broadcasts to it, true where a query may attend; t are the
positions of the queries and lengths the number of real keys, both broadcast to (…, T). Masked keys get weight 0; a
query whose keys are all masked gets zeros. Extras: "choice" (…, T), the log-probability of the sampled key; "penalty"
(…, T), a term for the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from dragoman.core.registry import PositiveFloat, PositiveInt, Registry, UnitInterval
from dragoman.nn.layers import linear
from dragoman.nn.losses import at_least_float32

Extras = dict[str, Tensor]


class Normalizer(nn.Module):
    """Scores e (…, T, S) → weights (…, T, S), and extras for the loss: by default softmax over the allowed keys."""

    is_stochastic = False  # samples in training
    depends_on_positions = False  # of the keys

    def __init__(self, d_q: int) -> None:
        super().__init__()

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        return match_dtype(e, normalize_masked(self.normalize, e, mask)), {}

    @staticmethod
    def normalize(e: Tensor) -> Tensor:
        """The weights of scores e without a mask; both in float32 or float64."""
        return e.softmax(-1)


normalizers: Registry[Normalizer] = Registry("normalizer")


@normalizers.register("softmax")
class Softmax(Normalizer):
    """a = softmax(e): every key that is not masked gets some weight."""


@normalizers.register("sparsemax")
class Sparsemax(Normalizer):
    """a = [e − τ]₊, the point of the simplex nearest to e: most keys get exactly 0 (Martins and Astudillo 2016)."""

    @staticmethod
    def normalize(e: Tensor) -> Tensor:
        return _Sparsemax.apply(e)  # type: ignore[no-any-return,no-untyped-call]


@normalizers.register("entmax15")
class Entmax15(Normalizer):
    """a = [e/2 − τ]₊², halfway between softmax and sparsemax: far keys get exactly 0 (Peters et al. 2019)."""

    @staticmethod
    def normalize(e: Tensor) -> Tensor:
        return _Entmax15.apply(e)  # type: ignore[no-any-return,no-untyped-call]


def masked_softmax(e: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(e) over the keys that are not masked, in float32 at least; 0 elsewhere."""
    return normalize_masked(lambda x: x.softmax(-1), e, mask)


def normalize_masked(normalize: Callable[[Tensor], Tensor], e: Tensor, mask: Tensor | None) -> Tensor:
    """`normalize` over the keys that are not masked, in float32 at least; 0 elsewhere."""
    x = at_least_float32(e)
    if not x.numel():
        return x  # no queries or no keys
    if mask is None:
        return normalize(x)
    # The lowest finite number rather than −∞: its weight is the same 0, and a row without keys stays free of NaN.
    return normalize(x.masked_fill(~mask, torch.finfo(x.dtype).min)).masked_fill(~mask, 0.0)


def match_dtype(e: Tensor, a: Tensor) -> Tensor:
    """Weights a in the dtype of the scores e; autocast keeps float32, as it does for torch's own softmax."""
    return a if torch.is_autocast_enabled(e.device.type) else a.to(e.dtype)


class _Sparsemax(torch.autograd.Function):
    """With e sorted in descending order, the first k keys get weight: k is the last with 1 + k e_k > Σ_{j≤k} e_j."""

    @staticmethod
    def forward(ctx: Any, e: Tensor) -> Tensor:
        x, descending, k = _sort_scores(e)
        sums = descending.cumsum(-1)
        size = _support_size(1 + k * descending > sums)
        tau = (sums.gather(-1, size - 1) - 1) / size
        a = (x - tau).clamp(min=0)
        ctx.save_for_backward(a)
        return a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """da/de = diag(r) − r rᵀ / Σr with r = 1 for the keys with weight, else 0."""
        return _sparse_backward(grads[0], (ctx.saved_tensors[0] > 0).to(grads[0].dtype))


class _Entmax15(torch.autograd.Function):
    """Of the first k keys, τ solves Σ_{j≤k} (e_j/2 − τ)² = 1; k is the last whose e_k/2 is not below its τ."""

    @staticmethod
    def forward(ctx: Any, e: Tensor) -> Tensor:
        x, descending, k = _sort_scores(e / 2)
        mean, square = descending.cumsum(-1) / k, descending.square().cumsum(-1) / k
        tau = mean - (1 / k - (square - mean.square())).clamp(min=0).sqrt()
        size = _support_size((tau <= descending) & (descending > -1))  # rounding alone may let in keys at −1
        a = (x - tau.gather(-1, size - 1)).clamp(min=0).square()
        ctx.save_for_backward(a)
        return a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """da/de = diag(r) − r rᵀ / Σr with r = √a."""
        return _sparse_backward(grads[0], ctx.saved_tensors[0].sqrt())


def _sort_scores(e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """e − max e; the same sorted in descending order and clipped at −1, where keys get no weight; the numbers 1 … S."""
    descending = e.sort(-1, descending=True).values
    top = descending[..., :1]
    k = torch.arange(1, e.shape[-1] + 1, dtype=e.dtype, device=e.device)
    return e - top, (descending - top).clamp(min=-1), k


def _support_size(has_weight: Tensor) -> Tensor:
    """The number of keys with weight, (…, 1), at least 1, so that NaN scores give NaN weights."""
    return has_weight.sum(-1, keepdim=True).clamp(min=1)


def _sparse_backward(grad: Tensor, r: Tensor) -> Tensor:
    """(diag(r) − r rᵀ / Σr) grad over the last dimension: the gradient of sparsemax and entmax15"""
    return r * (grad - (grad * r).sum(-1, keepdim=True) / r.sum(-1, keepdim=True))


@normalizers.register("hard")
class HardAttention(Normalizer):
    """a = one key: sampled from softmax(e) in training, the argmax in evaluation (Xu et al. 2015).

    A sample has no gradient. Instead the extra "choice", `reward` × log p(sampled key), is multiplied by an advantage
    in the model's loss (REINFORCE, see losses.py). A sample is credited with `discount`ⁿ of the reward n steps later:
    1 is unbiased, less is less noisy. The "penalty" −`entropy` × H(softmax(e)) keeps the samples diverse. With
    probability `soft` a step in training attends with softmax(e) itself, as the paper does for half of the images, so
    that all keys get a gradient.
    """

    is_stochastic = True

    def __init__(
        self,
        d_q: int,
        *,
        reward: PositiveFloat = 1.0,
        discount: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5,
        entropy: Annotated[float, Field(ge=0.0)] = 0.0,
        soft: UnitInterval = 0.0,
    ) -> None:
        super().__init__(d_q)
        self.reward, self.discount, self.entropy, self.soft = reward, discount, entropy, soft

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        p = masked_softmax(e, mask)
        if not self.training:
            return match_dtype(e, one_hot(p.argmax(-1), p, mask)), {}
        # The argmax of p_j / Exp(1) is key j with probability p_j; a row without keys is no special case.
        key = (p / torch.empty_like(p).exponential_()).argmax(-1)
        log_p = normalize_masked(lambda x: x.log_softmax(-1), e, mask)
        a, choice = one_hot(key, p, mask), self.reward * log_p.gather(-1, key[..., None])[..., 0]
        if self.soft:
            is_soft = torch.rand_like(choice) < self.soft
            a, choice = torch.where(is_soft[..., None], p, a), choice.masked_fill(is_soft, 0.0)  # nothing was sampled
        extras = {"choice": choice}
        if self.entropy:
            extras["penalty"] = self.entropy * (p * log_p).sum(-1)
        return match_dtype(e, a), extras


def one_hot(key: Tensor, p: Tensor, mask: Tensor | None) -> Tensor:
    """Weight 1 for the key and 0 for the others, in the shape of p: (…, T) → (…, T, S); 0 for a masked key."""
    a = nn.functional.one_hot(key, p.shape[-1]).to(p.dtype)
    return a if mask is None else a.masked_fill(~mask, 0.0)


@normalizers.register("local_m")
class LocalMonotonic(Normalizer):
    """softmax over the keys at most `window` from the query's own position (Luong et al. 2015, local-m)."""

    depends_on_positions = True

    def __init__(self, d_q: int, *, window: PositiveInt = 10) -> None:
        super().__init__(d_q)
        self.window = window

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        p = torch.arange(e.shape[-2], device=e.device) if t is None else t
        return match_dtype(e, masked_softmax(e, window_mask(p, self.window, real_keys(e, mask, lengths)))), {}


@normalizers.register("local_p")
class LocalPredictive(Normalizer):
    """softmax over the keys at most `window` from a position p predicted from q (Luong et al. 2015, local-p).

    p = S sigmoid(vᵀ tanh(W q)) with S the number of real keys. The weights are multiplied by a Gaussian around p with
    σ = window / 2, which gives p a gradient; they then sum to less than 1, as in the paper.
    """

    depends_on_positions = True

    def __init__(self, d_q: int, *, window: PositiveInt = 10) -> None:
        super().__init__(d_q)
        self.window = window
        self.W, self.v = linear(d_q, d_q, bias=False), linear(d_q, 1, bias=False)

    def forward(
        self, e: Tensor, mask: Tensor | None, q: Tensor, t: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Extras]:
        real = real_keys(e, mask, lengths)
        fraction = torch.sigmoid(at_least_float32(self.v(torch.tanh(self.W(q)))[..., 0]))  # (..., T)
        p = fraction * (last_key(real) + 1 if lengths is None else lengths)
        s = torch.arange(e.shape[-1], device=e.device)
        gaussian = torch.exp(-((s - p[..., None]) ** 2) / (2 * (self.window / 2) ** 2))  # (..., T, S)
        return match_dtype(e, masked_softmax(e, window_mask(p, self.window, real)) * gaussian), {}


def real_keys(e: Tensor, mask: Tensor | None, lengths: Tensor | None) -> Tensor:
    """The keys each query may attend to, as a mask that broadcasts to e: `mask`, else the first `lengths`, else all."""
    if mask is not None:
        return mask
    s = torch.arange(e.shape[-1], device=e.device)
    return s < (e.shape[-1] if lengths is None else lengths[..., None])


def last_key(mask: Tensor) -> Tensor:
    """The position of the last key each query may attend to; −1 where there is none."""
    s = torch.arange(mask.shape[-1], device=mask.device)
    return nn.functional.pad(torch.where(mask, s, -1), (1, 0), value=-1).amax(-1)


def window_mask(p: Tensor, window: int, real: Tensor) -> Tensor:
    """The real keys at most `window` from p; where there are none, those around the last real key."""
    s = torch.arange(real.shape[-1], device=real.device)
    near = real & ((s - p[..., None]).abs() <= window)
    around_last = real & ((s - last_key(real)[..., None]).abs() <= window)
    return torch.where(near.any(-1, keepdim=True), near, around_last)
