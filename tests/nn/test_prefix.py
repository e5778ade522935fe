"""Source and target in one row without a gap, against Python's lists."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.nn.prefix import append_after_lengths, slice_after_lengths


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), spare=st.integers(0, 2), T=st.integers(0, 4))
def test_the_target_follows_the_real_source_without_padding(lengths: list[int], spare: int, T: int) -> None:
    S = max(lengths) + spare
    x, y = torch.randn(len(lengths), S, 2), torch.randn(len(lengths), T, 2)
    x[torch.arange(S) >= torch.tensor(lengths)[:, None]] = torch.nan  # padding must not get in
    found = append_after_lengths(x, torch.tensor(lengths), y)
    assert found.shape == (len(lengths), S + T, 2)
    for i, n in enumerate(lengths):
        assert found[i, : n + T].tolist() == [*x[i, :n].tolist(), *y[i].tolist()]
    assert torch.equal(slice_after_lengths(found, torch.tensor(lengths), T), y)
