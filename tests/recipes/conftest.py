"""Real data sets, where they are at hand: tests that need them are skipped elsewhere."""

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder that holds the data sets by name."""
    if not HERE.is_dir():
        pytest.skip("the data sets are not here")
    return HERE
