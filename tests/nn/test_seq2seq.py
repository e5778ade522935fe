"""The whole model in every shape: embeddings, tying, the loss of a batch and its gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.testing import assert_close

from dragoman.checkpoint import model_folder
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, Batch, Capacity
from dragoman.data.batching import collate
from dragoman.data.objectives import TrainingRow
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.frontends import frontends
from dragoman.nn.losses import token_log_probs
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
    logits, _, _ = model(batch)
    total = 0.0
    for rows, gold in zip(logits.tolist(), batch.target[:, 1:].tolist(), strict=True):
        for row, token in zip(rows, gold, strict=True):
            if token != PAD:
                norm = math.log(sum(math.exp(x) for x in row))
                total -= (1 - smoothing) * (row[token] - norm) + smoothing * sum(x - norm for x in row) / len(row)
    return total


def test_the_loss_of_a_batch_predicts_each_token_from_those_before() -> None:
    model, batch = tiny(), a_batch()
    assert batch.tokens == 5
    assert model.loss(batch, 0.1).item() == pytest.approx(in_loops(model, batch, 0.1), rel=1e-5)
    logits, gold, _ = model(batch)
    assert -token_log_probs(logits.log_softmax(-1), gold).sum().item() == pytest.approx(
        model.loss(batch).item(), rel=1e-5
    )


def test_the_loss_of_a_batch_is_the_sum_over_its_rows() -> None:
    model, batch = tiny("transformer", "transformer"), a_batch()
    parts = [model.loss(batch.slice_rows(i, i + 1), 0.1) for i in range(2)]
    assert sum(part.item() for part in parts) == pytest.approx(model.loss(batch, 0.1).item(), rel=1e-5)


# Every encoder and every decoder once; that they take each other's gradients is test_promises' to say of all pairs.
ONCE = [
    (encoders.names[i % len(encoders.names)], decoders.names[i % len(decoders.names)])
    for i in range(max(len(encoders.names), len(decoders.names)))
]


@pytest.mark.parametrize(("encoder", "decoder"), ONCE)
def test_the_gradient_is_that_of_finite_differences(encoder: str, decoder: str) -> None:
    model, batch, step = tiny(encoder, decoder).double(), a_batch(), 1e-5
    model.loss(batch, 0.1).backward()
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
    for how, shared in {"none": 0, "output": 1, "embeddings": 1, "all": 2}.items():
        model = tiny(tie=how)
        tables = [model.output.weight, model.embedding.table.weight, model.frontend.table.weight]
        assert len({table.data_ptr() for table in tables}) == 3 - shared
        saved = safetensors.torch.load(model_folder.tensors_to_bytes(model_folder.unique_weights(model)))
        assert sum(x.shape == (SIZE, 4) for x in saved.values()) == 3 - shared
        assert sum(x.numel() for x in saved.values()) == sum(p.numel() for p in model.parameters())


def test_tying_embeddings_leaves_the_output_layer_its_own() -> None:
    model = tiny(tie="embeddings")
    assert model.frontend.table.weight is model.embedding.table.weight
    assert model.output.weight is not model.embedding.table.weight


def test_a_head_s_output_layer_can_be_the_source_s_table() -> None:
    model = Seq2Seq(SIZE, SIZE, width=4, encoder=Part("rnn"), decoder=None, head=Part("tagger"), tie="all")
    assert model.output.weight is model.frontend.table.weight


def test_tied_tables_stay_one_when_weights_move_and_load() -> None:
    model, other, batch = tiny(tie="all"), tiny(tie="all"), a_batch()
    model.loss(batch).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    other.load_state_dict(model.state_dict())
    for one in (model, other):
        assert one.output.weight is one.embedding.table.weight is one.frontend.table.weight
    assert torch.equal(model(batch)[0], other(batch)[0])


def test_tying_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PartError, match="tie: output needs a decoder of width 4"):
        Seq2Seq(SIZE, SIZE, width=4, encoder=Part("rnn"), decoder=Part("rnn", {"width": 6}))
    for how in ("all", "embeddings"):
        with pytest.raises(PartError, match=f"tie: {how} needs one joint vocabulary"):
            Seq2Seq(SIZE, SIZE + 1, width=4, encoder=Part("rnn"), decoder=Part("rnn"), tie=how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"head": Part("tagger")}, "set a decoder or a head"),
        ({"decoder": None}, "set a decoder or a head"),
        ({"decoder": None, "head": Part("tagger"), "pointer": Part("general")}, "pointer needs a decoder"),
    ],
)
def test_parts_that_make_no_model_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PartError, match=sentence):
        Seq2Seq(SIZE, SIZE, width=4, **{"encoder": Part("rnn"), "decoder": Part("rnn"), **options})


def test_only_one_network_over_source_and_target_can_predict_the_source() -> None:
    batch = a_batch()
    batch.token_labels = batch.source
    with pytest.raises(PartError, match="reads the source as a prefix"):
        tiny()(batch)


def test_a_decoder_of_another_width_needs_no_tie() -> None:
    model = Seq2Seq(SIZE, SIZE, width=4, encoder=Part("rnn"), decoder=Part("rnn", {"width": 6}), tie="none")
    assert model(a_batch())[0].shape == (2, 3, SIZE)


def test_the_reach_of_a_model_is_that_of_its_positions() -> None:
    learned = {**TINY["transformer"], "position": Part("learned", {"length": 9})}
    model = Seq2Seq(
        SIZE, SIZE, width=4, encoder=Part("transformer", TINY["transformer"]), decoder=Part("transformer", learned)
    )
    assert (model.max_source_positions, model.max_target_positions) == (None, 9)
    assert tiny().max_target_positions is None


def test_memory_keeps_the_source_for_copying() -> None:
    batch = a_batch()
    assert torch.equal(tiny().encode(batch.source, batch.source_lengths).source, batch.source)  # type: ignore[arg-type]


# -- one network over one sequence -------------------------------------------------------------------------------------

PREFIX: dict[str, dict[str, Any]] = {
    "transformer": {**TINY["transformer"], "layers": 2},
    "rnn": {"layers": 2},
    "conv": {"layers": 2},
}


def one_network(decoder: str, source: str = "prefix") -> Seq2Seq:
    part = Part(decoder, {**PREFIX[decoder], "source": source})
    return Seq2Seq(SIZE, SIZE, width=4, encoder=Part("none"), decoder=part, tie="all").eval()


@pytest.mark.parametrize("decoder", PREFIX)
def test_log_p_of_a_text_is_the_sum_of_its_conditionals(decoder: str) -> None:
    model, texts = one_network(decoder), [[4, 5, 6, EOS], [6, EOS], [5, 5, 4, 4, 6, EOS]]
    batch = collate([TrainingRow([], text) for text in texts], [0, 1, 2])
    assert batch.source.shape == (3, 0)
    found = model.token_log_probs(batch)
    for i, text in enumerate(texts):
        nothing = model.encode(torch.zeros(1, 0, dtype=torch.long), torch.tensor([0]))
        state, token = model.start(nothing, Capacity(1, len(text))), BOS
        for t, y in enumerate(text):
            log_p, state = model.step(torch.tensor([[token]]), state)
            assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
            assert found[i, t].item() == pytest.approx(log_p[0, 0, y].item(), abs=1e-5)
            token = y
        assert found[i, len(text) :].abs().sum() == 0


@pytest.mark.parametrize("decoder", PREFIX)
def test_a_pair_in_one_network_scores_as_the_whole_sequence_alone(decoder: str) -> None:
    """x_1 … x_n <s> y_1 … y_m </s>, unpadded and by itself, as a language model with the same one table reads it."""
    model = one_network(decoder)
    pairs = [([4, 5, 6, 5, EOS], [4, EOS]), ([6, EOS], [5, 4, 6, EOS])]
    batch = collate([TrainingRow(x, y, [*x[1:], PAD]) for x, y in pairs], [0, 1])
    target_loss, source_loss = 0.0, 0.0
    for x, y in pairs:
        whole = torch.tensor([[*x, BOS, *y]])
        alone = Batch(whole[:, :0], torch.tensor([0]), whole, torch.tensor([whole.shape[1]]))
        logits, gold, _ = model(alone)
        log_p = token_log_probs(logits.log_softmax(-1), gold)[0].tolist()
        source_loss -= sum(log_p[: len(x) - 1])  # what is predicted after x_1, …, x_{n-1}; not <s>
        target_loss -= sum(log_p[len(x) :])
    assert model.loss(batch).item() == pytest.approx(target_loss + source_loss, rel=1e-5)
    assert batch.tokens == 5 + 6
    batch.token_labels = None
    assert model.loss(batch).item() == pytest.approx(target_loss, rel=1e-5)


def test_a_batch_of_three_tasks_equals_its_rows_alone() -> None:
    """Left to right, masked, and prefix, as UniLM mixes them."""
    model = one_network("transformer", "full_prefix")
    rows = [
        TrainingRow([], [4, 5, 6, EOS]),
        TrainingRow([4, 3, 6, 6, EOS], [], [PAD, 5, PAD, 4, PAD]),
        TrainingRow([5, 6], [4, 5, EOS]),
    ]
    batch = collate(rows, [0, 1, 2])
    assert batch.tokens == 4 + 2 + 3
    alone = [model.token_log_probs(collate([row], [0])) for row in rows]
    found = model.token_log_probs(batch)
    for i, one in enumerate(alone):
        assert_close(found[i][found[i] != 0], one[one != 0], atol=1e-5, rtol=1e-5)
    losses = [model.loss(collate([row], [0])).item() for row in rows]
    assert model.loss(batch).item() == pytest.approx(sum(losses), rel=1e-5)


def test_a_full_prefix_sees_itself_whole_and_never_the_target() -> None:
    model, x, y = one_network("transformer", "full_prefix"), [4, 5, 6], [5, 4, EOS]

    def outputs(x: list[int], y: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(collate([TrainingRow(x, y, x)], [0])).output
        return output.extras["prefix"][0], output.o[0]

    before, after = outputs(x, y)
    other, _ = outputs([4, 5, 5], y)
    assert (other[0] - before[0]).abs().max() > 1e-4  # x_1 sees x_3
    prefix, target = outputs(x, [5, 6, EOS])
    assert_close(prefix, before)
    assert_close(target[:2], after[:2])  # and y_t no later y
    assert (target[2] - after[2]).abs().max() > 1e-4
    left_to_right = one_network("transformer")
    left_to_right.load_state_dict(model.state_dict())
    model = left_to_right
    assert_close(outputs(x, y)[0][:2], outputs([4, 5, 5], y)[0][:2])


# -- losses of several passes, and of draws ----------------------------------------------------------------------------


def with_dropout(share: float) -> Seq2Seq:
    part = Part("rnn", {"dropout": share})
    return Seq2Seq(SIZE, SIZE, width=4, encoder=part, decoder=part)


def test_r_drop_without_dropout_is_the_plain_loss() -> None:
    model, batch = with_dropout(0.0).train(), a_batch()
    assert model.loss(batch, 0.1, r_drop=3.0).item() == pytest.approx(model.loss(batch, 0.1).item(), rel=1e-5)


def test_r_drop_is_the_mean_of_two_passes_and_half_their_divergence() -> None:
    model, batch = with_dropout(0.4).train(), a_batch()
    torch.manual_seed(7)
    expected = (in_loops(model, batch, 0.1) + in_loops(model, batch, 0.1)) / 2
    torch.manual_seed(7)
    passes = [model(batch)[0].log_softmax(-1).tolist() for _ in range(2)]
    for ps, qs, gold in zip(*passes, batch.target[:, 1:].tolist(), strict=True):
        for p, q, token in zip(ps, qs, gold, strict=True):
            if token != PAD:
                forth = sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))
                back = sum(math.exp(b) * (b - a) for a, b in zip(p, q, strict=True))
                expected += 2.0 / 2 * (forth + back) / 2
    torch.manual_seed(7)
    assert model.loss(batch, 0.1, r_drop=2.0).item() == pytest.approx(expected, rel=1e-4)
    model.eval()
    assert model.loss(batch, 0.1, r_drop=2.0).item() == pytest.approx(in_loops(model, batch, 0.1), rel=1e-5)


def test_samples_are_rewarded_relative_to_a_baseline_with_momentum_0_9() -> None:
    hard = Part("rnn", {"normalizer": Part("hard", {"entropy": 0.5, "discount": 0.25}), "dropout": 0.0})
    model = Seq2Seq(SIZE, SIZE, width=4, encoder=Part("rnn", {"dropout": 0.0}), decoder=hard).train()
    batch, b = a_batch(), 0.0
    assert model.is_stochastic
    assert not tiny().is_stochastic
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        logits, gold, output = model(batch)
        log_p, choice, penalty = logits.log_softmax(-1), output.extras["choice"], output.extras["penalty"]
        loss, estimate, total = torch.zeros(()), torch.zeros(()), 0.0
        for i, n in enumerate([2, 3]):
            said = [log_p[i, t, gold[i, t]] for t in range(n)]
            total += sum(x.item() for x in said)
            for t in range(n):
                ahead = sum(0.25**k * (said[t + k].item() - b) for k in range(n - t))
                loss = loss - said[t] + penalty[i, t]
                estimate = estimate - ahead * choice[i, t]
        wanted = torch.autograd.grad(loss + estimate, list(model.parameters()), allow_unused=True)
        torch.manual_seed(seed)
        found = model.loss(batch)
        assert found.item() == pytest.approx(loss.item(), rel=1e-4, abs=1e-4)  # what is reported has no estimate in it
        for g, other in zip(
            torch.autograd.grad(found, list(model.parameters()), allow_unused=True), wanted, strict=True
        ):
            torch.testing.assert_close(g, other, rtol=1e-3, atol=1e-4)
        b = total / 5 if seed == 1 else 0.9 * b + 0.1 * total / 5
        assert model.baseline is not None
        assert model.baseline.item() == pytest.approx(b, rel=1e-5)
    model.eval().loss(batch)
    assert model.baseline.item() == pytest.approx(b, rel=1e-5)  # only training moves it
