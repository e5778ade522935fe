"""What the results of some sources must keep to: how long they may be, and rules over their tokens.

    longest = ⌊ratio · S⌋ + extra          shortest = max(⌊shortest_ratio · S⌋, shortest)

S is what counts of a source: its tokens, or the states made of a medium's positions. What was asked for a source goes
before the config, and the positions that the decoder has go before both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.inference.constraints import Constraints, room, rules
from dragoman.inference.inputs import Reading
from dragoman.search import Limits

NOTHING = Constraints()


def limits_for(
    reading: Reading,
    lengths: Tensor,
    numbers: list[int],
    wishes: Sequence[Constraints],
    sources: Sequence[str],
    trace: bool = False,
) -> Limits:
    """The limits of some sources of these lengths, as the config and the wishes have it."""
    options, codec, model = reading.config.generation, reading.codec, reading.model
    if codec.modality is not None:
        lengths = torch.tensor([reading.counted(n) for n in lengths.tolist()], device=lengths.device)
    longest = (lengths * options.ratio).long() + options.extra
    shortest = (lengths * options.shortest_ratio).long().clamp(min=options.shortest)
    for i, wish in enumerate(wishes):
        if wish == NOTHING:  # by far the most: each line below waits for the device
            continue
        needed = room(wish, sources[i], codec)
        longest[i] = longest[i].clamp(min=needed) if wish.longest is None else wish.longest
        if wish.shortest is not None:
            shortest[i] = wish.shortest
    longest = torch.maximum(longest, shortest.clamp(min=1))
    reach = model.longest_target
    if reach is not None:
        longest = torch.minimum(longest, reach - 1 - (lengths if model.is_decoder_only else 0 * lengths))
        longest = longest.clamp(min=1)
    shortest = torch.minimum(shortest, longest)
    found = rules(wishes, sources, codec, options.no_repeat, options.repetition, options.unknown)
    return Limits(longest, shortest, numbers, found, {} if trace else None)


def for_each(constraints: Constraints | Sequence[Constraints] | None) -> Iterator[Constraints]:
    """The constraints of every source: the same for all, or one after the other."""
    if not isinstance(constraints, Sequence):
        yield from itertools.repeat(constraints or NOTHING)
        return
    yield from constraints
    raise UserError(f"there are more sources than sets of constraints, {len(constraints)}; give one for each, or one")
