"""A batch that does not fit into memory is split, and nothing but rounding changes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.core.errors import UserError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, Batch
from dragoman.data.batching import collate
from dragoman.inference.device import is_out_of_memory
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.training.gradient import compute_gradient, split_batch

CPU = torch.device("cpu")
ABORTED = -signal.SIGABRT  # by the C++ runtime, where a thread of torch finds no memory to begin with
FAMILIES = {
    "rnn": {"encoder": Part("rnn", {"dropout": 0.0}), "decoder": Part("rnn", {"order": "before", "dropout": 0.0})},
    "transformer": {
        "encoder": Part("transformer", {"layers": 1, "heads": 2, "dropout": 0.0}),
        "decoder": Part("transformer", {"layers": 1, "heads": 2, "dropout": 0.0}),
    },
}


def model_of(family: str) -> Seq2Seq:
    torch.manual_seed(3)
    return Seq2Seq(20, 20, width=16, tie="none", **FAMILIES[family])


def batch_of(rows: int, seed: int) -> Batch:
    """Rows of many lengths, so that pieces lose padding which the whole had."""
    draw = torch.Generator().manual_seed(seed)

    def ids() -> list[int]:
        length = int(torch.randint(1, 9, (), generator=draw))
        return [*torch.randint(4, 20, (length,), generator=draw).tolist(), EOS]

    return collate([(ids(), ids()) for _ in range(rows)], list(range(rows)))


def smoothed(model: Seq2Seq) -> Callable[[Batch], torch.Tensor]:
    return lambda batch: model.loss(batch, 0.1)


def gradients(model: Seq2Seq, batches: list[Batch], max_area: int | None, **options: object) -> dict[str, torch.Tensor]:
    known = {"seed": 1, "step": 1, "device": CPU, "precision": "float32"} | options
    found = compute_gradient(model, batches, smoothed(model), max_area=max_area, **known)  # type: ignore[arg-type]
    assert found.tokens == sum(batch.tokens for batch in batches)
    named = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return named | {"loss": torch.tensor(float(found.loss))}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("limit", [1, 20, 50])
def test_a_split_batch_has_the_gradient_of_the_whole(family, limit):
    model, batch = model_of(family), batch_of(13, seed=5)
    assert len(split_batch(batch, limit)) > 1
    whole = gradients(model, [batch], None)
    assert_close(gradients(model, [batch], limit), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_the_mean_over_all_tokens_of_the_update(family):
    """By hand: every row alone, summed, over the number of target tokens; two accumulated batches, or one of both."""
    model, first, second = model_of(family), batch_of(5, seed=1), batch_of(8, seed=2)
    model.zero_grad()
    rows = [batch.slice_rows(i, i + 1) for batch in (first, second) for i in range(len(batch))]
    total = sum(model.loss(row, 0.1) for row in rows)
    assert isinstance(total, torch.Tensor)
    (total / (first.tokens + second.tokens)).backward()
    by_hand = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    by_hand |= {"loss": total.detach()}
    both = collate(
        [
            (row.source[0].tolist(), row.target[0, 1:].tolist())  # rows of one have no padding
            for row in rows
        ],
        list(range(13)),
    )
    assert_close(gradients(model, [first, second], None), by_hand, rtol=1e-5, atol=1e-5)
    assert_close(gradients(model, [both], None), by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [None, 1, 17, 30, 1000])
def test_pieces_are_the_rows_of_the_batch_in_order(limit):
    batch = batch_of(13, seed=8)
    pieces = split_batch(batch, limit)
    assert [line for piece in pieces for line in piece.lines] == batch.lines
    for piece in pieces:
        assert limit is None or piece.area <= limit or len(piece) == 1
        for i, line in enumerate(piece.lines):
            for side in ("source", "target"):
                length = int(getattr(piece, f"{side}_lengths")[i])
                assert length == int(getattr(batch, f"{side}_lengths")[line])
                assert_close(getattr(piece, side)[i, :length], getattr(batch, side)[line, :length])


def test_a_retry_draws_the_random_numbers_of_the_first_attempt():
    """With dropout, an update that was tried before (and did not fit, or was killed) is the same update."""
    model = Seq2Seq(20, 20, width=16, encoder=Part("transformer", {"layers": 1, "heads": 2, "dropout": 0.5}))
    model.train()
    batch = batch_of(13, seed=5)
    torch.manual_seed(1)
    first = gradients(model, [batch], 40)
    torch.manual_seed(2)
    assert_close(gradients(model, [batch], 40), first, rtol=0, atol=0)
    other = gradients(model, [batch], 40, step=2)
    assert any(not torch.equal(other[name], first[name]) for name in first)


class Narrow(Seq2Seq):
    """A model on a machine on which batches of more than `room` positions do not fit, forward or backward."""

    room, backwards, failed = 40, False, None

    def loss(self, batch: Batch, smoothing: float = 0.0, **options: Any) -> torch.Tensor:
        assert self.failed is None or self.failed() is None  # what did not fit is out of memory by now
        found = super().loss(batch, smoothing, **options)
        if batch.area <= self.room:
            return found
        self.failed = weakref.ref(found)
        if not self.backwards:
            torch.empty(1 << 60)
        found.register_hook(lambda _: torch.empty(1 << 60))
        return found


@pytest.mark.parametrize("backwards", [False, True])
def test_a_batch_that_does_not_fit_is_halved_until_it_does(backwards):
    whole, narrow = model_of("transformer"), Narrow(20, 20, width=16, tie="none", **FAMILIES["transformer"])
    narrow.load_state_dict(whole.state_dict())
    narrow.backwards = backwards
    batches = [batch_of(13, seed=5), batch_of(3, seed=6)]
    expected = gradients(whole, batches, None)
    found = compute_gradient(
        narrow, batches, smoothed(narrow), seed=1, step=1, device=CPU, precision="float32", max_area=None
    )
    assert found.max_area is not None
    assert found.max_area < max(batch.area for batch in batches)
    assert all(piece.area <= narrow.room for batch in batches for piece in split_batch(batch, found.max_area))
    assert_close(
        {n: p.grad for n, p in narrow.named_parameters()} | {"loss": torch.tensor(float(found.loss))}, expected
    )


def test_a_single_pair_that_does_not_fit_is_a_user_error():
    narrow = Narrow(20, 20, width=16, **FAMILIES["transformer"])
    narrow.room = 0
    with pytest.raises(UserError, match=r"data\.max_source"):
        gradients(narrow, [batch_of(4, seed=5)], None)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError) as shapes:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_out_of_memory(shapes.value)
    with pytest.raises(RuntimeError) as memory:
        torch.empty(1 << 60)
    assert is_out_of_memory(memory.value)
    assert is_out_of_memory(MemoryError())
    model = model_of("rnn")
    model.decoder.register_forward_hook(lambda *_: torch.ones(2, 3) @ torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="shapes"):
        gradients(model, [batch_of(4, seed=5)], None)


SQUEEZE = """
# Forward and backward in children that have ever more memory: what do they say where it is not enough?
import itertools, os, resource
import torch
from dragoman.core.types import Batch
from dragoman.core.registry import Part
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.inference.device import is_out_of_memory
torch.set_num_threads(1)
for kind, megabytes in itertools.product(("lstm", "gru", "transformer"), MEGABYTES):
    if os.fork() == 0:
        options = {"layers": 1, "heads": 2} if kind == "transformer" else {"cell": kind}
        part = Part("transformer" if kind == "transformer" else "rnn", options)
        model = Seq2Seq(50, 50, width=64, tie="none", encoder=part, decoder=part)
        ids, lengths = torch.randint(4, 50, (64, 40)), torch.full((64,), 40)
        size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + (megabytes << 20),) * 2)
        try:
            model.loss(Batch(ids, lengths, ids, lengths)).backward()
            word = "fine"
        except Exception as error:
            word = "split" if is_out_of_memory(error) else f"unknown {type(error).__name__}: {error}"
        os.write(1, f"{kind} {megabytes} {word[:300]}".replace("\\n", " ").encode() + b"\\n")
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_whatever_part_of_torch_runs_out_of_memory_is_recognized():
    """The allocator, oneDNN and the standard library each have their own words for it."""
    megabytes = [0, *range(2, 50, 8), 1000]
    command = [sys.executable, "-c", f"MEGABYTES = {megabytes}\n{SQUEEZE}"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout.splitlines()
    # A child may also be ended by the C++ runtime, where a thread finds no memory to begin with; it says nothing then.
    words = {(kind, int(size)): word for kind, size, word in (line.split(" ", 2) for line in lines)}
    assert set(words.values()) == {"split", "fine"}
    for kind in ("lstm", "gru", "transformer"):
        assert words[kind, 1000] == "fine"
        assert "split" in [words.get((kind, size)) for size in megabytes]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_training_goes_on_where_memory_runs_out(tiny, shell, metrics, tmp_path):
    """A limit on the address space, and batches of which some rows would fit: split, said, kept for the next time."""
    made = tiny("rnn", pairs=2000, longest=40)
    sets = [
        "training.batch_tokens=16000",
        "training.steps=4",
        "training.save_every=2",
        "data.valid=null",
        "model.encoder.dropout=0.0",
        "model.decoder.dropout=0.0",
    ]
    # How much is too little depends on what the process has mapped already.
    for megabytes in (200, 170, 140, 115, 95, 80):
        run = tmp_path / f"run-{megabytes}"
        command = shell(made.command(run, *sets), memory=megabytes << 20)
        assert command.wait() in (0, ABORTED), command.output
        if command.wait() == 0 and "split" in (run / "train.log").read_text():
            break
    assert "split" in (run / "train.log").read_text()
    limit = json.loads((model_folder.list_checkpoints(run)[-1] / "training.json").read_text())["max_area"]
    assert 0 < limit < 16000

    reports = list(training.run(made.config(*sets), tmp_path / "whole"))  # with all the memory there is
    assert not any(report.kind == "split" for report in reports)
    mine, theirs = ([line["loss"] for line in metrics(tmp_path / name)] for name in (run.name, "whole"))
    assert mine == pytest.approx(theirs, rel=1e-4)

    for report in training.run(made.config(*sets, "training.steps=6"), run, allow_change=["training.steps"]):
        assert report.kind != "split"  # the limit is known already
    assert json.loads((model_folder.list_checkpoints(run)[-1] / "training.json").read_text())["max_area"] == limit


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_pair_too_long_for_the_memory_ends_with_an_error_message(tiny, shell, tmp_path):
    made = tiny("rnn", pairs=30)
    line = "abcdefgh" * 500
    (made.folder / "train.tsv").write_text(f"{line}\t{line}\n" * 4)
    sets = ["data.valid=null", "data.max_source=5000", "data.max_target=5000"]
    for megabytes in (100, 110, 120):
        command = shell(made.command(tmp_path / f"run-{megabytes}", *sets), memory=megabytes << 20)
        if command.wait() != ABORTED:
            break
    assert command.wait() == 2, command.output
    assert re.search(r"a single pair of 4,0\d\d tokens", command.output)
    assert "Traceback" not in command.output
