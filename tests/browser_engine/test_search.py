"""The searches in JavaScript find what Python's find, on random tables of log p: p(y_t | y_{t-1}, t)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.browser_engine.small_models import find_difference
from torch import Tensor

from dragoman.core.registry import Part
from dragoman.core.types import Capacity, Hypothesis
from dragoman.search import SearchConstraints, Trace
from dragoman.search.beam import Beam
from dragoman.search.greedy import Greedy

V = 9

SEARCH = """async ([cases]) => {
    const { searchBeam } = await import("/beam.js");
    const { searchGreedily } = await import("/greedy.js");
    const { buildLengthRule } = await import("/length_rules.js");
    const answers = [];
    for (const { table, options, minLength, maxLength, greedy } of cases) {
        let t = 0;
        const step = (tokens) => {
            const logP = Float32Array.from(tokens.flatMap((token) => table[t][token]));
            t++;
            return { logP, attention: null };
        };
        const constraints = { minLength, maxLength, processors: [] };
        const trace = [];
        const lengthRule = buildLengthRule(options.lengthRule);
        const found = greedy
            ? await searchGreedily(step, constraints, async () => {})
            : await searchBeam(step, { ...options, lengthRule }, constraints, async () => {}, trace);
        answers.push({ found, trace });
    }
    return answers;
}"""


class TableStep:
    """log p of the next token by the step and the last token, for one sentence."""

    def __init__(self, table: Tensor) -> None:
        self.table = table  # (R, V, V)

    def start(self, capacity: Capacity) -> Tensor:
        return torch.zeros(1, capacity.hypotheses, dtype=torch.long)

    def step(self, tokens: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.table[t, tokens], t + 1


def random_table(R: int, seed: int, end: float) -> Tensor:
    torch.manual_seed(seed)
    logits = 2 * torch.randn(R, V, V)
    logits[..., 2] += end
    return logits.log_softmax(-1)


def as_data(one: Hypothesis) -> dict[str, Any]:
    return {"tokens": one.tokens, "logProbs": one.log_probs, "score": one.score, "finishReason": one.finish_reason}


RULES: list[Any] = ["none", "mean", {"name": "power", "alpha": 0.5}, {"name": "gnmt", "alpha": 0.8}]


def python_answer(case: dict[str, Any], table: Tensor) -> dict[str, Any]:
    rule, options = Part.parse(case["options"]["lengthRule"]), case["options"]
    traces: dict[int, Trace] = {}
    constraints = SearchConstraints(
        torch.tensor([case["maxLength"]]), torch.tensor([case["minLength"]]), traces=None if case["greedy"] else traces
    )
    search = (
        Greedy()
        if case["greedy"]
        else Beam(
            beam=options["beam"],
            length_rule=rule,
            finished_policy=options["finishedPolicy"],
            early_stopping=options["earlyStopping"],
            patience=options["patience"],
        )
    )
    source = TableStep(table)
    hypotheses = search(source.step, source.start, constraints)[0]
    return {"found": [as_data(one) for one in hypotheses], "trace": traces.get(0, [])}


@pytest.mark.parametrize("policy", ["collect", "shrink"])
@pytest.mark.parametrize(
    ("stopping", "patience"), [(False, 2.0), ("never", 2.0), (True, 1.0), (True, 1.5), (True, 2.0), (True, 3.0)]
)
def test_a_beam_keeps_and_drops_what_pythons_does(
    engine_page: Any, policy: str, stopping: bool | str, patience: float
) -> None:
    cases, expected = [], []
    for seed in range(40):
        longest = 1 + seed % 8
        table = random_table(longest + 1, seed, end=(-2.0, 0.0, 2.0)[seed % 3])
        case = {
            "options": {
                "beam": 1 + seed % 6,
                "lengthRule": RULES[seed % len(RULES)],
                "earlyStopping": stopping,
                "patience": patience,
                "finishedPolicy": policy,
                "coveragePenalty": 0,
            },
            "maxLength": longest,
            "minLength": min(longest, seed % 3),
            "greedy": seed % 10 == 9,
        }
        expected.append(python_answer(case, table))
        cases.append({**case, "table": table.tolist()})
    found = engine_page.evaluate(SEARCH, [json.loads(json.dumps(cases))])
    for case, one, other in zip(cases, expected, found, strict=True):
        assert find_difference(one, other) is None, {**case, "table": None}
