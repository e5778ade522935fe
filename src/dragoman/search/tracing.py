"""What a beam kept and dropped at each step, as plain data that others can draw.

    {"step": 2, "id": 23, "parent": 12, "token": 7, "log_prob": -0.4, "total": -1.9, "score": -0.6,
     "fate": "kept", "reason": ""}

`id` is unique within a sentence, the parent of the first ones is 0, the empty beginning. Fates: kept, finished (in the
pool of results, as far as that step), dropped. The best 2k extensions of a step are recorded; none below can be kept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from dragoman.search.beam import Prefixes

Trace = list[dict[str, Any]]


def record(
    traces: dict[int, Trace],
    rows: Tensor,
    t: int,
    live: Prefixes,
    extended: Prefixes,
    parents: Tensor,
    finished: Tensor,
    pool: Prefixes,
    kept: Prefixes,
    places: Tensor,
    going: Tensor,
    last: Tensor,
) -> None:
    """Write down a step of every sentence that is `going`; `last` (B,): where the length limit ends it.

    `places` (B, 1): how many there was room for.
    """
    columns = (
        live.node.gather(1, parents),
        extended.node,
        extended.tokens[:, :, t],
        extended.log_probs[:, :, t],
        extended.total,
        extended.score,
        extended.ended,
        finished,
    )
    chosen = [column[going].tolist() for column in columns]
    alive = kept.node.masked_fill(kept.total == -math.inf, -1)
    each = (rows, pool.node, alive, places[:, 0], last)
    for row, in_pool, lives, k, over, *fields in zip(*(x[going].tolist() for x in each), *chosen, strict=True):
        trace = traces.setdefault(row, [])
        for parent, node, token, log_prob, total, score, ended, among in zip(*fields, strict=True):
            if total == -math.inf:
                continue
            fate, reason = "dropped", f"not among the best {k}"
            if among:
                fate, reason = "finished", "" if node in in_pool else f"{k} that finished score higher"
            elif ended:
                reason = f"</s>, but not among the best {k}"
            elif over:
                reason = "the longest length was reached"
            elif node in lives:
                fate, reason = "kept", ""
            trace.append(
                {
                    "step": t,
                    "id": node,
                    "parent": parent,
                    "token": token,
                    "log_prob": log_prob,
                    "total": total,
                    "score": score,
                    "fate": fate,
                    "reason": reason,
                }
            )
