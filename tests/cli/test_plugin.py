"""`--plugin ./file.py` on every command: with it a model of one's own parts works, without it one sentence says so."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dragoman
from dragoman.core.plugins import load_plugin
from dragoman.nn.scores import scores

from .conftest import Done

FILE = "./parts/own_score.py"
PART = '''
import torch
from torch import nn
from dragoman.nn.scores import scores


@scores.register("own_score")
class OwnScore(nn.Module):
    """e = γ cos(q, k)."""

    uses_past_weights = False

    def __init__(self, d_q: int, d_k: int, *, gamma: float = 8.0) -> None:
        super().__init__()
        self.W = nn.Linear(d_k, d_q)
        self.gamma = nn.Parameter(torch.tensor(gamma))

    def prepare_keys(self, k):
        return self.W(k)

    def forward(self, q, keys, past_weights=None):
        return self.gamma * q @ keys.transpose(-1, -2)
'''
STEPS = ["--set", "training.steps=2", "--set", "training.schedule.warmup=1"]
OWN = [*STEPS, "--set", "model.decoder.score=own_score"]


@pytest.fixture(scope="module")
def own(work: Path) -> Path:
    """A run whose score is in a file of the user's."""
    (work / "parts").mkdir(exist_ok=True)
    (work / FILE).write_text(PART)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setattr(sys, "path", [*sys.path])
        load_plugin(FILE)
        deque(dragoman.train("copy.yaml", set=OWN[1::2], run="runs/own"), 0)
    forget()
    return work / "runs/own"


@pytest.fixture(autouse=True)
def _imports_are_undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    forget()


def forget() -> None:
    """Undo the import of the plug-ins, which register their parts in this process."""
    for name in ("own_score", "wrong_score"):
        sys.modules.pop(name, None)
        scores._parts.pop(name, None)


@pytest.mark.parametrize(
    "args",
    [
        ["predict", "runs/own", "test.tsv"],
        ["score", "runs/own", "test.tsv"],
        ["evaluate", "runs/own", "test.tsv"],
        ["inspect", "runs/own", "a b"],
        ["inspect", "runs/copy", "a b", "--beside", "runs/own"],
        ["compare", "runs/own", "runs/copy", "--data", "test.tsv", "--metrics", "exact"],
        ["probe", "runs/own", "--count", "3"],
        ["blame", "runs/own", "a b"],
        ["tokenizer", "explain", "runs/own", "ab"],
        ["data", "check", "test.tsv", "--model", "runs/own"],
        ["pack", "runs/own", "-o", "own.zip"],
        ["config", "check", "runs/own/config.yaml"],
        ["train", "copy.yaml", *OWN, "--run", "runs/own2", "--set", "training.start_from=runs/own"],
        ["train", "copy.yaml", *OWN, "--run", "runs/own", "--explain-engine"],
    ],
    ids=lambda args: " ".join(args),
)
def test_every_command_takes_a_file_as_a_plugin(own: Path, here: Callable[..., Done], args: list[str]) -> None:
    without = here(*args)
    assert without.code == 2
    assert "no score called 'own_score'" in without.err
    done = here(*args, "--plugin", FILE)
    assert done.code in (0, 4), done.err  # a probe of two steps of training does not pass


@pytest.mark.parametrize("args", [["list", "scores"], ["config", "schema"]], ids=" ".join)
def test_own_parts_are_listed(own: Path, here: Callable[..., Done], args: list[str]) -> None:
    assert "own_score" not in here(*args).out
    assert "own_score" in here(*args, "--plugin", FILE).out


def test_the_card_of_a_packed_model_names_the_plugin_it_needs(own: Path, work: Path, here: Callable[..., Done]) -> None:
    assert here("pack", "runs/own", "-o", "own.zip", "--plugin", FILE).code == 0
    from dragoman.reports.card import read_card, render_card

    card = read_card(work / "own.zip")
    assert card is not None
    assert card.plugins == ["own_score"]
    assert "--plugin FILE.py" in render_card(card, "own.zip")
    assert here("predict", "own.zip", "test.tsv", "--plugin", FILE).code == 0


def test_a_wrong_shape_in_ones_own_file_names_file_part_and_both_shapes(
    own: Path, work: Path, here: Callable[..., Done]
) -> None:
    (work / "parts" / "wrong_score.py").write_text(
        PART.replace("own_score", "wrong_score").replace("keys.transpose(-1, -2)", "keys.transpose(-1, -2)[..., :-1]")
    )
    command = ["train", "copy.yaml", *STEPS, "--set", "model.decoder.score=wrong_score", "--run", "runs/wrong"]
    done = here(*command, "--plugin", "./parts/wrong_score.py")
    assert done.code == 2
    expected = "wrong_score.py: score 'wrong_score' returned e of (2, 2, 2); expected (2, 2, 3): a score for each of 2"
    assert expected in " ".join(done.err.split())
    assert not (work / "runs" / "wrong").exists()
