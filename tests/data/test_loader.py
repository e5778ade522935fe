"""Workers and threads change nothing but the speed, and whatever ends, ends at once and by name."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.codec_learning import learn_codec

from dragoman.core.errors import DataError
from dragoman.core.registry import Part
from dragoman.core.types import Batch, Example
from dragoman.data.batching import BatchStream, Cursor
from dragoman.data.loader import load_batches
from dragoman.data.store import builder
from dragoman.text.codec import Codec

START = Cursor()
DEADLINE = 20.0  # seconds


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """A test that hangs fails."""

    def late(*_: object) -> None:
        raise TimeoutError(f"this took more than {DEADLINE} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


TEXTS = [" ".join(["one two three four"] * (1 + i % 4)) + f" {i}" for i in range(60)]


def learned(name: str, **options: object) -> Codec:
    return learn_codec(Part(name, options), Part(name, options), True, "nfc", TEXTS, TEXTS, ["<to:de>"])


def batches_of(folder: Path, codec: Codec, lang: str | None = None) -> BatchStream:
    """Endless batches of a few rows; one line bears a language tag if one is given."""
    examples = [Example(text, text, None, lang if i == 50 else None, line=i) for i, text in enumerate(TEXTS)]
    part = builder.build_store(examples, codec, folder, max_source=200, max_target=200, keep_text=codec.is_stochastic)
    return BatchStream([(part, 1.0)], codec, tokens=200, seed=1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> BatchStream:
    return batches_of(tmp_path_factory.mktemp("plain") / "store", learned("characters"))


@pytest.fixture(scope="module")
def sampling(tmp_path_factory) -> BatchStream:
    codec = learned("bpe", size=50, dropout=0.5, byte_fallback=False)
    return batches_of(tmp_path_factory.mktemp("sampling") / "store", codec, "de")


def take(batches: BatchStream, cursor: Cursor, workers: int, count: int, ahead: int = 0) -> list[tuple[Batch, Cursor]]:
    with contextlib.closing(load_batches(batches, cursor, workers, prefetch=ahead)) as stream:
        return list(itertools.islice(stream, count))


def crew() -> dict[str, int]:
    """The pids of the workers by name."""
    return {child.name: child.pid for child in multiprocessing.active_children() if child.name.startswith("loader-")}


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader-")]


def ends(pid: int, within: float = DEADLINE) -> bool:
    """Whether a process ends within some seconds; one that is gone has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)


def assert_same(one: list[tuple[Batch, Cursor]], other: list[tuple[Batch, Cursor]]) -> None:
    assert [(batch.lines, after) for batch, after in one] == [(batch.lines, after) for batch, after in other]
    for (a, _), (b, _) in zip(one, other, strict=True):
        assert torch.equal(a.source, b.source)
        assert torch.equal(a.target, b.target)
        assert torch.equal(a.source_lengths, b.source_lengths)
        assert torch.equal(a.target_lengths, b.target_lengths)


# -- the same stream ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_stream_is_the_same_with_any_number_of_workers(sampling, workers):
    count = 2 * sampling.count_batches(0) + 5
    expected = list(itertools.islice(sampling.batches_from(START), count))
    assert expected[-1][1].epoch == 2
    assert_same(take(sampling, START, 0, count), expected)
    assert_same(take(sampling, START, workers, count), expected)
    middle = count // 2
    assert_same(take(sampling, expected[middle - 1][1], workers, count - middle), expected[middle:])


def test_workers_serve_plain_ids_too(plain):
    assert_same(take(plain, START, 2, 40), take(plain, START, 0, 40))


@pytest.mark.parametrize(("workers", "ahead"), [(0, 1), (0, 4), (2, 2)])
def test_a_thread_that_runs_ahead_changes_nothing_in_the_stream(sampling, workers, ahead):
    expected = take(sampling, START, 0, 30)
    assert_same(take(sampling, START, workers, 30, ahead), expected)
    assert_same(take(sampling, expected[9][1], workers, 20, ahead), expected[10:])
    assert not threads()


@pytest.mark.parametrize("ahead", [0, 3])
def test_what_is_prepared_comes_with_the_cursors_of_its_batches(plain, ahead):
    where = set()

    def prepare(batch: Batch) -> list[int]:
        where.add(threading.current_thread().name)
        return batch.lines

    with contextlib.closing(load_batches(plain, START, 0, prefetch=ahead, prepare=prepare)) as stream:
        got = list(itertools.islice(stream, 30))
    assert got == [(batch.lines, after) for batch, after in take(plain, START, 0, 30)]
    assert where == {"loader-prefetch" if ahead else threading.current_thread().name}


def test_a_thread_prefetches_no_more_than_its_limit(plain):
    made, taken, lead = [], [], []

    def prepare(batch: Batch) -> int:
        made.append(batch)
        lead.append(len(made) - len(taken))
        return len(made)

    with contextlib.closing(load_batches(plain, START, 0, prefetch=3, prepare=prepare)) as stream:
        for number, _ in itertools.islice(stream, 200):
            taken.append(number)
    assert taken == list(range(1, 201))
    assert max(lead) <= 3 + 1  # and the one in the consumer's hands


def test_workers_do_not_need_torch():
    code = "import sys, dragoman.data.loader; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=DEADLINE, check=False).returncode == 0


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_named_with_its_signal(plain, victim):
    stream = load_batches(plain, START, 2)
    next(stream)
    pid = crew()[f"loader-{victim}"]
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)
    with pytest.raises(DataError, match=rf"loader worker {victim} \(pid {pid}\) was killed by SIGKILL"):
        next(stream)  # at once, whatever batches the pipes still hold
    assert not crew()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_frozen_worker_is_named_and_the_stream_ends(plain, victim):
    stream = load_batches(plain, START, 2)
    next(stream)
    pid = crew()[f"loader-{victim}"]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(DataError, match=rf"loader worker {victim} \(pid {pid}\) was frozen \(SIGSTOP\)"):
        for _ in stream:  # the pipe holds some batches, and the half of one
            pass
    assert not crew()


def test_a_worker_that_is_frozen_for_a_moment_goes_on(plain):
    with contextlib.closing(load_batches(plain, START, 1)) as stream:
        got = [next(stream)]
        os.kill(crew()["loader-0"], signal.SIGSTOP)
        os.kill(crew()["loader-0"], signal.SIGCONT)
        got += itertools.islice(stream, 99)
    assert_same(got, take(plain, START, 0, 100))


def test_a_user_error_of_a_worker_is_raised_in_order_with_its_message(sampling):
    options = {"size": 50, "dropout": 0.5, "byte_fallback": False}
    stranger = learn_codec(Part("bpe", options), Part("bpe", options), True, "nfc", TEXTS, TEXTS, [])  # knows no tag

    def until_it_fails(workers: int, seed: int) -> tuple[int, str]:
        batches = BatchStream([(sampling.stores[0], 1.0)], stranger, tokens=80, seed=seed)
        count = 0
        try:
            for _ in load_batches(batches, START, workers):
                if count == 0:  # a worker has time to come to the error, and must not end before we have read so far
                    assert not any(ends(pid, within=0.5) for pid in crew().values())
                count += 1
        except DataError as failure:
            return count, str(failure)

    seed = next(seed for seed in itertools.count() if until_it_fails(0, seed)[0] > 4)
    expected = until_it_fails(0, seed)
    assert "the language tag <to:de> was not in the training data" in expected[1]
    assert until_it_fails(1, seed) == until_it_fails(2, seed) == expected


def test_a_store_damaged_after_the_start_is_an_error_with_its_message(tmp_path):
    batches = batches_of(tmp_path / "store", learned("characters"))
    file = tmp_path / "store" / "target.ids"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"target\.ids: the file has .* bytes where .* were written"):
        take(batches, START, 2, 5)


def test_our_own_error_in_a_worker_is_no_data_error_and_shows_where(tmp_path):
    batches = batches_of(tmp_path / "store", learned("characters"))
    batches.tokens = None
    with pytest.raises(RuntimeError, match=r"(?s)loader worker 0 \(pid \d+\) failed:.*Traceback.*_batch_boundaries"):
        take(batches, START, 1, 5)


def test_an_error_of_prepare_is_raised_in_order(plain):
    def prepare(batch: Batch) -> list[int]:
        if batch.lines == bad:
            raise ValueError("too large for the device")
        return batch.lines

    bad = take(plain, START, 0, 6)[5][0].lines
    stream = load_batches(plain, START, 0, prefetch=3, prepare=prepare)
    assert len(list(itertools.islice(stream, 5))) == 5
    with pytest.raises(ValueError, match="too large for the device"):
        next(stream)
    assert not threads()


def test_an_interrupt_reaches_a_consumer_that_waits_for_the_thread(plain):
    pressed = threading.Event()

    def prepare(batch: Batch) -> Batch:
        if not pressed.is_set():  # once: a second one would hit what the first one set off
            pressed.set()
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does; signals reach the main thread
        return batch

    stream = load_batches(plain, START, 1, prefetch=2, prepare=prepare)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert not threads()
    assert not crew()


@pytest.mark.parametrize("ahead", [0, 2])
def test_closing_the_stream_ends_the_workers_and_the_thread(plain, ahead):
    stream = load_batches(plain, START, 2, prefetch=ahead)
    next(stream)
    pids = crew().values()
    assert len(pids) == 2
    assert bool(threads()) == bool(ahead)
    stream.close()
    assert not crew()
    assert not threads()
    assert all(ends(pid) for pid in pids)


def test_closing_ends_a_thread_that_waits_for_a_free_slot(plain):
    made, full = [], threading.Event()

    def prepare(batch: Batch) -> Batch:
        made.append(batch)
        if len(made) == 3:  # one for the consumer, and two ahead
            full.set()
        return batch

    stream = load_batches(plain, START, 0, prefetch=2, prepare=prepare)
    next(stream)
    assert full.wait(DEADLINE)
    stream.close()
    assert not threads()


def test_an_error_in_the_consumer_ends_the_workers(plain):
    def consume() -> None:
        for _ in load_batches(plain, START, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert not crew()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_signals_that_stop_a_training_are_left_to_the_parent(plain, name):
    expected = take(plain, START, 0, 200)
    with contextlib.closing(load_batches(plain, START, 1)) as stream:
        got = [next(stream)]
        os.kill(crew()["loader-0"], signal.Signals[name])
        got += itertools.islice(stream, 199)
    assert_same(got, expected)


SCRIPT = """
import multiprocessing, sys
from pathlib import Path
from dragoman.data.store import store
from dragoman.data.batching import BatchStream, Cursor
from dragoman.data.loader import load_batches

class Plain:
    is_stochastic = False
    modality = second_source = None

batches = BatchStream([(store.open_store(Path(sys.argv[1])), 1.0)], Plain(), tokens=200, seed=1)
stream = load_batches(batches, Cursor(), 2, prefetch=int(sys.argv[2]))
next(stream)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("kill", "ahead"), [(True, 0), pytest.param(False, 0, marks=pytest.mark.long), (False, 2)])
def test_workers_end_with_their_parent_however_it_ends(plain, kill, ahead):
    command = [sys.executable, "-c", SCRIPT, str(plain.stores[0].folder), str(ahead)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        try:
            pids = [int(pid) for pid in parent.stdout.readline().split()]
            assert len(pids) == 2
            if kill:
                parent.kill()
            else:
                parent.stdin.close()  # it comes to its end without closing the stream
            assert parent.wait(timeout=DEADLINE / 2) == (-signal.SIGKILL if kill else 0)
            assert all(ends(pid) for pid in pids)
        finally:
            parent.kill()
