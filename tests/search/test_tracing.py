"""A trace tells the whole search: what was kept, and by the parents alone, what came out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.types import EOS, Hypothesis
from dragoman.search import Search, SearchConstraints

from .test_beam import ALPHAS, Tokens, beam, competing, plain_beam
from .test_searches import SEEDS, Tables

Trace = list[dict[str, Any]]


def traced(tables: Tables, search: Search) -> tuple[list[list[Hypothesis]], dict[int, Trace]]:
    traces: dict[int, Trace] = {}
    found = search(
        tables.step,
        tables.start,
        SearchConstraints(torch.tensor(tables.max_lengths), tables.min_lengths, processors=(), traces=traces),
    )
    return found, traces


def path(nodes: dict[int, dict[str, Any]], node: int) -> Tokens:
    """The tokens from the empty beginning, 0, to a node."""
    return (*path(nodes, nodes[node]["parent"]), nodes[node]["token"]) if node else ()


SEARCHES = {
    "seed": SEEDS,
    "size": st.integers(1, 4),
    "rule": st.sampled_from(sorted(ALPHAS)),
    "ending": st.sampled_from(["collect", "shrink"]),
}


@given(**SEARCHES, early_stopping=st.booleans())
@settings(max_examples=20)
def test_a_trace_has_every_beginning_that_a_plain_beam_keeps(
    seed: int, size: int, rule: str, ending: str, early_stopping: bool
) -> None:
    part, formula = ALPHAS[rule]
    tables = competing(seed, [4, 1, 3, 2])
    search = beam(beam=size, length_rule=part, finished_policy=ending, early_stopping=early_stopping)
    _, traces = traced(tables, search)
    for i, trace in traces.items():
        nodes = {entry["id"]: entry for entry in trace}
        assert len(nodes) == len(trace)
        assert 0 not in nodes
        for entry in trace:
            y = path(nodes, entry["id"])
            logs = tables.log_probs(i, y)
            assert len(y) == entry["step"] + 1
            assert entry["parent"] == 0 or nodes[entry["parent"]]["fate"] == "kept"
            assert entry["log_prob"] == pytest.approx(logs[-1])
            assert entry["total"] == pytest.approx(sum(logs))
            assert entry["score"] == pytest.approx(formula(sum(logs), len(y)))
            assert entry["fate"] in ("kept", "finished", "dropped")
            assert entry["token"] == EOS or entry["fate"] != "finished"
            assert bool(entry["reason"]) or entry["fate"] != "dropped"
        kept: list[list[Tokens]] = []
        stopping: dict[str, Any] = {"early_stopping": early_stopping, "patience": 2.0}
        plain_beam(tables, i, size, formula, shrink=ending == "shrink", kept=kept, **stopping)
        told = [
            [path(nodes, one["id"]) for one in trace if one["step"] == t and one["fate"] == "kept"]
            for t in range(max((entry["step"] for entry in trace), default=-1) + 1)
        ]
        assert [ones for ones in told if ones] == [ones for ones in kept if ones]


@given(**SEARCHES, early_stopping=st.sampled_from([True, "never"]))
@settings(max_examples=20)
def test_the_results_follow_from_the_trace_alone(
    seed: int, size: int, rule: str, ending: str, early_stopping: bool | str
) -> None:
    tables = competing(seed, [4, 1, 3, 2])
    found, traces = traced(
        tables, beam(beam=size, length_rule=ALPHAS[rule][0], finished_policy=ending, early_stopping=early_stopping)
    )
    for i, trace in traces.items():
        nodes = {entry["id"]: entry for entry in trace}
        finished = [entry for entry in trace if entry["fate"] == "finished"]
        ended = {entry["parent"] for entry in finished}
        last = [
            e for e in trace if e["fate"] == "kept" and e["step"] == tables.max_lengths[i] - 1 and e["id"] not in ended
        ]
        if not any(e["step"] == tables.max_lengths[i] for e in trace) and len(finished) >= size:
            last = []  # it stopped before
        ranked = [sorted(ones, key=lambda entry: -entry["score"]) for ones in (finished, last)]
        expected = [
            ([token for token in path(nodes, entry["id"]) if token != EOS], entry["score"])
            for ones in ranked
            for entry in ones
        ]
        assert [(h.tokens, h.score) for h in found[i]] == expected[:size]
        assert not any(entry["reason"] for entry in ranked[0][:size])  # the best in the end were so when they came


@given(**SEARCHES)
@settings(max_examples=15)
def test_a_trace_does_not_depend_on_the_batch_and_tracing_changes_nothing(
    seed: int, size: int, rule: str, ending: str
) -> None:
    tables = competing(seed, [4, 1, 3, 2])
    search = beam(beam=size, length_rule=ALPHAS[rule][0], finished_policy=ending)
    found, traces = traced(tables, search)
    assert found == tables.run(search)
    for i in range(4):
        _, alone = traced(tables.rows([i]), search)
        assert alone.get(0) == traces.get(i)


def test_each_fate_has_its_reason() -> None:
    """A beam of 1; `4` is kept and `3` dropped, </s> comes out first and is then beaten, the limit is 2.

    <s> ─┬─ 4 .5 ─┬─ 4 .6 ──── </s> .9, 4 .1
         │        └─ </s> .4
         ├─ 3 .3
         └─ </s> .2
    """
    table = torch.full((sum(5**n for n in range(4)), 5), -math.inf)
    table[0, [4, 3, EOS]] = torch.tensor([0.5, 0.3, 0.2]).log()
    table[4 + 1, [4, EOS]] = torch.tensor([0.6, 0.4]).log()
    table[(4 + 1) * 5 + 4 + 1, [EOS, 4]] = torch.tensor([0.9, 0.1]).log()
    _, traces = traced(Tables(table[None], [2]), beam(beam=1))
    assert [(e["step"], e["token"], e["fate"], e["reason"]) for e in traces[0]] == [
        (0, 4, "kept", ""),
        (0, 3, "dropped", "not among the best 1"),
        (1, 4, "kept", ""),
        (1, EOS, "dropped", "</s>, but not among the best 1"),
        (2, EOS, "finished", ""),
        (2, 4, "dropped", "the maximum length was reached"),
    ]
