"""The rule for a loss that runs away, on loss curves: those that recover go on, those that diverge are stopped soon.

loss_curves.json has losses of our own trainings, one for each update (three digits): 300 updates of the tiny models of
conftest.py that learn to reverse words of 16 letters, under good and bad learning rates. The other curves are drawn.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.training.divergence import MAX_RUNAWAY_UPDATES, RUNAWAY_FACTOR, has_run_away
from dragoman.training.state import Progress

RECORDED: dict[str, list[float]] = json.loads((Path(__file__).parent / "loss_curves.json").read_text())
RECORDED_GUESS = math.log(20)  # 16 letters, <pad>, <unk>, <s> and </s>
GUESS = math.log(8000)
SOON = 250  # updates from the beginning of a divergence to its end

Curve = list[float]


def stopped_at(losses: Sequence[float], guess: float = GUESS) -> int | None:
    """The update at which the rule stops a training, counted from 1; None if it goes on to the end."""
    progress = Progress()
    return next((n for n, loss in enumerate(losses, 1) if has_run_away(progress, loss, guess)), None)


def curve(rng: random.Random, updates: int, loss: Callable[[int], float], noise: float = 0.15) -> Curve:
    """The losses of a function of the update, with the noise of batches."""
    return [loss(t) * math.exp(rng.gauss(0, noise)) for t in range(updates)]


def learned(t: float, first: float = GUESS, last: float = 2.0, time: float = 200) -> float:
    return last + (first - last) * math.exp(-t / time)


# -- what recovers -----------------------------------------------------------------------------------------------------

RECOVERING: dict[str, Callable[[random.Random], Curve]] = {
    "it learns": lambda rng: curve(rng, 3000, learned),
    "a spike to thirty times a guess, every 400 updates": lambda rng: curve(
        rng, 4000, lambda t: learned(t) + 300 * math.exp(-(t % 400) / 15) * (t > 400)
    ),
    "one batch in fifty is absurd": lambda rng: [1e6 if t % 50 == 49 else learned(t) for t in range(3000)],
    "a bump at the end of the warm-up": lambda rng: curve(
        rng, 3000, lambda t: learned(t) + 8 * math.exp(-(((t - 400) / 120) ** 2))
    ),
    "an alignment by CTC is found late": lambda rng: curve(rng, 4000, lambda t: learned(max(0, t - 800), 130, 1.0)),
    "large initial weights": lambda rng: curve(rng, 3000, lambda t: learned(t, 400)),
    "R-Drop weighs more once outputs differ": lambda rng: curve(
        rng, 3000, lambda t: learned(t, 12, 4) + 8 * math.exp(-(((t - 300) / 100) ** 2))
    ),
    "fewer and fewer inputs are the true ones": lambda rng: curve(rng, 4000, lambda t: learned(t) + 6 * t / 4000),
    "hard attention after soft": lambda rng: curve(rng, 3000, lambda t: 1.5 + 8 * math.exp(-t / 400), 0.4),
    "a new head on a trained encoder": lambda rng: curve(rng, 2000, lambda t: 1.2 + (10 if 50 < t < 200 else 0)),
    "a plateau at a guess": lambda rng: curve(rng, 3000, lambda t: GUESS, 0.05),
}


@pytest.mark.parametrize("what", RECOVERING)
def test_a_loss_that_recovers_is_not_stopped(what: str) -> None:
    rng = random.Random(random.random())
    assert stopped_at(RECOVERING[what](rng)) is None


def test_labels_of_small_noisy_batches_are_not_stopped() -> None:
    rng = random.Random(random.random())
    losses = [rng.choice([0.01, 0.1, 0.4, 1.5, 4.0, 8.0]) for _ in range(5000)]  # two labels, four sentences a batch
    assert stopped_at(losses, math.log(6)) is None


@pytest.mark.parametrize("name", [name for name in RECORDED if not name.startswith("diverges")])
def test_a_recorded_training_that_learns_is_not_stopped(name: str) -> None:
    assert stopped_at(RECORDED[name], RECORDED_GUESS) is None


# -- what does not -----------------------------------------------------------------------------------------------------

BEGINS = 1000  # the update after which these diverge


def diverging(after: Callable[[int], float], noise: float = 0.3, first: float = GUESS) -> Callable[..., Curve]:
    def losses(rng: random.Random) -> Curve:
        return curve(rng, BEGINS, lambda t: learned(t, first)) + curve(rng, 1000, after, noise)

    return losses


DIVERGING: dict[str, Callable[[random.Random], Curve]] = {
    "it grows without end": diverging(lambda t: 2 * 1.1 ** min(t, 900)),
    "it jumps and stays": diverging(lambda t: 60.0),
    "it jumps to somewhat more than a guess": diverging(lambda t: 2.5 * GUESS),
    "it swings, one update in five is low": diverging(lambda t: 5.0 if t % 5 == 0 else 200.0),
    "it swings at random": diverging(lambda t: 60.0, 0.8),
    "after a beginning with large weights": diverging(lambda t: 150.0, first=400),
}


@pytest.mark.parametrize("what", DIVERGING)
def test_a_loss_that_runs_away_is_stopped_soon_and_not_before(what: str) -> None:
    rng = random.Random(random.random())
    stopped = stopped_at(DIVERGING[what](rng))
    assert stopped is not None
    assert BEGINS < stopped <= BEGINS + SOON


def test_a_loss_that_creeps_away_is_stopped() -> None:
    rng = random.Random(random.random())
    losses = curve(rng, 12_000, lambda t: 3 + 60 * t / 12_000)
    stopped = stopped_at(losses)
    assert stopped is not None
    assert 2500 < stopped < 4000  # it is twice a guess at 3,000


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith("diverges")])
def test_a_recorded_training_that_diverges_is_stopped(name: str) -> None:
    stopped = stopped_at(RECORDED[name], RECORDED_GUESS)
    assert stopped is not None
    assert stopped <= SOON


def test_the_rule_stops_at_the_same_update_when_its_state_is_saved_in_between() -> None:
    losses = DIVERGING["it swings, one update in five is low"](random.Random(random.random()))
    progress, stopped = Progress(), None
    for n, loss in enumerate(losses, 1):
        progress = replace(progress)  # as from a checkpoint
        if has_run_away(progress, loss, GUESS):
            stopped = n
            break
    assert stopped == stopped_at(losses)


def test_the_limits_are_those_that_the_message_names() -> None:
    above, below = GUESS * RUNAWAY_FACTOR * 1.01, GUESS * RUNAWAY_FACTOR * 0.99
    assert stopped_at([GUESS, *[above] * 2 * MAX_RUNAWAY_UPDATES]) == 1 + MAX_RUNAWAY_UPDATES
    assert stopped_at([GUESS, *[below] * 2 * MAX_RUNAWAY_UPDATES]) is None
