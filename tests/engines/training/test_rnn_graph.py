"""The captured loop of a recurrent decoder, against the decoder's own."""

import pytest
import torch

from dragoman.core.registry import Part
from dragoman.data.batching import collate
from dragoman.engines.length_batches import round_up
from dragoman.engines.training.rnn_graph import (
    CapturedLoop,
    build_state,
    captured_loop_blocker,
    pad_inputs,
    release_captured_loops,
    round_up_shape,
)
from dragoman.nn.seq2seq import Seq2Seq

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = [
    {"order": "before", "score": Part("additive"), "cell": "gru"},
    {"order": "after", "input_feeding": True, "score": Part("general"), "layers": 2},
    {"order": "before", "score": Part("coverage")},
    {"order": "bottom", "score": Part("dot"), "layers": 2},
    {"order": "before", "score": Part("additive"), "cell": "gru", "gate": True, "doubly_stochastic": 0.7},
    {"order": "after", "input_feeding": True, "score": Part("general"), "gate": True, "doubly_stochastic": 0.7},
]


def model_and_batch(options):
    torch.manual_seed(0)
    model = Seq2Seq(
        20,
        20,
        width=16,
        encoder=Part("rnn", {"dropout": 0.0}),
        decoder=Part("rnn", {**options, "dropout": 0.0}),
        tie="none",
    )
    rows = [([5, 6, 7, 8], [9, 10, 11]), ([12], [13] * 9), ([14, 15], [16, 17])]
    return model.to(DEVICE).train(), collate(rows, [0, 1, 2]).to(DEVICE)


@pytest.mark.parametrize("options", OPTIONS)
def test_more_rows_steps_and_positions_change_nothing(options):
    model, batch = model_and_batch(options)
    decoder, memory = model.decoder, model.encode(batch.source, batch.source_lengths)
    y = model.embedding(batch.target[:, :-1])
    _, state = decoder.initial_state(memory, 1)
    wide, tensors = pad_inputs(y, state, state.source, 5, 3, 4)
    wanted, found = decoder.decode_sequentially(y, state), decoder.decode_sequentially(wide, build_state(tensors))
    torch.testing.assert_close(found.o[:3, : y.shape[1]], wanted.o)
    for name, extra in wanted.extras.items():
        torch.testing.assert_close(found.extras[name][:3, : y.shape[1]], extra)
    assert found.o.isfinite().all()


def test_shapes_are_never_cut_and_a_long_source_adds_no_steps():
    for T in range(1, 80):
        for S in range(1, 700):
            steps, positions = round_up_shape(T, S)
            assert steps >= T
            assert positions >= S
            assert steps < max(2 * T, T + 8) + 8
    assert len({round_up_shape(T, S) for T in range(1, 65) for S in range(T // 2, T * 3 // 2)}) <= 16  # of texts
    assert (
        len({round_up_shape(T, S) for T in range(1, 41) for S in range(81, 257)}) <= 20
    )  # of conversations and answers


def test_rounding_up_adds_less_than_the_multiple_or_the_part():
    for least, parts in ((8, 4), (32, 2)):
        for n in range(1, 3000):
            assert round_up(n, least, parts) % least == 0
            assert 0 <= round_up(n, least, parts) - n < max(least, n / parts)
            assert round_up(n, least, parts) <= round_up(n + 1, least, parts)


@pytest.mark.skipif(DEVICE == "cpu", reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("options", OPTIONS)
def test_a_captured_loop_gives_the_same_loss_and_gradients(options):
    model, batch = model_and_batch(options)
    weights = list(model.parameters())
    wanted = model.loss(batch, 0.1)
    truth = [g.clone() for g in torch.autograd.grad(wanted, weights, allow_unused=True) if g is not None]
    wanted = wanted.detach()
    model.decoder.step_loop = CapturedLoop(model.decoder)
    for _ in range(3):  # uncaptured, captured, replayed
        loss = model.loss(batch, 0.1)
        found = [g for g in torch.autograd.grad(loss, weights, allow_unused=True) if g is not None]
        torch.testing.assert_close(loss.detach(), wanted)
        for mine, theirs in zip(found, truth, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-3)
    assert isinstance(model.decoder.step_loop, CapturedLoop)
    assert model.decoder.step_loop.captured
    release_captured_loops(model.decoder)  # as where a batch did not fit: from now on it runs step by step
    torch.testing.assert_close(model.loss(batch, 0.1).detach(), wanted)
    assert not model.decoder.step_loop.captured


def test_only_a_decoder_that_runs_step_by_step_gets_a_captured_loop():
    gpu = torch.device("cuda")
    for options in OPTIONS:
        assert captured_loop_blocker(model_and_batch(options)[0].decoder, gpu) is None
    model, _ = model_and_batch({"order": "after", "score": Part("general")})
    assert "all steps run at once" in captured_loop_blocker(model.decoder, gpu)
    assert "no rnn decoder" in captured_loop_blocker(None, gpu)
