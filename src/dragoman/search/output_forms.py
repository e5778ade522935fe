"""Outputs of a given form: one of some sequences, or a text that matches a regular expression.

Python's `re` cannot say whether a prefix can still become a match; the package `regex` can (partial=True), and exactly
so for literals, classes, groups, alternatives and greedy quantifiers, which is what we allow. (Its lazy quantifiers are
not exact: it takes "ac" for the beginning of a match of `a+?a`. For a whole match lazy and greedy are the same.) It
tries in sequence what could be tried at once, so a pattern can be very slow; one that takes longer than MAX_SECONDS for
one text is refused. And every piece that begins with a fitting character is tried: with 32,000 pieces a pattern like
`.*` costs 0.1 s for each new text, one of digits nothing.

A text can be the beginning of a match that no pieces complete (the vocabulary lacks a character). Then no token is
allowed, every log p is −∞, and the hypothesis cannot continue.

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
from dragoman.search.logits_processors import check_token_ids

MAX_SECONDS = 1.0  # seconds to match one text
CACHED = 1024  # texts whose next tokens are cached, of V bytes each

ESCAPES_AND_CLASSES = regex.compile(r"\\[^1-9g]|\[\^?\]?(?:\\.|[^\]\\])*\]", regex.DOTALL)
INEXACT = regex.compile(r"[*+?}][?+]|\(\?(?!:)|\(\*|\\")  # lazy, possessive, (?…) but (?:…), verbs, \1 and \g<1>

Trie = dict[int, Any]  # token → the tree below it; </s> where a sequence ends


class ChoicesProcessor:
    """Restricts the output of sentence i to one of sequences[i], or of the only entry: a walk through their trie."""

    def __init__(self, sequences: Sequence[Sequence[Sequence[int]]]) -> None:
        for choices in sequences:
            if not choices:
                raise PartError("a sentence has no choices for its output; give at least one")
            check_token_ids(choices, {PAD, BOS, EOS}, "a choice")
        self.tries = [build_trie(choices) for choices in sequences]

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """Forbid all tokens that do not continue one of the sentence's sequences."""
        allowed = [
            (b, k, token)
            for b, (row, hypotheses) in enumerate(zip(rows.tolist(), history.tolist(), strict=True))
            for k, tokens in enumerate(hypotheses)
            for token in self.next_nodes(tokens, row)
        ]
        masked = torch.full_like(log_p, -math.inf)
        if allowed:
            b, k, v = torch.tensor(allowed, device=log_p.device).T
            masked[b, k, v] = log_p[b, k, v]
        return masked

    def next_nodes(self, tokens: Sequence[int], row: int) -> Trie:
        """Return the tokens allowed after some tokens, with the tries below them; {} if they begin no sequence."""
        node = self.tries[row if len(self.tries) > 1 else 0]
        for token in tokens:
            node = node.get(token, {})
        return node


def build_trie(sequences: Sequence[Sequence[int]]) -> Trie:
    """Build a trie of the sequences; </s> marks where one ends."""
    root: Trie = {}
    for sequence in sequences:
        node = root
        for token in sequence:
            node = node.setdefault(token, {})
        node[EOS] = {}
    return root


class PatternProcessor:
    """Restricts the text of an output to a regular expression: with every token it must be able to match as a whole.

    `pieces` is the text of every id, None for specials and other ids without text. With `drop_space` a leading space
    does not count: the piece of a first word has one, which decoding removes.
    """

    def __init__(self, pattern: str, pieces: Sequence[str | None], *, drop_space: bool = False) -> None:
        self.pattern, self.pieces, self.drop_space = compile_pattern(pattern), pieces, drop_space
        self.by_first: dict[str, list[tuple[int, str]]] = {}  # many pieces are out by their first character
        for token, piece in enumerate(pieces):
            if piece is not None and token != EOS:
                self.by_first.setdefault(piece[:1], []).append((token, piece))
        self.cached_mask = lru_cache(CACHED)(self.allowed_mask)

    def __call__(self, log_p: Tensor, history: Tensor, rows: Tensor) -> Tensor:
        """Forbid tokens after which the text cannot match, and </s> before it matches; `rows` is ignored."""
        texts = [self.text(tokens) for hypotheses in history.tolist() for tokens in hypotheses]
        allowed = torch.stack([self.cached_mask(text) for text in texts]).to(log_p.device)  # (B K, pieces)
        V = log_p.shape[2]  # a model that copies may know more ids than there are pieces
        allowed = torch.nn.functional.pad(allowed, (0, V - allowed.shape[1])).view(log_p.shape)
        return log_p.masked_fill(~allowed, -math.inf)

    def text(self, tokens: Sequence[int]) -> str | None:
        """Return the joined text of some tokens; None if one of them has no text."""
        pieces = [self.pieces[token] if token < len(self.pieces) else None for token in tokens]
        return None if None in pieces else "".join(piece for piece in pieces if piece is not None)

    def allowed_mask(self, text: str | None) -> Tensor:
        """Return which tokens are allowed after a text, (pieces,); none after None."""
        allowed = torch.zeros(len(self.pieces), dtype=torch.bool)
        if text is not None:
            allowed[EOS] = self.matches(text)
            for first, group in self.by_first.items():
                if self.matches(text + first, partial=True):
                    fits = [token for token, piece in group if self.matches(text + piece, partial=True)]
                    allowed[fits] = True
        return allowed

    def matches(self, text: str, partial: bool = False) -> bool:
        """Return whether a text matches the pattern, or with `partial` can still become a match."""
        text = text.removeprefix(" ") if self.drop_space else text
        try:
            return bool(self.pattern.fullmatch(text, partial=partial, timeout=MAX_SECONDS))
        except TimeoutError:
            raise PartError(
                f"the pattern {self.pattern.pattern!r} takes longer than {MAX_SECONDS:g} s to match {text[:40]!r}; "
                "write it so that a text can match in one way only"
            ) from None


def compile_pattern(pattern: str) -> Any:
    """Compile a regular expression; raise PartError for constructs whose partial matches are inexact."""
    simplified = ESCAPES_AND_CLASSES.sub("x", pattern)
    if inexact := INEXACT.search(simplified):
        raise PartError(
            f"the pattern {pattern!r} has {inexact[0]!r}; allowed are characters, classes, (…), (?:…), | and the "
            "quantifiers *, +, ?, {m,n}"
        )
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise PartError(f"the pattern {pattern!r} is no regular expression: {error}") from None
