"""The reference path, the search's own loop on the model's own step, for what an engine leaves to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from dragoman.core.types import Hypothesis
from dragoman.engines.length_batches import GPU_BATCH_TOKENS, batch_by_length, pad_ids
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.search import Search, SearchConstraints


def constraints_blocker(constraints: SearchConstraints) -> str | None:
    """Why no engine decodes under such constraints (processors, traces, streaming); None: one may."""
    if constraints.processors:
        return "constraints on the output need logits processors"
    if constraints.traces is not None:
        return "a trace of the beam is asked for"
    return "tokens are streamed" if constraints.on_token is not None else None


def decode_with_reference(
    model: Seq2Seq, sources: Sequence[Sequence[int]], search: Search, constraints: SearchConstraints
) -> list[list[Hypothesis]]:
    """Run the search itself on the model itself, in batches of similar length; of constraints, only lengths count."""
    device = model.output.weight.device

    def decode(ids: Tensor, lengths: Tensor, limits: SearchConstraints) -> list[list[Hypothesis]]:
        memory = model.encode(ids.to(device), lengths.to(device))
        return search(model.step, partial(model.start, memory), limits)

    return decode_in_batches(sources, constraints, device, decode, GPU_BATCH_TOKENS // search.num_hypotheses)


def decode_in_batches(
    sources: Sequence[Sequence[int]],
    constraints: SearchConstraints,
    device: torch.device,
    decode: Callable[[Tensor, Tensor, SearchConstraints], list[list[Hypothesis]]],
    max_tokens: int,
    max_size: int | None = None,
) -> list[list[Hypothesis]]:
    """The n-best list of every source, from `decode` of padded ids, their lengths and constraints."""
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for rows in batch_by_length([*map(len, sources)], max_tokens, max_size):
        nbest_lists = decode(*pad_ids([sources[i] for i in rows]), constraints.select_lengths(rows, device))
        for i, nbest in zip(rows, nbest_lists, strict=True):
            results[i] = nbest
    return results
