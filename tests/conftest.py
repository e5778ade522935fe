"""One thread everywhere: with anything else on the machine, two are slower than one, and resume is exact for one count.

Every test begins with a fresh seed, printed where it fails; DRAGOMAN_TEST_SEED brings one back.
"""

from __future__ import annotations

import os
import secrets

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in the processes tests start

import pytest
import torch
from hypothesis import settings

settings.register_profile("dragoman", deadline=None, max_examples=30)
settings.load_profile("dragoman")


# Folders whose tests share something that takes seconds to make: each goes to one process of `pytest -n` as a whole.
TOGETHER = ("browser", "cli", "serve")


def pytest_itemcollected(item: pytest.Item) -> None:
    if (folder := item.path.parent.name) in TOGETHER:
        item.add_marker(pytest.mark.xdist_group(folder))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_seed() -> None:
    seed = int(os.environ.get("DRAGOMAN_TEST_SEED") or secrets.randbits(32))
    print(f"DRAGOMAN_TEST_SEED={seed}")
    torch.manual_seed(seed)
