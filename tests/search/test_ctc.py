"""CTC prefix scores against all alignments, one by one."""

from __future__ import annotations

import math
from itertools import groupby, product

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.core.registry import Part
from dragoman.core.types import EOS, PAD
from dragoman.search import SearchConstraints, searches
from dragoman.search.ctc import CTCPrefixScorer

V, FIRST = 6, 3  # <pad>, which is the blank, <s>, </s>, <unk> and two tokens; <unk> is a token like the others here
HEARD = [PAD, *range(FIRST, V)]  # what an alignment is made of
Reading = tuple[int, ...]


def heard(lengths: list[int]) -> Tensor:
    """log p (B, S, V), with nothing on <s> and </s>."""
    logits = 2 * torch.randn(len(lengths), max(lengths), V, dtype=torch.float64)
    logits[..., 1:3] = -1e3
    return logits.log_softmax(-1)


def read(alignment: Reading) -> Reading:
    return tuple(token for token, _ in groupby(alignment) if token != PAD)


def readings(log_p: Tensor) -> dict[Reading, float]:
    """The probability of every reading of (S, V), from all alignments."""
    found: dict[Reading, float] = {}
    for alignment in product(HEARD, repeat=len(log_p)):
        p = math.exp(sum(float(log_p[j, token]) for j, token in enumerate(alignment)))
        found[read(alignment)] = found.get(read(alignment), 0.0) + p
    return found


def logarithm(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf


def begins_with(truth: dict[Reading, float], prefix: Reading) -> float:
    return sum(p for reading, p in truth.items() if reading[: len(prefix)] == prefix)


@pytest.mark.parametrize("at_once", [True, False])
def test_the_gains_of_a_prefix_are_those_of_all_alignments(at_once: bool) -> None:
    """With weight λ and a model that says nothing, a rule gives λ (log ψ(g c) − log ψ(g)), and for </s> log p(g)."""
    lengths = [4, 2, 1]
    log_p = heard(lengths)
    truths = [readings(log_p[i, :n]) for i, n in enumerate(lengths)]
    prefixes = [[3, 4, 4], [4, 3, 3], [5, 5, 5], [3, 5, 3]]
    rule, weight = CTCPrefixScorer(log_p, torch.tensor(lengths), 0.5), 0.5
    for t in range(4):
        history = torch.tensor([[prefix[:t] for prefix in prefixes]] * 3).view(3, 4, t)
        if at_once:  # nothing known from the step before
            rule = CTCPrefixScorer(log_p, torch.tensor(lengths), 0.5)
        found = rule(torch.zeros(3, 4, V, dtype=torch.float64), history, torch.arange(3)) / weight
        for i, truth in enumerate(truths):
            for k, prefix in enumerate(prefixes):
                g = tuple(prefix[:t])
                psi = begins_with(truth, g)
                if psi == 0:
                    assert (found[i, k] == -math.inf).all()
                    continue
                expected = [begins_with(truth, (*g, c)) / psi for c in range(V)]
                expected[EOS] = truth.get(g, 0.0) / psi
                for c in (EOS, *range(FIRST, V)):
                    assert float(found[i, k, c]) == pytest.approx(logarithm(expected[c]), abs=1e-9)
                assert float(found[i, k, PAD]) == -math.inf
                # Whatever is read is g, or g and one more token and perhaps others.
                assert sum(math.exp(float(x)) for x in found[i, k]) == pytest.approx(1.0)


def test_hypotheses_may_change_their_places_and_sentences_may_leave() -> None:
    lengths = torch.tensor([5, 4, 3])
    log_p, said = heard(lengths.tolist()), torch.zeros(2, 3, V, dtype=torch.float64)
    rule = CTCPrefixScorer(log_p, lengths, 0.3)
    first = torch.tensor([[[3], [4], [5]]] * 3)
    rule(torch.zeros(3, 3, V, dtype=torch.float64), first, torch.arange(3))
    rows = torch.tensor([0, 2])
    second = torch.tensor([[[5, 3], [3, 3], [5, 4]], [[4, 4], [4, 5], [4, 3]]])
    found = rule(said, second, rows)
    torch.testing.assert_close(found, CTCPrefixScorer(log_p, lengths, 0.3)(said, second, rows))
    unknown = torch.tensor([[[4, 4, 4], [3, 3, 5], [5, 4, 3]], [[3, 4, 4], [4, 5, 3], [4, 3, 3]]])
    torch.testing.assert_close(rule(said, unknown, rows), CTCPrefixScorer(log_p, lengths, 0.3)(said, unknown, rows))


def test_long_sources_and_improbable_tokens_stay_exact() -> None:
    """A plain loop over positions in log-space, with tokens of probability e^−80 at each of 300 positions."""
    S = 300
    logits = torch.randn(1, S, V, dtype=torch.float64)
    logits[..., 4] = -80.0
    log_p, g = logits.log_softmax(-1), [3, 4, 4, 5]
    lp = log_p[0].numpy()
    n, b = np.full(S + 1, -np.inf), np.concatenate([[0.0], np.cumsum(lp[:, PAD])])
    for i, c in enumerate(g):
        phi = b if i > 0 and g[i - 1] == c else np.logaddexp(n, b)
        psi = np.logaddexp.reduce(phi[:-1] + lp[:, c])
        n, b = np.full(S + 1, -np.inf), np.full(S + 1, -np.inf)
        for t in range(S):
            n[t + 1] = np.logaddexp(n[t], phi[t]) + lp[t, c]
            b[t + 1] = np.logaddexp(b[t], n[t]) + lp[t, PAD]
    rule = CTCPrefixScorer(log_p, torch.tensor([S]), 0.5)
    found = rule.prefix_state(torch.tensor([[g]]), torch.tensor([0]))
    assert float(found.psi) == pytest.approx(psi, rel=1e-9)
    assert float(found.n[0, 0, -1]) == pytest.approx(n[-1], rel=1e-9)
    assert float(found.b[0, 0, -1]) == pytest.approx(b[-1], rel=1e-9)


@pytest.mark.parametrize("name", ["beam", "exhaustive"])
def test_a_search_that_hears_finds_the_best_mixture(name: str) -> None:
    """Against every reading there is: (1 − λ) log p of a model that loves one token, and λ log p of CTC."""
    log_p, weight = heard([3]), 0.7
    step_log_p = torch.randn(V, dtype=torch.float64)
    step_log_p[[0, 1]] = -math.inf
    step_log_p = step_log_p.log_softmax(-1)

    def step(tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return step_log_p.expand(*tokens.shape, V), state

    limits = SearchConstraints(torch.tensor([3]), processors=[CTCPrefixScorer(log_p, torch.tensor([3]), weight)])
    options = {"beam": 40} if name == "beam" else {}
    search = searches.build(Part(name, {**options, "length_rule": Part("none")}))
    best = search(step, lambda room: torch.zeros(1, room.hypotheses), limits)[0][0]
    truth = readings(log_p[0])
    score = {g: (1 - weight) * float(step_log_p[[*g, EOS]].sum()) + weight * logarithm(p) for g, p in truth.items()}
    assert tuple(best.tokens) == max(score, key=lambda g: score[g])
    assert best.score == pytest.approx(max(score.values()))
