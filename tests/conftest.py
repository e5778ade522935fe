"""One thread everywhere: with anything else on the machine, two are slower than one, and resume is exact for one count.

Every test has a seed of its own, made of the run's (DRAGOMAN_TEST_SEED) and its name. `make test` has the same run seed
each time, so that it fails for a change and not by chance; DRAGOMAN_TEST_SEED=fresh (as in `make test-long`) draws one,
printed where a test fails. No test may hold for one seed only.
"""

from __future__ import annotations

import atexit
import os
import random
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in the processes tests start
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="dragoman-cache-")  # converted copies; removed at the end

from collections import Counter

import pytest
import torch
from hypothesis import settings

atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

FRESH = os.environ.get("DRAGOMAN_TEST_SEED") == "fresh"
RUN = secrets.randbits(32) if FRESH else int(os.environ.get("DRAGOMAN_TEST_SEED") or 1)

settings.register_profile("dragoman", deadline=None, max_examples=30, derandomize=not FRESH)
settings.load_profile("dragoman")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


# -- which process of `pytest -n` runs what ----------------------------------------------------------------------------

# Folders whose tests share something that takes seconds to make: each is one piece of work. Elsewhere a file is one.
TOGETHER = ("browser", "cli", "serve")
# Files whose tests share nothing and take long: each test is one.
APART = ("test_every_recipe.py", "test_learning.py", "test_learning_pairs.py")
# What takes longest begins first, so that no process is left alone with it in the end.
FIRST = ("serve", "cli", "training", "recipes", "browser", "tests", "nn")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {folder: place for place, folder in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(FIRST)))


def work_of(nodeid: str) -> str:
    """The piece of work that a test belongs to, by its name."""
    path = PurePosixPath(nodeid.partition("::")[0])
    if path.parent.name in TOGETHER:
        return path.parent.name
    return nodeid if path.name in APART else str(path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By folder, file or test. (xdist's groups by mark are lost on pytest 9.2, whose items have no `_nodeid`.)"""
    from xdist.scheduler import LoadScopeScheduling

    class ByWork(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return work_of(nodeid)

    config.option.loadscopereorder = False  # the order above, not by the number of tests
    return ByWork(config, log)


# -- every test --------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


def begin(name: str) -> None:
    """What `torch` and `random` draw from here on; tests that need a number take `torch.initial_seed()`."""
    seed = int.from_bytes(blake2b(f"{RUN} {name}".encode(), digest_size=4).digest())
    torch.manual_seed(seed)
    random.seed(seed)


@pytest.fixture(autouse=True)
def own_seed(request: pytest.FixtureRequest) -> None:
    print(f"DRAGOMAN_TEST_SEED={RUN}")
    begin(request.node.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """What several tests share is made with a seed of its own, whichever of them comes first."""
    if fixturedef.scope != "function":
        begin(f"{fixturedef.baseid} {fixturedef.argname}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run: how many tests were skipped, and why."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in reporter.stats.get("skipped", [])
    )
    if reasons:
        reporter.write_line("skipped: " + "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common()))
