"""The tables of docs/interop.md and the tests behind them."""

from __future__ import annotations

import pytest
from tests.interop import support_matrix
from tests.interop.support_matrix import BEGIN, END, PAGE, ROOT, TABLES, Outcomes, row_name


def test_every_row_is_on_the_page_and_none_failed() -> None:
    block = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in block.splitlines() if line.startswith("| ")]
    assert rows == [name for table in TABLES for name in (table.heading, *map(row_name, table.rows))]
    assert "failed" not in block


@pytest.mark.parametrize("name", support_matrix.tests_of(TABLES))
def test_every_cell_names_a_test_that_exists(name: str) -> None:
    file, _, function = name.partition("::")
    source = (ROOT / "tests/interop" / file).read_text(encoding="utf-8")
    assert f"def {function.partition('[')[0]}(" in source


def test_a_cell_is_shown_only_if_all_parameters_of_its_tests_passed() -> None:
    outcomes = Outcomes()
    outcomes.outcomes = {"a": "passed", "b[x]": "passed", "b[y]": "skipped", "c[x]": "failed", "c[y]": "passed"}
    assert [outcomes.of(name) for name in ("a", "b", "b[x]", "c", "d")] == [
        "passed",
        "skipped",
        "passed",
        "failed",
        "failed",
    ]
