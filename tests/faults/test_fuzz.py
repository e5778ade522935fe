"""Every parser of foreign bytes answers them or refuses them in a sentence, within bounds of memory and time.

The kept inputs are replayed here, with some changes to each; `make test-long` goes on changing them for an hour
(DRAGOMAN_FUZZ_MINUTES), guided by the lines of our code that an input reaches. An input that broke a parser is written
to DRAGOMAN_FUZZ_FOLDER (else a temporary folder): mend the parser and keep it in corpus/PARSER/WHAT-IT-IS.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import dragoman

from .commands import Finished, in_fork
from .mutation import mutate
from .parsers import PARSERS, corpus, every_kept_input, learned_tokenizer, whole_archive

MEMORY = 600 << 20  # bytes that a parser may allocate
CPU_S, REAL_S = 5.0, 60.0  # seconds that an input may take
CHANGED = 12  # inputs of each parser in `make test`, besides the kept ones
SOURCE = str(Path(dragoman.__file__).parent)

Case = tuple[str, str, bytes]  # a parser, where its input comes from, the input


def run_cases(cases: Iterator[Case], folder: Path) -> tuple[Finished, Case | None]:
    """Parse inputs in a fork with little memory; returns how it ended, and the input that it was at if it broke."""
    current = folder / "current"

    def work() -> None:
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for parser, origin, data in cases:
            current.write_bytes(f"{parser}\n{origin}\n".encode() + data)
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            signal.setitimer(signal.ITIMER_REAL, REAL_S)
            PARSERS[parser](data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        current.unlink(missing_ok=True)

    ended = in_fork(work, seconds=86_400)
    if ended.code == 0:
        return ended, None
    parser, origin, data = current.read_bytes().split(b"\n", 2)
    return ended, (parser.decode(), origin.decode(), data)


def describe(ended: Finished, case: Case | None) -> str:
    """A failure as text; its input is kept as a file."""
    assert case is not None
    parser, origin, data = case
    folder = Path(os.environ.get("DRAGOMAN_FUZZ_FOLDER") or tempfile.gettempdir())
    path = folder / f"fuzz-{parser}-{abs(hash(data)) % 10**8}"
    path.write_bytes(data)
    what = f"signal {signal.Signals(-ended.code).name}" if ended.code < 0 else ended.output[-3000:]
    return f"{parser}, {origin} ({len(data):,} bytes, kept as {path}): {what}"


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """Make what parsers share before they fork."""
    whole_archive()
    for parser in PARSERS:
        if parser.startswith("tokenizer-"):
            learned_tokenizer(parser.removeprefix("tokenizer-"))


def changed_inputs(parser: str, rng: random.Random, pool: list[bytes]) -> Iterator[bytes]:
    spec = PARSERS[parser]
    while True:
        yield mutate(rng, rng.choice(pool), pool, spec.words, spec.suffix)


def test_every_parser_has_kept_inputs_and_reads_the_whole_ones() -> None:
    for name, parser in PARSERS.items():
        whole = [data for what, data in corpus(name).items() if what.startswith("whole")]
        assert whole, name
        for data in whole:
            parser.parse(data)


def test_kept_inputs_are_answered_or_refused(tmp_path: Path) -> None:
    ended, case = run_cases(every_kept_input(), tmp_path)
    assert case is None, describe(ended, case)


def test_changed_inputs_are_answered_or_refused(tmp_path: Path) -> None:
    rng = random.Random(torch.initial_seed())

    def cases() -> Iterator[Case]:
        for parser in PARSERS:
            inputs = changed_inputs(parser, rng, [data for data in corpus(parser).values() if len(data) < 5000])
            for i in range(CHANGED):
                yield parser, f"input {i} of seed {torch.initial_seed()}", next(inputs)

    ended, case = run_cases(cases(), tmp_path)
    assert case is None, describe(ended, case)


# -- an hour -----------------------------------------------------------------------------------------------------------


class Coverage:
    """The lines of our code that inputs have reached."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()

    def of(self, parse: Callable[[], None]) -> int:
        """Run a function; how many lines it reached that none reached before."""
        before = len(self.lines)
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):  # tracing is slow
            signal.setitimer(timer, 0)
        sys.settrace(self._enter)
        try:
            parse()
        finally:
            sys.settrace(None)
        return len(self.lines) - before

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(SOURCE) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


@pytest.mark.long
@pytest.mark.parametrize("parser", PARSERS)
def test_an_hour_of_changed_inputs_is_answered_or_refused(parser: str, tmp_path: Path) -> None:
    """Time is divided between the parsers. What reaches new lines is changed further."""
    seconds = 60 * float(os.environ.get("DRAGOMAN_FUZZ_MINUTES") or 60) / len(PARSERS)
    rng, coverage = random.Random(torch.initial_seed()), Coverage()
    pool = list(corpus(parser).values())
    end, count = time.monotonic() + seconds, 0

    def cases() -> Iterator[Case]:
        nonlocal count
        inputs = changed_inputs(parser, rng, pool)
        while time.monotonic() < end:
            data = next(inputs)
            count += 1
            yield parser, f"input {count} of seed {torch.initial_seed()}", data
            if count % 10 == 0 and coverage.of(lambda data=data: PARSERS[parser](data)):  # type: ignore[misc]
                pool.append(data)

    ended, case = run_cases(cases(), tmp_path)
    assert case is None, describe(ended, case)
