"""Valid JSON for numbers that are not finite, such as the log-probability of an impossible event."""

from __future__ import annotations

import math
from typing import Any


def replace_nonfinite(value: Any) -> Any:
    """Replace every number that is not finite by None, also inside nested lists and dicts."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
