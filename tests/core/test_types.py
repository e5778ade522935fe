"""Small arithmetic of the things that pass between the parts."""

from __future__ import annotations

import pytest
import torch

from dragoman.core.types import BOS, EOS, PAD, SPECIALS, UNK, Batch, Example, Hypothesis, Memory, Segments


def batch() -> Batch:
    source = torch.tensor([[4, 5, 6, 2, 0, 0], [7, 2, 0, 0, 0, 0], [4, 4, 4, 4, 4, 2]])
    target = torch.tensor([[1, 5, 2, 0], [1, 5, 6, 2], [1, 2, 0, 0]])
    return Batch(source, torch.tensor([4, 2, 6]), target, torch.tensor([3, 4, 2]), [10, 20, 30])


def test_the_specials_stand_where_their_ids_say() -> None:
    assert [SPECIALS[i] for i in (PAD, BOS, EOS, UNK)] == ["<pad>", "<s>", "</s>", "<unk>"]


def test_the_mask_is_true_where_a_position_is_real() -> None:
    lengths = torch.tensor([2, 0, 3])
    expected = [[True, True, False], [False, False, False], [True, True, True]]
    assert Segments(lengths).mask(3).tolist() == expected
    assert Memory(torch.zeros(3, 3, 1), lengths, torch.zeros(3, 1)).mask.tolist() == expected


def test_tokens_to_predict_are_all_but_the_first_of_each_target() -> None:
    counted = sum(token != PAD for row in batch().target[:, 1:].tolist() for token in row)
    assert batch().tokens == counted == 6


def test_area_is_that_of_the_longer_side() -> None:
    assert batch().area == 18
    assert len(batch()) == 3


def test_rows_are_cut_to_the_padding_they_need() -> None:
    some = batch().slice_rows(0, 2)
    assert some.source.tolist() == [[4, 5, 6, 2], [7, 2, 0, 0]]
    assert some.target.tolist() == [[1, 5, 2, 0], [1, 5, 6, 2]]
    assert some.lines == [10, 20]
    assert batch().slice_rows(2, 3).target.tolist() == [[1, 2]]
    assert some.tokens + batch().slice_rows(2, 3).tokens == batch().tokens


def test_a_batch_moves_with_its_lines() -> None:
    moved = batch().to("cpu")
    assert torch.equal(moved.source, batch().source)
    assert moved.lines == [10, 20, 30]


def test_every_reference_is_accepted_else_the_target() -> None:
    assert Example("a", "b").accepted == ("b",)
    assert Example("a", "b", references=("b", "c")).accepted == ("b", "c")
    assert Example("a").accepted == ("",)


def test_the_total_of_a_hypothesis_is_the_sum_of_its_parts() -> None:
    assert Hypothesis([5], [-0.5, -0.25], -0.375, "end").total == pytest.approx(-0.75)
