"""JSON that every reader takes: it has no word for what is not finite, as the log-probability of the impossible."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """The same with null for every number that is not finite, however deep inside lists and dicts."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
