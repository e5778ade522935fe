"""The whole model: embeddings, tying, the loss of a batch and its gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.testing import assert_close

from dragoman import checkpoint
from dragoman.core.errors import PartError
from dragoman.core.interfaces import BOS, PAD, Batch
from dragoman.core.registry import Part
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.seq2seq import Seq2Seq

SIZE = 7
TINY: dict[str, dict[str, Any]] = {"transformer": {"layers": 1, "heads": 2, "feedforward": 6, "activation": "gelu"}}


def tiny(encoder: str = "rnn", decoder: str = "rnn", **options: Any) -> Seq2Seq:
    parts = {"encoder": Part(encoder, TINY.get(encoder, {})), "decoder": Part(decoder, TINY.get(decoder, {}))}
    return Seq2Seq(SIZE, SIZE, **{"width": 4, **parts, **options}).eval()


def a_batch() -> Batch:
    source = torch.tensor([[4, 5, 6, 2], [5, 2, PAD, PAD]])
    target = torch.tensor([[BOS, 4, 2, PAD], [BOS, 6, 5, 2]])
    return Batch(source, torch.tensor([4, 2]), target, torch.tensor([3, 4]))


# -- the loss ------------------------------------------------------------------------------------------------------


def in_loops(model: Seq2Seq, batch: Batch, smoothing: float) -> float:
    """The smoothed cross entropy of a batch, in float64 from the logits on."""
    logits, _ = model(batch)
    total = 0.0
    for rows, gold in zip(logits.tolist(), batch.target[:, 1:].tolist(), strict=True):
        for row, token in zip(rows, gold, strict=True):
            if token != PAD:
                norm = math.log(sum(math.exp(x) for x in row))
                total -= (1 - smoothing) * (row[token] - norm) + smoothing * sum(x - norm for x in row) / len(row)
    return total


def test_the_loss_of_a_batch_predicts_each_token_from_those_before() -> None:
    model, batch = tiny(), a_batch()
    loss = model.loss(batch, 0.1)
    assert loss.tokens == batch.tokens == 5
    assert loss.sum.item() == pytest.approx(in_loops(model, batch, 0.1), rel=1e-5)
    assert -model.token_log_probs(batch).sum().item() == pytest.approx(model.loss(batch).sum.item(), rel=1e-5)


def test_the_loss_of_a_batch_is_the_sum_over_its_rows() -> None:
    model, batch = tiny("transformer", "transformer"), a_batch()
    parts = [model.loss(batch.rows(i, i + 1), 0.1) for i in range(2)]
    assert sum(part.sum.item() for part in parts) == pytest.approx(model.loss(batch, 0.1).sum.item(), rel=1e-5)
    assert sum(part.tokens for part in parts) == batch.tokens


@pytest.mark.parametrize("decoder", decoders.names)
@pytest.mark.parametrize("encoder", encoders.names)
def test_the_gradient_is_that_of_finite_differences(encoder: str, decoder: str) -> None:
    model, batch, step = tiny(encoder, decoder).double(), a_batch(), 1e-5
    model.loss(batch, 0.1).sum.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert set(gradients) == {name for name, _ in model.named_parameters()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            flat, gradient = p.view(-1), gradients[name].view(-1)
            for i in {0, flat.numel() // 2, flat.numel() - 1, int(gradient.abs().argmax())}:
                kept = flat[i].item()
                flat[i] = kept + step
                above = in_loops(model, batch, 0.1)
                flat[i] = kept - step
                below = in_loops(model, batch, 0.1)
                flat[i] = kept
                assert (above - below) / (2 * step) == pytest.approx(gradient[i].item(), abs=2e-5, rel=1e-4), name


# -- embeddings and tying ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "factor"), [(True, 2.0), (False, 1.0)])
def test_tokens_are_rows_of_a_table_times_the_root_of_the_width(scale: bool, factor: float) -> None:
    tokens: Any = frontends.build(Part("tokens", {"scale": scale}), SIZE, 4)
    ids = torch.tensor([[4, 6], [5, PAD]])
    assert tokens.d == 4
    assert_close(tokens(ids), tokens.table.weight[ids] * factor)


def test_untied_tables_are_three() -> None:
    model = tiny(tie="none")
    places = {t.data_ptr() for t in (model.output.weight, model.embedding.table.weight, model.frontend.table.weight)}
    assert len(places) == 3


def test_tying_shares_storage_and_saves_one_tensor() -> None:
    for how, shared in {"none": 0, "output": 1, "all": 2}.items():
        model = tiny(tie=how)
        tables = [model.output.weight, model.embedding.table.weight, model.frontend.table.weight]
        assert len({table.data_ptr() for table in tables}) == 3 - shared
        saved = safetensors.torch.load(checkpoint.tensors_to_bytes(checkpoint.unique_weights(model)))
        assert sum(x.shape == (SIZE, 4) for x in saved.values()) == 3 - shared
        assert sum(x.numel() for x in saved.values()) == sum(p.numel() for p in model.parameters())


def test_tied_tables_stay_one_when_weights_move_and_load() -> None:
    model, other, batch = tiny(tie="all"), tiny(tie="all"), a_batch()
    model.loss(batch).sum.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    other.load_state_dict(model.state_dict())
    for one in (model, other):
        assert one.output.weight is one.embedding.table.weight is one.frontend.table.weight
    assert torch.equal(model(batch)[0], other(batch)[0])


def test_tying_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PartError, match="tie: output needs a decoder of width 4"):
        Seq2Seq(SIZE, SIZE, width=4, encoder=Part("rnn"), decoder=Part("rnn", {"width": 6}))
    with pytest.raises(PartError, match="tie: all needs one joint vocabulary"):
        Seq2Seq(SIZE, SIZE + 1, width=4, encoder=Part("rnn"), decoder=Part("rnn"), tie="all")


def test_a_decoder_of_another_width_needs_no_tie() -> None:
    model = Seq2Seq(SIZE, SIZE, width=4, encoder=Part("rnn"), decoder=Part("rnn", {"width": 6}), tie="none")
    assert model(a_batch())[0].shape == (2, 3, SIZE)


def test_the_reach_of_a_model_is_that_of_its_positions() -> None:
    learned = {**TINY["transformer"], "position": Part("learned", {"length": 9})}
    model = Seq2Seq(
        SIZE, SIZE, width=4, encoder=Part("transformer", TINY["transformer"]), decoder=Part("transformer", learned)
    )
    assert (model.longest_source, model.longest_target) == (None, 9)
    assert tiny().longest_target is None


def test_memory_keeps_the_source_for_copying() -> None:
    batch = a_batch()
    assert torch.equal(tiny().encode(batch.source, batch.source_lengths).source, batch.source)  # type: ignore[arg-type]
