"""Decoding states of any shape: nested dataclasses, tuples, lists and dicts of tensors, handled leaf by leaf.

Every tensor of a decoder's state starts with the dimensions (sentence, hypothesis). A second dimension of 1 is shared
by all hypotheses of a sentence. So a search needs two operations for any decoder: `select` in dimension 0 and `reorder`
in dimension 1. A leaf may have its own methods of these names, such as a cache with an ancestry table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


def map(f: Callable[[Any], Any], tree: T) -> T:
    """The same nesting with f applied to every tensor, and to every leaf with its own `select` and `reorder`."""
    import torch

    if isinstance(tree, torch.Tensor) or hasattr(tree, "reorder"):
        return f(tree)  # type: ignore[no-any-return]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {field.name: map(f, getattr(tree, field.name)) for field in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **fields)
    if isinstance(tree, tuple):
        items = [map(f, item) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, list):
        return [map(f, item) for item in tree]  # type: ignore[return-value]
    if isinstance(tree, dict):
        return {key: map(f, item) for key, item in tree.items()}  # type: ignore[return-value]
    return tree


def select(state: T, rows: Tensor) -> T:
    """The sentences `rows` (N,) of a state, in that order."""
    import torch

    return map(lambda leaf: leaf[rows] if isinstance(leaf, torch.Tensor) else leaf.select(rows), state)


def reorder(state: T, parents: Tensor) -> T:
    """The state in which hypothesis k of sentence b continues hypothesis parents[b, k]; parents (B, K)."""
    import torch

    sentences = torch.arange(parents.shape[0], device=parents.device)[:, None]  # (B, 1)

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x.reorder(parents)
        return x if x.shape[1] == 1 else x[sentences, parents]

    return map(leaf, state)
