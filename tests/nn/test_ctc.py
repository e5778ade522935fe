"""The CTC loss against all alignments, and its place in a model's loss."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby, product

import pytest
import torch
from torch import Tensor

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, Batch, Memory
from dragoman.nn.ctc import CTC
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.heads import heads
from dragoman.nn.seq2seq import Seq2Seq

V, D = 6, 5


def a_batch(targets: list[list[int]], source_lengths: list[int]) -> Batch:
    lengths = torch.tensor([len(target) + 2 for target in targets])
    rows = [[BOS, *target, EOS, *[PAD] * (int(lengths.max()) - len(target) - 2)] for target in targets]
    source = torch.randint(4, 9, (len(targets), max(source_lengths)))
    return Batch(source, torch.tensor(source_lengths), torch.tensor(rows), lengths)


def enumerated(log_p: Tensor, target: list[int]) -> float:
    """−log Σ of all alignments of (S, V) that read as the target."""
    total = 0.0
    for alignment in product(range(V), repeat=len(log_p)):
        if [token for token, _ in groupby(alignment) if token != PAD] == target:
            total += math.exp(sum(float(log_p[j, token]) for j, token in enumerate(alignment)))
    return -math.log(total)


@torch.no_grad()
def test_the_loss_is_that_of_all_alignments() -> None:
    targets, lengths = [[4, 4], [5], [3, 5, 4], []], [4, 2, 3, 3]
    layer, states = CTC(D, V).double(), torch.randn(4, 4, D, dtype=torch.float64)
    memory = Memory(states, torch.tensor(lengths), states[:, 0])
    found = layer.loss(memory, a_batch(targets, lengths))
    for i, (target, n) in enumerate(zip(targets, lengths, strict=True)):
        assert float(found[i]) == pytest.approx(enumerated(layer(states)[i, :n], target))


def test_the_gradient_is_that_of_finite_differences() -> None:
    layer, lengths = CTC(D, V).double(), [4, 3]
    batch, states = a_batch([[4, 4], [5, 3]], lengths), torch.randn(2, 4, D, dtype=torch.float64, requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return layer.loss(Memory(x, torch.tensor(lengths), x[:, 0]), batch).sum()

    assert torch.autograd.gradcheck(loss, states)


def test_a_target_longer_than_its_source_counts_nothing() -> None:
    layer, states = CTC(D, V), torch.randn(2, 2, D, requires_grad=True)
    found = layer.loss(Memory(states, torch.tensor([2, 2]), states[:, 0]), a_batch([[4, 4], [4, 5]], [2, 2]))
    assert float(found[0].detach()) == 0.0  # equal neighbors need a blank between them
    assert float(found[1].detach()) > 0.0
    found.sum().backward()
    assert states.grad is not None
    assert torch.isfinite(states.grad).all()
    assert states.grad[0].abs().sum() == 0


def a_model(pointer: Part | None = None) -> Seq2Seq:
    small = {"layers": 1, "heads": 2, "feedforward": 8, "dropout": 0.0}
    encoder, decoder = (
        encoders.parse({"name": "transformer", **small}),
        decoders.parse({"name": "transformer", **small}),
    )
    return Seq2Seq(9, 9, width=8, encoder=encoder, decoder=decoder, ctc=True, pointer=pointer)


@pytest.mark.parametrize("pointer", [None, Part("additive")])
@pytest.mark.parametrize("fuses", [True, False])
def test_a_share_of_a_models_loss_is_the_encoders_own(pointer: Part | None, fuses: bool) -> None:
    model, batch = a_model(pointer), a_batch([[4, 5], [6]], [5, 3])
    model.uses_fused_loss = fuses
    plain = model.loss(batch)
    assert model.ctc is not None
    own = model.ctc.loss(model.encode(batch.source, batch.source_lengths), batch).sum()
    for share in (0.3, 0.9):
        torch.testing.assert_close(model.loss(batch, ctc=share), (1 - share) * plain + share * own)
    both = model.loss(batch, ctc=0.3, r_drop=1.0)  # without dropout two passes are one
    torch.testing.assert_close(both, 0.7 * plain + 0.3 * own)


def test_padding_changes_nothing_in_the_loss() -> None:
    model, batch = a_model().eval(), a_batch([[4, 5], [6]], [5, 3])
    zeros = torch.zeros(2, 3, dtype=torch.long)
    wide = replace(batch, source=torch.cat([batch.source, zeros], 1), target=torch.cat([batch.target, zeros], 1))
    torch.testing.assert_close(model.loss(batch, ctc=0.5), model.loss(wide, ctc=0.5))


def test_every_weight_takes_part_in_the_mixed_loss() -> None:
    model = a_model()
    model.loss(a_batch([[4, 5], [6]], [5, 3]), ctc=0.3).backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]


def test_a_head_refuses_ctc() -> None:
    with pytest.raises(PartError, match="ctc"):
        Seq2Seq(9, 9, width=8, decoder=None, head=heads.parse("classifier"), ctc=True)


def test_a_model_without_the_layer_hears_nothing() -> None:
    model, batch = Seq2Seq(9, 9, width=8), a_batch([[4]], [3])
    with pytest.raises(PartError, match=r"generation\.ctc_weight must be 0"):
        model.ctc_log_probs(model.encode(batch.source, batch.source_lengths))
