"""CTC prefix scores in a search: the encoder's CTC probabilities join in the choice of the next token.

    s(c | g) = (1 − λ) log p(c | g) + λ (log ψ(g c) − log ψ(g))            (Watanabe et al. 2017)

ψ(g) is the probability of all CTC label sequences that begin with g; for </s> it is p(g), that of g and no more. With
n_t and b_t, the probability that the first t positions read g and that the last of them is a token or a blank, and
p_t(c) that of c at t,

    ψ(g c) = Σ_t φ_{t−1} p_t(c)       φ = n + b; b alone where g ends with c: a repeat needs a blank between
    n'_t = (n'_{t−1} + φ_{t−1}) p_t(c)        b'_t = (b'_{t−1} + n'_{t−1}) p_t(blank)        of g c

The sum is one matrix product for all c. The recurrences have no loop either: with P_t = Π_{u≤t} p_u(c),
n'_t = P_t Σ_{τ≤t} φ_{τ−1} / P_{τ−1}. All in float64 and logarithms, so that P_t does not underflow.

<pad> is the blank.

B sentences, K hypotheses, t tokens so far, S source positions, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.core.types import EOS, PAD


@dataclass
class CTCPrefixState:
    """CTC probabilities of some prefixes g: log n_t and log b_t, t = 0 … S, and log ψ(g)."""

    rows: Tensor  # (B,)
    history: Tensor  # (B, K, t)
    n: Tensor  # (B, K, S + 1)
    b: Tensor  # (B, K, S + 1)
    psi: Tensor  # (B, K)


class CTCPrefixScorer:
    """Mixes CTC prefix probabilities, from log p (B, S, V), into the decoder's log p, with weight λ."""

    def __init__(self, log_p: Tensor, lengths: Tensor, weight: float) -> None:
        self.log_p, self.lengths, self.weight = log_p.double(), lengths, weight
        self.p = self.log_p.exp()
        self.cached: CTCPrefixState | None = None  # of the last call, whose prefixes those of the next one extend

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """Return (1 − λ) log p + λ log(ψ(g c) / ψ(g)) for every token c; −∞ where ψ(g c) = 0."""
        state = self.prefix_state(history, rows)
        psi = self.extension_scores(state)
        gain = psi - state.psi[..., None]
        mixed = (1 - self.weight) * log_p.double() + self.weight * gain
        return mixed.masked_fill(psi == -math.inf, -math.inf).to(log_p.dtype)

    def prefix_state(self, history: Tensor, rows: Tensor) -> CTCPrefixState:
        """Return the state of the prefixes `history`, from the cached state of their parents if possible; cache it."""
        t, before = history.shape[2], None
        if self.cached is not None and t == self.cached.history.shape[2] + 1:
            before = select_parents(self.cached, history[..., :-1], rows)
        if before is not None:
            state = self.extend(before, history[..., -1])
        else:
            state = self.initial_state(history[..., :0], rows)
            for i in range(t):
                state = self.extend(state, history[..., i])
        self.cached = state
        return state

    def initial_state(self, history: Tensor, rows: Tensor) -> CTCPrefixState:
        """Return the state of the empty prefix, for which all positions so far are blanks."""
        b = prepend(self.log_p[rows, :, PAD].cumsum(-1), 0.0)[:, None].expand(-1, history.shape[1], -1)
        return CTCPrefixState(rows, history, torch.full_like(b, -math.inf), b, torch.zeros_like(b[..., 0]))

    def extend(self, state: CTCPrefixState, tokens: Tensor) -> CTCPrefixState:
        """Return the state after one more token (B, K) of each prefix."""
        log_p = self.log_p[state.rows]  # (B, S, V)
        p_c = log_p.transpose(1, 2).gather(1, tokens[..., None].expand(-1, -1, log_p.shape[1]))  # (B, K, S)
        repeats = (state.history[..., -1:] == tokens[..., None]).any(-1, keepdim=True)  # (B, K, 1); not at the first
        phi = torch.where(repeats, state.b, torch.logaddexp(state.n, state.b))[..., :-1]  # (B, K, S)
        n = recurrence(phi, p_c)
        b = recurrence(n[..., :-1], log_p[..., None, :, PAD].expand_as(p_c))
        psi = (self.mask_padding(phi, state.rows) + p_c).logsumexp(-1)
        return CTCPrefixState(state.rows, torch.cat([state.history, tokens[..., None]], -1), n, b, psi)

    def extension_scores(self, state: CTCPrefixState) -> Tensor:
        """Return log ψ(g c) for every token c, (B, K, V); for </s> it is log p(g), for the blank −∞."""
        rows, p = state.rows, self.p[state.rows]
        whole = torch.logaddexp(state.n, state.b)
        psi = log_product(self.mask_padding(whole[..., :-1], rows), p)
        if state.history.shape[2]:
            last = state.history[..., -1:]
            p_c = self.log_p[rows].transpose(1, 2).gather(1, last.expand(-1, -1, p.shape[1]))  # (B, K, S)
            psi = psi.scatter(-1, last, (self.mask_padding(state.b[..., :-1], rows) + p_c).logsumexp(-1, keepdim=True))
        ends = self.lengths[rows][:, None, None].expand(-1, psi.shape[1], 1)
        psi[..., EOS] = whole.gather(-1, ends)[..., 0]
        psi[..., PAD] = -math.inf
        return psi

    def mask_padding(self, phi: Tensor, rows: Tensor) -> Tensor:
        """Return φ (B, K, S) with −∞ at positions beyond each row's length."""
        beyond = torch.arange(phi.shape[2], device=phi.device) >= self.lengths[rows][:, None]  # (B, S)
        return phi.masked_fill(beyond[:, None], -math.inf)


def select_parents(cached: CTCPrefixState, history: Tensor, rows: Tensor) -> CTCPrefixState | None:
    """Return the cached state of these prefixes; None if it lacks one of them."""
    sentence = rows[:, None] == cached.rows  # (B, B')
    index = sentence.int().argmax(-1)
    same = (history[:, :, None] == cached.history[index][:, None]).all(-1)  # (B, K, K')
    if not bool((same.any(-1) & sentence.any(-1)[:, None]).all()):
        return None
    at = (index[:, None], same.int().argmax(-1))
    return CTCPrefixState(rows, history, cached.n[at], cached.b[at], cached.psi[at])


def recurrence(phi: Tensor, log_p: Tensor) -> Tensor:
    """Return x_t = (x_{t−1} + φ_{t−1}) p_t from x_0 = 0, in logarithms: (…, S) each → (…, S + 1)."""
    P = log_p.cumsum(-1)
    return prepend(P + torch.logcumsumexp(phi - prepend(P, 0.0)[..., :-1], -1), -math.inf)


def prepend(x: Tensor, first: float) -> Tensor:
    """Put a number at the front of the last dimension: (…, S) → (…, S + 1)."""
    return torch.cat([torch.full_like(x[..., :1], first), x], -1)


def log_product(log_a: Tensor, b: Tensor) -> Tensor:
    """Return log(e^{log a} b) of (B, K, S) and (B, S, V) without underflow."""
    most = log_a.amax(-1, keepdim=True).clamp(min=-1e300)
    return ((log_a - most).exp() @ b).log() + most
