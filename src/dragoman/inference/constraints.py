"""What a result must keep to, in words, and the rules over tokens that follow from it.

    Constraints(prefix="Sehr geehrte", require=("Frau Meier",), forbid=("du",), pattern=r"[^0-9]*")

Phrases are split by the target's tokenizer as they would be in a text of their own. One set of constraints serves all
sources, or each source has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import SPECIALS, UNK
from dragoman.search import Rule
from dragoman.search.automata import AllowedRegex, AllowedTrie
from dragoman.search.force_phrases import Required
from dragoman.search.logits_processors import Forbidden, NoRepeat, NoUnknown, Prefix, RepetitionPenalty
from dragoman.text.codec import Codec


@dataclass(frozen=True)
class Constraints:
    """What a result must begin with, hold, lack or match; lengths in tokens."""

    prefix: str = ""
    require: tuple[str, ...] = ()
    ordered: bool = False  # the required phrases in this order
    forbid: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()  # one of these texts, and nothing else
    pattern: str = ""  # a regular expression that the whole text matches
    shortest: int | None = None
    longest: int | None = None

    def __post_init__(self) -> None:
        for name in ("require", "forbid", "choices"):
            if isinstance(getattr(self, name), str):  # whose letters would be the phrases
                raise UserError(f"{name} is a list of texts; for one text give a list with one: [text]")
        if (self.shortest or 0) < 0:
            raise UserError(f"the shortest length is {self.shortest}; it must be 0 or more")
        if self.longest is not None and self.longest < max(self.shortest or 0, 1):
            least = f"the shortest, {self.shortest}" if self.shortest else "1"
            raise UserError(f"the longest length is {self.longest}; it must be at least {least}")


class OnlyFor:
    """A rule for the sentences at some places; the others are left as they are."""

    def __init__(self, rule: Rule, places: Sequence[int], count: int) -> None:
        self.rule = rule
        self.number = torch.full((count,), -1)  # of each sentence among those of the rule
        self.number[list(places)] = torch.arange(len(places))

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        self.number = self.number.to(rows.device)  # once
        number = self.number[rows]
        mine = (number >= 0).nonzero()[:, 0]
        if len(mine):
            log_p = log_p.clone()
            log_p[mine] = self.rule(log_p[mine], history[mine], number[mine])
        return log_p


def rules(
    wishes: Sequence[Constraints],
    sources: Sequence[str],
    codec: Codec,
    no_repeat: int,
    repetition: float,
    unknown: bool,
) -> list[Rule]:
    """The rules of some sentences; none where nothing is asked."""
    found: list[Rule] = []

    def each(texts: Callable[[Constraints], Sequence[str]]) -> list[list[list[int]]]:
        pairs = zip(wishes, sources, strict=True)
        return [[tokens(codec, text, source) for text in texts(wish)] for wish, source in pairs]

    if any(wish.prefix for wish in wishes):
        found.append(Prefix([one[0] for one in each(lambda wish: [wish.prefix])]))
    if any(wish.forbid for wish in wishes):
        pairs = zip(wishes, sources, strict=True)  # what the vocabulary lacks cannot be said anyway
        said = [[codec.encode_target(text, source=source)[:-1] for text in wish.forbid] for wish, source in pairs]
        found.append(Forbidden([[ids for ids in phrases if UNK not in ids] for phrases in said]))
    if any(wish.choices for wish in wishes):
        places = [i for i, wish in enumerate(wishes) if wish.choices]
        every = each(lambda wish: wish.choices)
        found.append(OnlyFor(AllowedTrie([every[i] for i in places]), places, len(wishes)))
    if patterns := {wish.pattern for wish in wishes} - {""}:
        pieces, drops = surfaces(codec)
        for pattern in sorted(patterns):
            places = [i for i, wish in enumerate(wishes) if wish.pattern == pattern]
            found.append(OnlyFor(AllowedRegex(pattern, pieces, drop_space=drops), places, len(wishes)))
    if no_repeat:
        found.append(NoRepeat(no_repeat))
    if repetition != 1.0:
        found.append(RepetitionPenalty(repetition))
    if not unknown:
        found.append(NoUnknown())
    if any(wish.require for wish in wishes):  # last: what else is forbidden cannot be required
        found.append(Required(each(lambda wish: wish.require), [wish.ordered for wish in wishes]))
    return found


def room(wish: Constraints, source: str, codec: Codec) -> int:
    """The tokens a result may need for what is asked of it, however short the source is."""

    def count(text: str) -> int:
        return len(codec.encode_target(text, source=source)) - 1

    return max(count(wish.prefix) + sum(map(count, wish.require)), *map(count, wish.choices), 0)


def tokens(codec: Codec, text: str, source: str) -> list[int]:
    """A phrase as tokens; one that the model has no words for cannot be asked for."""
    ids = codec.encode_target(text, source=source)[:-1]
    if UNK in ids:
        raise UserError(f"'{text}' holds something that the model's vocabulary lacks, so no result can hold it")
    return ids


def surfaces(codec: Codec) -> tuple[list[str | None], bool]:
    """What each token adds to a text, None for specials: found by decoding it behind another.

    And whether a first token adds less, since decoding drops the space that it begins with.
    """
    first = len(SPECIALS) + len(codec.target.extra)
    anchor = codec.target.decode([first])
    found: list[str | None] = [None] * len(codec.target)
    drops = False
    for id in range(first, len(codec.target)):
        both = codec.target.decode([first, id])
        found[id] = both.removeprefix(anchor) if both.startswith(anchor) and "\ufffd" not in both else None
        drops = drops or (found[id] == f" {codec.target.decode([id])}")
    return found, drops
