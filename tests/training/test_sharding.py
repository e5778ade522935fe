"""A model of which each rank keeps a part trains as a whole one does, and what it saves is an ordinary model."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.training.rank_processes import World, progress, reached, weights

from dragoman.inference import pipeline

SHARDED = "runtime.sharding=full"
# A smooth activation: at a ReLU's corner, a difference in the last bit may become one in the third digit.
PARTS = {"layers": 1, "heads": 2, "feedforward": 64, "dropout": 0.1, "activation": "gelu"}
SETS = [f"model.{side}={json.dumps({'name': 'transformer', **PARTS})}" for side in ("encoder", "decoder")]
SETS += ["training.steps=50", "training.save_every=25", "training.validate_every=25"]


def losses(metrics: list[dict[str, float]], kind: str = "train") -> list[float]:
    return [line["loss"] for line in metrics if line["kind"] == kind]


def test_two_sharded_ranks_have_the_losses_of_one_and_save_a_model_that_loads(tiny, world, metrics, tmp_path):
    made = tiny("transformer")
    sets = [*SETS, "training.ema=0.9", "training.epochs=9", "training.loss_per=sentence", "model.tie=all"]
    sets += ["tokenizer.joint=true", "training.replay=2", "runtime.activation_checkpointing=true"]
    two = world(made.command(tmp_path / "two", *sets, SHARDED), 2)
    one = world(made.command(tmp_path / "one", *sets, "training.accumulate=2"), 1)
    assert two.wait() == [0, 0], two.output(0) + two.output(1)
    assert one.wait() == [0], one.output(0)
    ours, theirs = metrics(tmp_path / "two"), metrics(tmp_path / "one")
    assert losses(ours) == pytest.approx(losses(theirs), abs=1e-6)
    assert losses(ours, "valid") == pytest.approx(losses(theirs, "valid"), abs=1e-6)
    assert len(losses(ours)) > 40
    steps = [(p["step"], p["epoch"], p["batch"]) for p in (progress(tmp_path / "two"), progress(tmp_path / "one"))]
    assert steps[0] == steps[1]
    shapes = [{name: x.shape for name, x in weights(tmp_path / run).items()} for run in ("two", "one")]
    assert shapes[0] == shapes[1]
    words = ["abba", "deed", "hgfe"]
    both = [pipeline.load(tmp_path / name, "cpu") for name in ("two", "one")]
    assert [p.text for p in both[0].predict(words)] == [p.text for p in both[1].predict(words)]
    assert both[0].score([("abc", "cba")]) == pytest.approx(both[1].score([("abc", "cba")]), abs=1e-4)
    frames = [(tmp_path / name / "replay.jsonl").read_text().count("\n") for name in ("two", "one")]
    assert frames[0] == frames[1] > 0


def kill_at(world: Callable[..., World], command: list[str], run: Path, step: int, victims: list[int]) -> None:
    """Start two ranks and kill some of them once the run has come to a step; the others end by themselves."""
    both = world(command)
    both.until(lambda: reached(run) >= step)
    for rank in victims:
        both.send(rank, signal.SIGKILL)
    codes = both.wait()
    assert all(code == (-signal.SIGKILL if rank in victims else 2) for rank, code in enumerate(codes)), codes
    for rank in set(range(2)) - set(victims):
        assert "Traceback" not in both.output(rank)


@pytest.mark.long
def test_a_sharded_run_that_is_killed_ends_as_one_that_was_not(tiny, world, same_end, tmp_path):
    seed = torch.initial_seed() % 10**6
    print(f"steps are drawn from seed {seed}")
    draw = random.Random(seed)
    made, run = tiny("transformer"), tmp_path / "killed"
    sets = [*SETS, SHARDED, "training.steps=100", "training.save_every=10", "training.ema=0.9", "training.accumulate=2"]
    whole = world(made.command(tmp_path / "whole", *sets))
    assert whole.wait() == [0, 0], whole.output(0) + whole.output(1)
    for number, step in enumerate(sorted(draw.sample(range(11, 90), 4))):
        kill_at(world, made.command(run, *sets), run, step, [[0, 1], [1], [0], [0, 1]][number])
    again = world(made.command(run, *sets))
    assert again.wait() == [0, 0], again.output(0) + again.output(1)
    same_end(run, tmp_path / "whole")


@pytest.mark.long
def test_a_sharded_run_goes_on_with_another_number_of_ranks_and_unsharded(tiny, world, metrics, tmp_path):
    made, run = tiny("transformer"), tmp_path / "run"
    sets = [*SETS[:2], "training.save_every=10"]
    changes = ("ranks", "training.steps", "runtime.sharding", "training.accumulate")
    for steps, ranks, more in ((10, 2, [SHARDED]), (20, 4, [SHARDED]), (30, 1, ["training.accumulate=4"])):
        group = world(made.command(run, *sets, f"training.steps={steps}", *more, allow=changes), ranks)
        assert group.wait() == [0] * ranks, [group.output(rank) for rank in range(ranks)]
    assert [line["step"] for line in metrics(run) if line["kind"] == "train"] == list(range(1, 31))
    # The same updates without shards: two batches each, then four.
    plain = tmp_path / "plain"
    for steps, accumulate in ((10, 2), (20, 4), (30, 4)):
        more = [f"training.steps={steps}", f"training.accumulate={accumulate}"]
        alone = world(made.command(plain, *sets, *more, allow=changes), 1)
        assert alone.wait() == [0], alone.output(0)
    assert losses(metrics(run)) == pytest.approx(losses(metrics(plain)), abs=1e-5)


HALVES = """
from dragoman.core.registry import Part
from dragoman.core.types import Batch
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.training import distributed, sharding
from dragoman.training.state import state_tensors
parts = Part("transformer", {"layers": 2, "heads": 2})
with distributed.join_ranks(torch.device("cpu"), 30) as ranks:
    torch.manual_seed(1)
    model = Seq2Seq(40, 40, width=16, encoder=parts, decoder=parts, tie="all")
    whole = {name: p.numel() for name, p in model.named_parameters()}
    sharding.shard_model(model, torch.device("cpu"), 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(4, 40, (3, 6))
    batch, seen = Batch(ids, torch.full((3,), 6), ids, torch.full((3,), 6)), []
    for step in range(2):
        model.loss(batch).backward()
        optimizer.step()
    size = lambda tensors: sum(sharding.local_part(x).numel() for x in tensors)
    assert {name: p.numel() for name, p in model.named_parameters()} == whole  # the sizes of whole ones
    half = sum(whole.values()) // 2
    assert size(model.parameters()) == half
    assert size(p.grad for p in model.parameters()) == half
    moments = [x for name, x in state_tensors(model, optimizer, None).items() if not name.endswith("step")]
    assert size(moments) == 2 * half
    gathered = {name: sharding.gather_tensor(p).numel() for name, p in model.named_parameters()}
    assert gathered == whole
sys.exit()
"""


@pytest.mark.long
def test_each_rank_keeps_half_of_weights_gradients_and_optimizer_state(world):
    both = world([], 2, HALVES)
    assert both.wait() == [0, 0], both.output(0) + both.output(1)


# -- what cannot be done -----------------------------------------------------------------------------------------------

TOO_LARGE = """
if os.environ["RANK"] == "1":
    from dragoman.nn.seq2seq import Seq2Seq
    whole, calls = Seq2Seq.loss, 0
    def loss(self, batch, *options, **more):
        global calls
        calls += 1
        if calls == 3:
            raise torch.OutOfMemoryError("there is no room")
        return whole(self, batch, *options, **more)
    Seq2Seq.loss = loss
"""


@pytest.mark.long
def test_a_batch_that_does_not_fit_ends_all_ranks_with_a_remedy(tiny, world, tmp_path):
    both = world(tiny("transformer").command(tmp_path / "run", SHARDED), 2, TOO_LARGE)
    assert both.wait() == [2, 2]
    for rank in range(2):
        assert "no rank can split its batch alone; lower training.batch_tokens" in both.output(rank)
        assert "Traceback" not in both.output(rank)
