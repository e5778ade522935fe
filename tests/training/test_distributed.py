"""Many ranks train as one would: the same updates, the same stops, the same end; and a lost rank is named.

Ranks are real processes that meet through gloo; most are forks of a process that has imported everything, started with
the variables that torchrun sets, so that a test can kill each of them. One test starts torchrun itself.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.rank_processes import DEADLINE, progress, reached, weights
from torch.testing import assert_close

from dragoman import training
from dragoman.data.batching import BatchStream, Cursor
from dragoman.training import prepare
from dragoman.training.tokenizer_learning import load_or_learn_codec
from dragoman.training.update_batches import group_updates

SLACK = 20.0  # seconds that a busy machine may add to a timeout; far from the 600 of a run that asks for none

DOUBLE = "torch.set_default_dtype(torch.float64)"

# On rank 1 the third batch has no finite loss, and the sixth does not fit into memory.
FAULTS = """
if os.environ["RANK"] == "1":
    from dragoman.nn.seq2seq import Seq2Seq
    whole, calls = Seq2Seq.loss, 0
    def loss(self, batch, *options, **more):
        global calls
        found = whole(self, batch, *options, **more)
        calls += self.training
        if calls == 3 and self.training:
            found = found * torch.nan
        if calls == 6 and self.training:
            raise torch.OutOfMemoryError("there is no room")
        return found
    Seq2Seq.loss = loss
"""


# -- the data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("tokens", [100, 400])  # 400: an epoch has fewer batches than there are ranks
def test_all_ranks_stop_together_and_no_line_is_dropped_or_doubled(ranks, accumulate, tokens, tiny, tmp_path):
    config = tiny("rnn", pairs=60).config()
    codec, config = load_or_learn_codec(config)
    corpora = prepare.prepare_data(config, codec, tmp_path / "cache").corpora
    for epochs in (1, 2, 3):
        updates, seen, cursors = set(), Counter(), set()
        for rank in range(ranks):
            batches = BatchStream(corpora, codec, tokens=tokens, seed=3, rank=rank, ranks=ranks)
            taken = list(group_updates(batches.batches_from(Cursor()), batches, accumulate, epochs))
            for own, _ in taken:
                seen.update(line for batch in own for line in batch.lines)
                assert rank or own  # rank 0 always has a batch
            updates.add(len(taken))
            cursors.add(taken[-1][1])
        assert len(updates) == len(cursors) == 1
        assert set(seen.values()) == {epochs}
        assert len(seen) == 60
        # A single process that resumes there for one more epoch reads all of it.
        single = BatchStream(corpora, codec, tokens=tokens, seed=3)
        for own, _ in group_updates(single.batches_from(cursors.pop()), single, 1, epochs + 1):
            seen.update(line for batch in own for line in batch.lines)
        assert set(seen.values()) == {epochs + 1}


# -- the gradient ------------------------------------------------------------------------------------------------------

# Three epochs have an odd number of batches: in the last update the second rank has none.
SAME = {
    "sgd": ["training.optimizer={name: sgd, rate: 0.5}", "training.epochs=3", "training.batch_tokens=240"],
    "adamw": ["training.optimizer={name: adamw, rate: 0.003, weight_decay: 0.1}", "training.loss_per=sentence"],
}


# Two ranks, three parameters: one that both use, one that only the second uses, one that none uses.
BY_HAND = """
from dragoman.training import distributed, gradient_buckets
from dragoman.training.gradient import GradientResult
gradient_buckets.BUCKET_SIZE = 1
rank = int(os.environ["RANK"])
with distributed.join_ranks(torch.device("cpu"), 30) as ranks:
    a, b, c = (torch.nn.Parameter(torch.zeros(2, dtype=kind)) for kind in (torch.float32, torch.float64, torch.float32))
    a.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]][rank])
    if rank == 1:
        b.grad = torch.tensor([8.0, -4.0], dtype=torch.float64)
    own = GradientResult([0.5, 0.25][rank], [4, 12][rank], [None, 7][rank])
    result = ranks.reduce_gradient(own, [4, 12][rank], [a, b, c])
    assert result == GradientResult(0.75, 16, 7), result
    assert a.grad.tolist() == [0.25 * 1 + 0.75 * 3, 0.25 * 2 + 0.75 * 4]
    assert b.grad.tolist() == [0.75 * 8, 0.75 * -4]
    assert c.grad is None
    result = ranks.reduce_gradient(GradientResult([0.5, float("nan")][rank], 1, None), 1, [a])
    assert result.loss != result.loss
    assert result.max_area is None
    assert ranks.broadcast_from_rank0(lambda: {"rank": rank, "third": 1 / 3}) == {"rank": 0, "third": 1 / 3}
    assert ranks.all_gather(10 * rank) == [0, 10]
    x = torch.full((3,), float(rank))
    ranks.broadcast_tensors([x])
    assert x.tolist() == [0.0, 0.0, 0.0]
    stop_signal = ranks.synchronize_signals(lambda: 15 if rank == 1 else None)
    assert stop_signal() is None
    ranks.reduce_gradient(GradientResult(0.0, 1, None), 1, [a])
    assert stop_signal() == 15
sys.exit()
"""


def test_gradients_are_weighted_by_tokens_and_what_no_rank_used_has_none(world):
    both = world([], 2, BY_HAND)
    assert both.wait() == [0, 0], both.output(0) + both.output(1)


# Sums made during the backward pass, against those of whole gradients that are collected afterwards. Of the parameters,
# rank 0 does not use one, and nobody uses another; update 1 has two passes; in update 2 the last rank starts again.
OVERLAPPED = """
from dragoman.training import distributed, gradient_buckets
from dragoman.training.gradient import GradientResult
gradient_buckets.BUCKET_SIZE = 40
rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(3)
layers = [torch.nn.Linear(6, 6) for _ in range(6)]
parameters = [p for layer in layers for p in layer.parameters()]
def backward():
    x = torch.randn(4, 6)
    for number, layer in enumerate(layers):
        if number != 0 and (number != 2 or rank != 0):
            x = torch.tanh(layer(x))
    x.pow(2).sum().backward()
with distributed.join_ranks(torch.device("cpu"), 30) as ranks:
    ranks.overlap_gradients(parameters)
    torch.manual_seed(100 + rank)
    for update in range(4):
        for p in parameters:
            p.grad = None
        weight = [4, 12, 0, 5][rank]
        assert ranks.start_update(weight) == sum([4, 12, 0, 5][:n])
        failed = update == 2 and rank == n - 1
        if update == 1:
            backward()
            assert not ranks.overlap.sent
        ranks.overlap.arm()
        backward()
        whole = [set(bucket) & {p for p in parameters if p.grad is None} == set() for bucket in ranks.overlap.buckets]
        filled = (whole + [False]).index(False)
        assert len(ranks.overlap.sent) == filled >= 6, (filled, len(ranks.overlap.sent))  # while the pass was under way
        if failed:
            ranks.overlap.invalidate()
            for p in parameters:
                p.grad = None
            ranks.overlap.arm()
            backward()
            assert len(ranks.overlap.sent) == filled
        own = [None if p.grad is None else p.grad.clone() for p in parameters]
        result = ranks.reduce_gradient(GradientResult(1.0, weight, None), weight, parameters)
        assert result.tokens == sum([4, 12, 0, 5][:n])
        everyones = ranks.all_gather(own)
        for number, p in enumerate(parameters):
            parts = [g[number] for g in everyones]
            if all(g is None for g in parts):
                assert p.grad is None
                continue
            shares = [w / result.tokens for w in [4, 12, 0, 5][:n]]
            expected = sum(g * share for g, share in zip(parts, shares) if g is not None)
            if n == 2:
                assert torch.equal(p.grad, expected), (update, number)
            assert torch.allclose(p.grad, expected, rtol=0, atol=1e-6), (update, number)
sys.exit()
"""


@pytest.mark.parametrize("count", [2, 4])
def test_sums_made_during_the_backward_pass_are_those_of_whole_gradients(count, world):
    ranks = world([], count, OVERLAPPED)
    assert ranks.wait() == [0] * count, [ranks.output(rank) for rank in range(count)]


@pytest.mark.parametrize("kind", SAME)
def test_two_ranks_take_the_steps_of_one_that_accumulates_two_batches(kind, tiny, world, tmp_path):
    made = tiny("transformer")
    sets = ["training.steps=20", "training.label_smoothing=0.1", "data.valid=null", *SAME[kind]]
    two = world(made.command(tmp_path / "two", *sets), 2, DOUBLE)
    one = world(made.command(tmp_path / "one", *sets, "training.accumulate=2"), 1, DOUBLE)
    assert two.wait() == [0, 0], two.output(0) + two.output(1)
    assert one.wait() == [0], one.output(0)
    ours, theirs = weights(tmp_path / "two"), weights(tmp_path / "one")
    assert next(iter(ours.values())).dtype == torch.float64
    assert_close(
        ours, theirs, rtol=0.0, atol=1e-9
    )  # dropout included: ranks draw as their batches would in one process
    mine, others = progress(tmp_path / "two"), progress(tmp_path / "one")
    assert (mine.pop("ranks"), others.pop("ranks")) == (2, 1)
    assert mine.pop("window_loss") == pytest.approx(others.pop("window_loss"))
    assert mine == others
    assert mine["step"] == 20 or (mine["epoch"], mine["batch"]) == (3, 0)  # not the end of a batch: the turn was cut
    assert two.output(1) == ""  # one rank speaks


def test_a_split_or_skipped_update_of_one_rank_is_one_of_all_ranks(tiny, world, metrics, tmp_path):
    made = tiny("transformer")
    sets = ["training.steps=12", "training.ema=0.9"]
    both = world(made.command(tmp_path / "run", *sets), 2, FAULTS)
    assert both.wait() == [0, 0], both.output(0) + both.output(1)
    log = (tmp_path / "run" / "train.log").read_text()
    assert "step 3 skipped: step 3: loss nan" in log
    assert "(1 of 3)" in log
    assert "step 6 split: a batch did not fit into memory" in log
    assert progress(tmp_path / "run")["max_area"] is not None  # saved by the first rank, for all
    recorded = [line["step"] for line in metrics(tmp_path / "run") if line["kind"] == "train"]
    assert recorded == [1, 2, *range(4, 13)]  # of a skipped update there is nothing to record


AFTERWARDS = """
from dragoman.training.distributed import DistributedRanks
DistributedRanks.overlap_gradients = lambda self, parameters: None
"""


@pytest.mark.long
def test_two_ranks_take_the_same_steps_whether_or_not_sums_are_made_during_the_backward_pass(
    tiny, world, same_end, tmp_path
):
    made = tiny("transformer")
    sets = ["training.accumulate=2", "training.epochs=4", "training.validate_metrics=[exact]"]
    for run, before in (("during", ""), ("after", AFTERWARDS)):
        both = world(made.command(tmp_path / run, *sets), 2, FAULTS + before)
        assert both.wait() == [0, 0], both.output(0) + both.output(1)
    same_end(tmp_path / "during", tmp_path / "after")


# Steps so small that the weights stay as they are: validations of the same weights by another number of ranks.
STILL = ["training.optimizer={name: sgd, rate: 1.0e-30}", "training.steps=2", "training.validate_every=1"]
FEW = "from dragoman.training import validation; validation.WINDOW = 4"


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_validation_does_not_depend_on_the_number_of_ranks(count, tiny, world, metrics, tmp_path):
    made = tiny("transformer")
    sets = [*STILL, "training.validate_metrics=[exact, per, chrf]", "training.batch_tokens=60", "training.average=2"]
    sets += ["training.save_every=1", "training.validate_generation={search: sample}"]
    many = world(made.command(tmp_path / "many", *sets), count, FEW)
    one = world(made.command(tmp_path / "one", *sets), 1, FEW)
    assert many.wait() == [0] * count, [many.output(rank) for rank in range(count)]
    assert one.wait() == [0], one.output(0)
    lines = [
        [line for line in metrics(tmp_path / run) if line["kind"] in ("valid", "average")] for run in ("many", "one")
    ]
    assert len(lines[0]) == 3
    assert json.dumps(lines[0]) == json.dumps(lines[1])


REPORTS = """
import json, os, sys
from pathlib import Path
from dragoman import config as configs
from dragoman import training
_, file, _, run, *rest = arguments
reports = list(training.run(configs.load(Path(file), None, rest[1::2]).config, Path(run)))
begun = [report.kind for report in reports].index("start")  # before it, the first rank alone looks at the data
clock = ("seconds", "tokens_per_second")
for report in reports[begun:]:
    values = {key: value for key, value in report.values.items() if key not in clock}
    print(json.dumps([report.kind, report.step, report.message, values]), flush=True)
sys.exit()
"""


def test_all_ranks_yield_the_same_reports(tiny, world, tmp_path):
    made = tiny("transformer")
    sets = ["training.steps=12", "training.average=2", "training.validate_every=5"]
    both = world(made.command(tmp_path / "run", *sets), 2, REPORTS)
    assert both.wait() == [0, 0], both.output(0) + both.output(1)
    assert both.output(0) == both.output(1)
    assert '"kind": "average"' in both.output(1)


# -- stopping, losing, going on ----------------------------------------------------------------------------------------


def test_a_signal_to_any_rank_stops_all_after_the_same_step_and_the_same_command_goes_on(
    tiny, world, same_end, tmp_path
):
    made, run = tiny("transformer"), tmp_path / "run"
    sets = ["training.steps=60", "training.schedule={name: plateau, patience: 1}"]
    whole = world(made.command(tmp_path / "whole", *sets))
    assert whole.wait() == [0, 0], whole.output(0) + whole.output(1)
    both = world(made.command(run, *sets))
    both.until(lambda: reached(run) >= 12)
    both.send(1, signal.SIGUSR1)
    assert both.wait() == [143, 143], both.output(0) + both.output(1)
    stopped = progress(run)["step"]
    assert stopped < 60
    assert f"stopped by SIGUSR1 after step {stopped}" in both.output(0)
    assert both.output(1) == ""
    # With another number of ranks it is another training.
    alone = world(made.command(run, *sets), 1)
    assert alone.wait() == [2]
    assert "trained on 2 ranks; now there are 1" in alone.output(0)
    assert "--allow-change ranks" in alone.output(0)
    again = world(made.command(run, *sets))
    assert again.wait() == [0, 0], again.output(0) + again.output(1)
    same_end(run, tmp_path / "whole")
    longer = world(made.command(run, *sets[1:], "training.steps=64", allow=("ranks", "training.steps")), 1)
    assert longer.wait() == [0], longer.output(0)
    assert progress(run)["ranks"] == 1
    assert progress(run)["step"] == 64


@pytest.mark.parametrize(
    ("lost", "number"),
    [
        pytest.param(1, signal.SIGSTOP, id="frozen"),
        pytest.param(1, signal.SIGKILL, id="killed", marks=pytest.mark.long),
        pytest.param(0, signal.SIGSTOP, id="the first frozen", marks=pytest.mark.long),
    ],
)
def test_a_lost_rank_ends_all_within_the_timeout_and_is_named(lost, number, tiny, world, tmp_path):
    made, run, timeout = tiny("transformer"), tmp_path / "run", 5
    three = world(made.command(run, "training.steps=100000", f"training.rank_timeout={timeout}"), 3)
    three.until(lambda: reached(run) >= 5)
    three.send(lost, number)
    began = time.monotonic()
    left = [rank for rank in range(3) if rank != lost]
    assert three.wait(*left) == [2, 2], [three.output(rank) for rank in left]
    assert time.monotonic() - began < timeout + SLACK
    for rank in left:
        said = three.output(rank)
        assert "Traceback" not in said
        found = re.search(r"error: rank (\d) has sent no heartbeat for ([\d.]+) s", said)
        if lost == 0:  # which holds what the others would look into
            assert "rank 0 or the network to it is frozen or cut off" in said
        else:
            assert found, said
            assert int(found[1]) == lost
            assert 0.5 < float(found[2]) < timeout + SLACK


def test_all_ranks_end_with_the_error_of_one(tiny, world, tmp_path):
    made, run = tiny("transformer"), tmp_path / "run"
    full = FAULTS.replace("calls == 6", "calls >= 6")  # nothing fits any more
    both = world(made.command(run), 2, full)
    assert both.wait() == [2, 2]
    assert re.search("error: a single pair of .* does not fit into memory", both.output(1))
    assert re.search("error: rank 1 ended: a single pair of .* does not fit into memory", both.output(0))
    busy = world(made.command(run), 1)  # the lock is free again, and what was saved is whole
    busy.until(lambda: busy.output(0) != "" or not busy.ranks[0].is_alive())
    assert "trained on 2 ranks" in busy.output(0)


def test_a_live_rank_that_joins_no_collective_is_named(tiny, world, tmp_path):
    stuck = FAULTS.replace("calls == 3 and self.training", "calls == 8").replace("calls == 6", "calls == 0")
    stuck = stuck.replace("found = found * torch.nan", "import time; time.sleep(1000)")
    both = world(tiny("transformer").command(tmp_path / "run", "training.rank_timeout=3"), 2, stuck)
    both.until(lambda: reached(tmp_path / "run") >= 7)
    began = time.monotonic()
    assert both.wait(0) == [2], both.output(0)
    assert time.monotonic() - began < 3 + SLACK
    assert "rank 1 sent heartbeats but did not join" in both.output(0)
    assert both.wait(1, seconds=SLACK) == [2]  # it hears of it, although it sleeps
    assert "rank 1 sent heartbeats but did not join" in both.output(1)


def test_ranks_that_never_connect_end_within_the_timeout(tiny, world, tmp_path):
    waits = "torch.distributed.init_process_group = lambda *group, **options: __import__('time').sleep(1000)"
    both = world(tiny("rnn").command(tmp_path / "run", "training.rank_timeout=1"), 2, waits)
    began = time.monotonic()
    assert both.wait(0) == both.wait(1) == [2], both.output(0)
    assert time.monotonic() - began < 5 + SLACK
    assert "could not connect to the others within 1" in both.output(0) + both.output(1)


# -- torchrun ----------------------------------------------------------------------------------------------------------

DIES = """
import os, signal, sys
from dragoman.core import files
from pathlib import Path
rank, restart, run = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"]), Path(os.environ["RUN"])
deaths = os.environ["DEATHS"].split()
if restart < len(deaths):
    who, step = deaths[restart].split("@")
    if who == rank:
        from dragoman.training.trainer import Trainer
        whole = Trainer.update
        def update(self, batches, clock):
            if self.progress.step == int(step):
                os.kill(os.getpid(), signal.SIGKILL)
            yield from whole(self, batches, clock)
        Trainer.update = update
from dragoman.cli.main import main
if __name__ == "__main__":  # a loader's worker reads this file too
    main()
"""


def torchrun(made: Any, run: Path, sets: list[str], deaths: list[str]) -> None:
    """Train on two ranks under torchrun, which starts them again after each death."""
    program = run.with_name("dies.py")
    program.write_text(DIES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(len(deaths)), "--", str(program), *made.command(run, *sets)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RUN": str(run), "DEATHS": " ".join(deaths)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE * (1 + len(deaths))
    )
    assert done.returncode == 0, done.stderr
    for death in deaths:
        if death.startswith("1"):  # else the one that was killed would have said it
            assert "rank 1 has sent no heartbeat" in done.stderr


@pytest.mark.long
def test_torchrun_restarts_a_killed_rank_and_the_run_ends_as_if_nothing_had_happened(tiny, world, same_end, tmp_path):
    made = tiny("transformer")
    whole = world(made.command(tmp_path / "whole"))
    assert whole.wait() == [0, 0], whole.output(0) + whole.output(1)
    torchrun(made, tmp_path / "killed", [], ["1@23"])
    same_end(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.long
def test_a_run_whose_ranks_are_killed_again_and_again_ends_as_one_that_was_not(tiny, world, same_end, tmp_path):
    seed = torch.initial_seed() % 10**6
    print(f"deaths are drawn from seed {seed}")
    draw = random.Random(seed)
    made = tiny("transformer")
    sets = ["training.steps=120", "training.ema=0.9", "training.accumulate=2", "data.workers=1"]
    whole = world(made.command(tmp_path / "whole", *sets))
    assert whole.wait(seconds=300) == [0, 0], whole.output(0) + whole.output(1)
    deaths = [f"{draw.randint(0, 1)}@{step}" for step in sorted(draw.sample(range(2, 120), 4))]
    torchrun(made, tmp_path / "killed", sets, deaths)
    same_end(tmp_path / "killed", tmp_path / "whole")


# -- alone -------------------------------------------------------------------------------------------------------------


def test_a_world_size_of_one_initializes_no_process_group(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "1")
    reports = list(training.run(tiny("rnn").config("training.steps=2"), tmp_path / "run"))
    assert reports[-1].kind == "end"
    assert not torch.distributed.is_initialized()
