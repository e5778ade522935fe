"""Trees and tables say what the data says, fit the terminal, and let no token play tricks on it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from dragoman.inference.pipeline import Pipeline
from dragoman.inspection.render.terminal_tree import render_beam, render_steps
from dragoman.inspection.views.beam import trace_beam
from dragoman.inspection.views.steps import trace_steps


def node(id: int, parent: int, token: str, fate: str, best: bool = False, reference: bool = False) -> dict[str, Any]:
    numbers = {"step": 0, "log_prob": -0.25, "total": -id / 4, "score": -id / 8, "reason": ""}
    return {"id": id, "parent": parent, "token": token, "fate": fate, "best": best, "reference": reference, **numbers}


def view(*nodes: dict[str, Any], best: int | None = None) -> dict[str, Any]:
    results = [{"score": -0.5, "log_prob": -1.0, "tokens": ["x", "y"], "node": best}]
    return {"nodes": list(nodes), "results": results, "verdict": None}


def test_a_tree_by_hand() -> None:
    small = view(
        node(1, 0, "the", "kept", best=True),
        node(2, 0, "a", "dropped", reference=True),
        node(3, 1, "old", "kept", best=True),
        node(4, 1, "new", "kept"),
        node(5, 3, "</s>", "finished", best=True),
        node(6, 4, "</s>", "finished"),
        best=5,
    )
    assert render_beam(small, width=60).plain.splitlines() == [
        "├ the            -0.250   -0.125",
        "│ ├ old </s> ★   -1.250   -0.625",
        "│ └ new </s> ✓   -1.500   -0.750",
        "└ a ◆✗           -0.500   -0.250",
        "1. -0.500  log p -1.000  x y",
    ]


@pytest.mark.parametrize("width", [30, 80])
def test_a_real_tree_and_real_steps_fit_the_terminal(rnn: Pipeline, width: int) -> None:
    found = trace_beam(rnn, "hgfed ba", "abc", beam=3)
    lines = render_beam(found, width=width).plain.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert " ".join(lines).endswith(found["verdict"]["sentence"])
    steps = trace_steps(rnn, "hgfed ba", "abc")
    table = [line for line in render_steps(steps, width=width).plain.splitlines() if line[:4] not in ("free", "forc")]
    assert max(map(cell_len, table)) <= width
    every = [*steps["free"]["steps"], *steps["forced"]["steps"]]
    assert len(table) == len(every)
    for line, step in zip(table, every, strict=True):
        assert line.split()[1] == step["token"]
        assert f"{step['log_prob']:.3f}" in line
    assert sum("◀" in line for line in table) == 2
    assert sum("›" in line for line in table) == len(steps["forced"]["steps"])


def test_a_tree_is_drawn_however_deep_it_is() -> None:
    chain = [node(1, 0, "a", "kept")]
    for i in range(2, 2400, 2):
        chain += [
            node(i, chain[-1]["id"] - (i > 2), "b", "kept"),
            node(i + 1, chain[-1]["id"] - (i > 2), "c", "dropped"),
        ]
    lines = render_beam(view(*chain), width=400).plain.splitlines()
    assert len(lines) > 1000
    assert max(map(cell_len, lines)) < 100  # so far to the right nobody would look


def test_no_token_reaches_the_terminal_as_an_escape_sequence() -> None:
    evil = "\x1b[31m\n\u202e"
    shown = render_beam(view(node(1, 0, evil, "kept")), width=60).plain
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert shown.count("\n") == 2
    step = {"id": 5, "token": evil, "log_prob": -1.0, "rank": 1, "entropy": 0.5, "forced": False}
    step["top"] = [{"id": 5, "token": evil, "log_prob": -1.0}]
    part = {"text": evil, "log_prob": -1.0, "steps": [step]}
    shown = render_steps({"free": part, "forced": part, "diverges": None}, width=60).plain
    assert "\x1b" not in shown
    assert shown.count("\n") == 4
