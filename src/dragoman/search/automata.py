"""Results of a given form: one of some sequences, or a text that matches a regular expression.

    AllowedTrie    the tokens are exactly one of the given sequences: the sequences as a tree, in which a hypothesis is
                   at a node and may go on to its children, or end where a sequence ends
    AllowedRegex   the text matches a pattern as a whole: a token may come next if the text with it matches already or
                   can still become a match; </s> if the text matches now

Python's `re` cannot be asked whether a beginning can still become a match; the package `regex` can (partial=True), and
exactly so for literals, classes, groups, alternatives and greedy quantifiers, which is what we allow. (Its lazy
quantifiers are not exact: "ac" is said to begin a match of `a+?a`. For a whole match lazy and greedy are the same.)
It tries in sequence what could be tried at once, so a pattern can be very slow; one that takes longer than SLOWEST
seconds for one text is refused. And every piece that begins with a fitting character is tried: with 32,000 pieces a
pattern like `.*` costs 0.1 s for each new text, one of digits nothing.

A text can be the beginning of a match that no pieces complete (the vocabulary lacks a character). Then nothing may
come next, every log p is −∞, and the hypothesis cannot go on.

B sentences, K hypotheses, t tokens so far, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import regex
import torch
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.types import BOS, EOS, PAD
from dragoman.search.logits_processors import refuse

SLOWEST = 1.0  # seconds to match one text
KEPT = 1024  # texts whose next tokens are remembered, of V bytes each

ESCAPES_AND_CLASSES = regex.compile(r"\\[^1-9g]|\[\^?\]?(?:\\.|[^\]\\])*\]", regex.DOTALL)
INEXACT = regex.compile(r"[*+?}][?+]|\(\?(?!:)|\(\*|\\")  # lazy, possessive, (?…) but (?:…), verbs, \1 and \g<1>

Trie = dict[int, Any]  # token → the tree below it; </s> where a sequence ends


class AllowedTrie:
    """The result of sentence i is one of sequences[i]; a list of one entry holds for every sentence."""

    def __init__(self, sequences: Sequence[Sequence[Sequence[int]]]) -> None:
        for ones in sequences:
            if not ones:
                raise PartError("a sentence has no sequence that its result may be; give at least one")
            refuse(ones, {PAD, BOS, EOS}, "an allowed sequence")
        self.tries = [trie(ones) for ones in sequences]

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        places = [
            (b, k, token)
            for b, (row, hypotheses) in enumerate(zip(rows.tolist(), history.tolist(), strict=True))
            for k, tokens in enumerate(hypotheses)
            for token in self.after(tokens, row)
        ]
        only = torch.full_like(log_p, -math.inf)
        if places:
            b, k, v = torch.tensor(places, device=log_p.device).T
            only[b, k, v] = log_p[b, k, v]
        return only

    def after(self, tokens: Sequence[int], row: int) -> Trie:
        """What may come after some tokens: nothing where they begin no sequence."""
        node = self.tries[row if len(self.tries) > 1 else 0]
        for token in tokens:
            node = node.get(token, {})
        return node


def trie(sequences: Sequence[Sequence[int]]) -> Trie:
    root: Trie = {}
    for sequence in sequences:
        node = root
        for token in sequence:
            node = node.setdefault(token, {})
        node[EOS] = {}
    return root


class AllowedRegex:
    """The text of the result, its pieces one after the other, matches a regular expression as a whole.

    `pieces` is the text of every id, None for specials and other ids that are no text. With `drop_space` a space at the
    very beginning is no text either: the piece of a first word brings one that decoding takes off again.
    """

    def __init__(self, pattern: str, pieces: Sequence[str | None], *, drop_space: bool = False) -> None:
        self.pattern, self.pieces, self.drop_space = compiled(pattern), pieces, drop_space
        self.by_first: dict[str, list[tuple[int, str]]] = {}  # many pieces are out by their first character
        for token, piece in enumerate(pieces):
            if piece is not None and token != EOS:
                self.by_first.setdefault(piece[:1], []).append((token, piece))
        self.remembered = lru_cache(KEPT)(self.after)

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        texts = [self.text(tokens) for hypotheses in history.tolist() for tokens in hypotheses]
        may = torch.stack([self.remembered(text) for text in texts]).to(log_p.device)  # (B K, pieces)
        V = log_p.shape[2]  # a model that copies may know more ids than there are pieces
        may = torch.nn.functional.pad(may, (0, V - may.shape[1])).view(log_p.shape)
        return log_p.masked_fill(~may, -math.inf)

    def text(self, tokens: Sequence[int]) -> str | None:
        """None where a token is no text."""
        pieces = [self.pieces[token] if token < len(self.pieces) else None for token in tokens]
        return None if None in pieces else "".join(piece for piece in pieces if piece is not None)

    def after(self, text: str | None) -> Tensor:
        """(pieces,): true for what may come after a text."""
        may = torch.zeros(len(self.pieces), dtype=torch.bool)
        if text is not None:
            may[EOS] = self.matches(text)
            for first, group in self.by_first.items():
                if self.matches(text + first, partial=True):
                    fits = [token for token, piece in group if self.matches(text + piece, partial=True)]
                    may[fits] = True
        return may

    def matches(self, text: str, partial: bool = False) -> bool:
        text = text.removeprefix(" ") if self.drop_space else text
        try:
            return bool(self.pattern.fullmatch(text, partial=partial, timeout=SLOWEST))
        except TimeoutError:
            raise PartError(
                f"the pattern {self.pattern.pattern!r} takes longer than {SLOWEST:g} s to match {text[:40]!r}; "
                "write it so that a text can match in one way only"
            ) from None


def compiled(pattern: str) -> Any:
    plain = ESCAPES_AND_CLASSES.sub("x", pattern)
    if found := INEXACT.search(plain):
        raise PartError(
            f"the pattern {pattern!r} has {found[0]!r}; allowed are characters, classes, (…), (?:…), | and the "
            "quantifiers *, +, ?, {m,n}"
        )
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise PartError(f"the pattern {pattern!r} is no regular expression: {error}") from None
