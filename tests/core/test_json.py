"""What is not finite is null, and nothing else changes."""

from __future__ import annotations

import json
import math

import pytest

from dragoman.core.json import replace_nonfinite


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_no_word_for_is_null_however_deep_it_stands(odd: float) -> None:
    assert replace_nonfinite(odd) is None
    assert replace_nonfinite({"a": odd, "b": [1.5, (odd, {"c": odd})]}) == {"a": None, "b": [1.5, [None, {"c": None}]]}


def test_all_else_stays_as_it_is() -> None:
    value = {"text": "nan", "numbers": [0, -1.5, 1e308, 10**400], "nothing": None, "true": True, "empty": [[], {}]}
    assert replace_nonfinite(value) == value
    assert json.loads(json.dumps(replace_nonfinite(value), allow_nan=False)) == value
