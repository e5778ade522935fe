"""Rows of any state: the two operations of a search, on any nesting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.core import tree


class Pair(NamedTuple):
    a: Tensor
    b: Any


@dataclass
class Nest:
    x: Tensor
    inner: list[Any]
    pair: Pair
    named: dict[str, Any]
    nothing: None = None
    label: str = "kept"


@dataclass
class Clever:
    """A leaf that knows its rows by itself."""

    log: tuple[Any, ...] = ()

    def select(self, rows: Tensor) -> Clever:
        return Clever((*self.log, ("select", rows.tolist())))

    def reorder(self, parents: Tensor) -> Clever:
        return Clever((*self.log, ("reorder", parents.tolist())))


def nest() -> Nest:
    numbers = iter(torch.arange(10_000).split(100))

    def leaf(*shape: int) -> Tensor:
        return next(numbers)[: torch.Size(shape).numel()].view(shape)

    return Nest(
        leaf(3, 2), [leaf(3, 2, 4), (leaf(3, 1, 5), Clever())], Pair(leaf(3, 1), [leaf(3, 2)]), {"k": leaf(3, 2, 2, 2)}
    )


def leaves(state: Any) -> list[Any]:
    found: list[Any] = []
    tree.map(lambda leaf: found.append(leaf) or leaf, state)
    return found


def test_map_reaches_every_tensor_and_keeps_the_nesting() -> None:
    state = nest()
    doubled = tree.map(lambda x: x * 2 if isinstance(x, Tensor) else x, state)
    assert isinstance(doubled, Nest)
    assert isinstance(doubled.pair, Pair)
    assert isinstance(doubled.inner[1], tuple)
    assert (doubled.nothing, doubled.label) == (None, "kept")
    assert len(leaves(state)) == 7
    for old, new in zip(leaves(state), leaves(doubled), strict=True):
        assert old == new if isinstance(old, Clever) else torch.equal(old * 2, new)


def test_the_given_state_is_left_as_it_was() -> None:
    state, same = nest(), nest()
    tree.select(state, torch.tensor([1]))
    tree.reorder(state, torch.tensor([[1, 0]] * 3))
    assert all(
        a == b if isinstance(a, Clever) else torch.equal(a, b) for a, b in zip(*map(leaves, (state, same)), strict=True)
    )


def test_select_keeps_these_sentences_in_this_order() -> None:
    rows = [2, 0, 2]
    for old, new in zip(leaves(nest()), leaves(tree.select(nest(), torch.tensor(rows))), strict=True):
        if isinstance(new, Clever):
            assert new.log == (("select", rows),)
        else:
            assert torch.equal(new, torch.stack([old[row] for row in rows]))


def test_reorder_follows_the_parents_and_leaves_shared_leaves_alone() -> None:
    parents = [[1, 1, 0], [0, 1, 0], [1, 0, 0]]
    for old, new in zip(leaves(nest()), leaves(tree.reorder(nest(), torch.tensor(parents))), strict=True):
        if isinstance(new, Clever):
            assert new.log == (("reorder", parents),)
        elif old.shape[1] == 1:
            assert torch.equal(new, old)
        else:
            assert torch.equal(
                new, torch.stack([torch.stack([old[b][p] for p in row]) for b, row in enumerate(parents)])
            )


def test_no_sentences_is_a_selection_too() -> None:
    assert all(
        x.shape[0] == 0
        for x in leaves(tree.select(nest(), torch.tensor([], dtype=torch.long)))
        if isinstance(x, Tensor)
    )
