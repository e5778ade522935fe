"""CTC in a search: what is heard at each position of the source joins in the choice of the next token.

    s(c | g) = (1 − λ) log p(c | g) + λ (log ψ(g c) − log ψ(g))            (Watanabe et al. 2017)

ψ(g) is the probability of all readings that begin with g, and that of ending after g is p(g), the reading being g and
no more. With n_t and b_t, the probability that the first t positions read as g and that the last of them is a token or
a blank, and p_t(c) that of c at t,

    ψ(g c) = Σ_t φ_{t−1} p_t(c)       φ = n + b; b alone where g ends with c: a repeat needs a blank between
    n'_t = (n'_{t−1} + φ_{t−1}) p_t(c)        b'_t = (b'_{t−1} + n'_{t−1}) p_t(blank)        of g c

The sum is one matrix product for all c. The recurrences have no loop either: with P_t = Π_{u≤t} p_u(c),
n'_t = P_t Σ_{τ≤t} φ_{τ−1} / P_{τ−1}. All in float64 and logarithms, so that P_t need not be a number that exists.

Scores are no longer log-probabilities that sum to one. <pad> is the blank.

B sentences, K hypotheses, t tokens so far, S source positions, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.core.types import EOS, PAD


@dataclass
class Heard:
    """What is known of some beginnings g: log n_t and log b_t, t = 0 … S, and log ψ(g)."""

    rows: Tensor  # (B,)
    history: Tensor  # (B, K, t)
    n: Tensor  # (B, K, S + 1)
    b: Tensor  # (B, K, S + 1)
    psi: Tensor  # (B, K)


class CTCPrefix:
    """A rule that mixes prefix probabilities of CTC, from log p (B, S, V), into what a model says next."""

    def __init__(self, log_p: Tensor, lengths: Tensor, weight: float) -> None:
        self.log_p, self.lengths, self.weight = log_p.double(), lengths, weight
        self.p = self.log_p.exp()
        self.known: Heard | None = None  # of the last call, whose beginnings those of the next one extend

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        heard = self.heard(history, rows)
        psi = self.extensions(heard)
        gain = psi - heard.psi[..., None]
        mixed = (1 - self.weight) * log_p.double() + self.weight * gain
        return mixed.masked_fill(psi == -math.inf, -math.inf).to(log_p.dtype)

    def heard(self, history: Tensor, rows: Tensor) -> Heard:
        """From what was known of all but the last tokens; from nothing, where that is not known."""
        t, found = history.shape[2], None
        if self.known is not None and t == self.known.history.shape[2] + 1:
            found = parents(self.known, history[..., :-1], rows)
        if found is not None:
            heard = self.extended(found, history[..., -1])
        else:
            heard = self.beginning(history[..., :0], rows)
            for i in range(t):
                heard = self.extended(heard, history[..., i])
        self.known = heard
        return heard

    def beginning(self, history: Tensor, rows: Tensor) -> Heard:
        """Nothing was said: all positions so far are blanks."""
        b = before(self.log_p[rows, :, PAD].cumsum(-1), 0.0)[:, None].expand(-1, history.shape[1], -1)
        return Heard(rows, history, torch.full_like(b, -math.inf), b, torch.zeros_like(b[..., 0]))

    def extended(self, heard: Heard, tokens: Tensor) -> Heard:
        """One token (B, K) more."""
        log_p = self.log_p[heard.rows]  # (B, S, V)
        p_c = log_p.transpose(1, 2).gather(1, tokens[..., None].expand(-1, -1, log_p.shape[1]))  # (B, K, S)
        again = (
            heard.history[..., -1:] == tokens[..., None]
            if heard.history.shape[2]
            else torch.zeros_like(p_c[..., :1]).bool()
        )
        phi = torch.where(again, heard.b, torch.logaddexp(heard.n, heard.b))[..., :-1]  # (B, K, S)
        n = recurrence(phi, p_c)
        b = recurrence(n[..., :-1], log_p[..., None, :, PAD].expand_as(p_c))
        psi = (self.inside(phi, heard.rows) + p_c).logsumexp(-1)
        return Heard(heard.rows, torch.cat([heard.history, tokens[..., None]], -1), n, b, psi)

    def extensions(self, heard: Heard) -> Tensor:
        """log ψ(g c) for every c, (B, K, V); for </s>, log p(g)."""
        rows, p = heard.rows, self.p[heard.rows]
        whole = torch.logaddexp(heard.n, heard.b)
        psi = log_product(self.inside(whole[..., :-1], rows), p)
        if heard.history.shape[2]:
            last = heard.history[..., -1:]
            p_c = self.log_p[rows].transpose(1, 2).gather(1, last.expand(-1, -1, p.shape[1]))  # (B, K, S)
            psi = psi.scatter(-1, last, (self.inside(heard.b[..., :-1], rows) + p_c).logsumexp(-1, keepdim=True))
        ends = self.lengths[rows][:, None, None].expand(-1, psi.shape[1], 1)
        psi[..., EOS] = whole.gather(-1, ends)[..., 0]
        psi[..., PAD] = -math.inf
        return psi

    def inside(self, phi: Tensor, rows: Tensor) -> Tensor:
        """φ (B, K, S) before each position, −∞ after a row's last."""
        beyond = torch.arange(phi.shape[2], device=phi.device) >= self.lengths[rows][:, None]  # (B, S)
        return phi.masked_fill(beyond[:, None], -math.inf)


def parents(known: Heard, history: Tensor, rows: Tensor) -> Heard | None:
    """What is known of these beginnings; None where something is known of not all of them."""
    sentence = rows[:, None] == known.rows  # (B, B')
    place = sentence.int().argmax(-1)
    same = (history[:, :, None] == known.history[place][:, None]).all(-1)  # (B, K, K')
    if not bool((same.any(-1) & sentence.any(-1)[:, None]).all()):
        return None
    at = (place[:, None], same.int().argmax(-1))
    return Heard(rows, history, known.n[at], known.b[at], known.psi[at])


def recurrence(given: Tensor, log_p: Tensor) -> Tensor:
    """x_t = (x_{t−1} + given_{t−1}) p_t from x_0 = 0, in logarithms: (…, S) each → (…, S + 1)."""
    P = log_p.cumsum(-1)
    return before(P + torch.logcumsumexp(given - before(P, 0.0)[..., :-1], -1), -math.inf)


def before(x: Tensor, first: float) -> Tensor:
    """(…, S) → (…, S + 1) with another number at the front."""
    return torch.cat([torch.full_like(x[..., :1], first), x], -1)


def log_product(log_a: Tensor, b: Tensor) -> Tensor:
    """log(e^{log a} b) of (B, K, S) and (B, S, V), scaled so that the largest of each row of a is 1."""
    most = log_a.amax(-1, keepdim=True).clamp(min=-1e300)
    return ((log_a - most).exp() @ b).log() + most
