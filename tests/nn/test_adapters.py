"""Low-rank adapters: W' = W + (α/r) B A, in a layer, in a model, and merged."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.checkpoint import model_folder
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Batch
from dragoman.nn.adapters import LoRA, LowRankUpdate, adapter_parameters, adapters
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.seq2seq import Seq2Seq

D, V = 16, 20
SMALL = {"transformer": {"layers": 2, "heads": 2}, "conv": {"layers": 2}}


def model(encoder: str = "transformer", decoder: str = "transformer", **options: object) -> Seq2Seq:
    parts = [Part(name, SMALL.get(name, {})) for name in (encoder, decoder)]
    built = Seq2Seq(V, V, width=D, encoder=parts[0], decoder=parts[1], **options)  # type: ignore[arg-type]
    return built.eval()


def batch() -> Batch:
    """Two pairs whose sources are long enough for an encoder that shortens them."""
    source, lengths = torch.randint(4, V, (2, 40)), torch.tensor([40, 40])
    ids = torch.tensor([[4, 5, 6, 2], [7, 8, 2, 0]])
    return Batch(source, lengths, ids, torch.tensor([4, 3]))


def logits(built: Seq2Seq, pairs: Batch) -> Tensor:
    with torch.no_grad():
        found: Tensor = built(pairs).logits
    return found


class One(nn.Module):
    """A model whose encoder is one linear layer."""

    def __init__(self, d_in: int = 2, d_out: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Linear(d_in, d_out)
        self.norm = nn.LayerNorm(d_out)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.encoder(x))
        return y


HAND_W = [[1.0, 0.0], [0.0, 1.0], [2.0, -1.0]]
HAND_A = [[1.0, 2.0]]
HAND_B = [[5.0], [0.0], [-1.0]]
HAND_MERGED = [[16.0, 30.0], [0.0, 1.0], [-1.0, -7.0]]  # W + 3 · [[5, 10], [0, 0], [−1, −2]]


def test_merging_gives_w_plus_alpha_over_r_times_b_times_a():
    weights = {"encoder.weight": torch.tensor(HAND_W), "encoder.bias": torch.ones(3)}
    saved = {"encoder.adapter.A": torch.tensor(HAND_A), "encoder.adapter.B": torch.tensor(HAND_B)}
    merged = LoRA(rank=1, alpha=3.0).merge(weights, saved)
    assert_close(merged, {"encoder.weight": torch.tensor(HAND_MERGED), "encoder.bias": torch.ones(3)})
    weights = {"encoder.weight": torch.zeros(2, 2)}
    two = {"encoder.adapter.A": torch.eye(2), "encoder.adapter.B": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    merged = LoRA(rank=2, alpha=3.0).merge(weights, two)
    assert_close(merged["encoder.weight"], torch.tensor([[1.5, 3.0], [4.5, 6.0]]))  # α is divided by the rank


def test_an_adapted_layer_computes_what_the_merged_matrix_does():
    one = One()
    LoRA(rank=1, alpha=3.0).attach(one)
    with torch.no_grad():
        one.encoder.weight.copy_(torch.tensor(HAND_W))
        one.encoder.bias.fill_(0.5)
        one.encoder.adapter.A.copy_(torch.tensor(HAND_A))  # type: ignore[union-attr, operator]
        one.encoder.adapter.B.copy_(torch.tensor(HAND_B))  # type: ignore[union-attr, operator]
    assert_close(
        one.encoder(torch.tensor([[1.0, 1.0], [2.0, 0.0]])), torch.tensor([[46.5, 1.5, -7.5], [32.5, 0.5, -1.5]])
    )


def test_dropout_is_that_of_the_input_of_a_and_of_training_alone():
    one, x = One(), torch.ones(1, 2)
    LoRA(rank=1, alpha=3.0, dropout=0.5).attach(one)
    with torch.no_grad():
        one.encoder.adapter.A.copy_(torch.tensor(HAND_A))  # type: ignore[union-attr, operator]
        one.encoder.adapter.B.copy_(torch.tensor(HAND_B))  # type: ignore[union-attr, operator]
    plain = x @ one.encoder.weight.T + one.encoder.bias
    seen = {round(float((one.train().encoder(x) - plain).detach()[0, 0]) / 15, 3) for _ in range(200)}
    assert seen == {0.0, 2.0, 4.0, 6.0}  # A drop(x): either input dropped, the other doubled
    assert_close(one.eval().encoder(x) - plain, torch.tensor([[45.0, 0.0, -9.0]]))


def test_a_starts_as_a_linear_layer_does_and_b_with_zeros():
    update = LowRankUpdate(nn.Linear(400, 300), 20, 1.0, 0.0)
    assert (update.A.shape, update.B.shape) == ((20, 400), (300, 20))
    assert not update.B.any()
    bound = 1 / math.sqrt(400)
    assert 0.99 * bound < update.A.abs().max() <= bound
    assert abs(float(update.A.detach().std()) - bound / math.sqrt(3)) < 0.05 * bound


FAMILIES = [
    *(("rnn" if name == "none" else name, "transformer") for name in encoders.names if name not in ("none",)),
    *(("transformer", name) for name in decoders.names if name != "transformer"),
]


@pytest.mark.parametrize(("encoder", "decoder"), FAMILIES)
def test_outputs_are_bit_equal_at_the_start_and_every_adapted_layer_learns(encoder, decoder):
    """A layer whose matrix is read and not called would never get a gradient: its adapter would do nothing."""
    # torch runs a GRU through another kernel where its weights are frozen, so they are frozen from the beginning.
    built, pairs = model(encoder, decoder).requires_grad_(False), batch()
    before = logits(built, pairs)
    adapters.build(Part("lora", {"rank": 1})).attach(built)
    assert torch.equal(logits(built, pairs), before)
    torch.autograd.backward(built.train().loss(pairs, 0.1))
    updates = {name: module for name, module in built.named_modules() if isinstance(module, LowRankUpdate)}
    assert updates
    for name, update in updates.items():
        assert update.B.grad is not None, name
        assert update.B.grad.abs().sum() > 0, name
    trained = {name for name, p in built.named_parameters() if p.requires_grad}
    assert trained == adapter_parameters(built) == {name for name, p in built.named_parameters() if p.grad is not None}


def test_in_a_transformer_all_projections_and_feed_forward_layers_are_adapted():
    built = model(decoder="transformer", encoder="transformer")
    layers = LoRA().find_layers(built)
    assert {name.rpartition(".")[2] for name in layers} == {"Wq", "Wk", "Wv", "Wo", "W1", "W2"}
    assert len(layers) == 2 * 6 + 2 * 10  # self-attention and feed-forward; cross-attention in the decoder
    assert {name.partition(".")[0] for name in LoRA(parts=["decoder"]).find_layers(built)} == {"decoder"}
    (layer,) = LoRA(parts=[next(iter(layers))]).find_layers(built).values()
    assert layer is built.get_submodule(next(iter(layers)))


def test_merged_weights_give_the_logits_of_the_adapted_model():
    built, plain = model(), model()
    lora = LoRA(rank=4, alpha=6.0)
    base = {name: x.clone() for name, x in model_folder.unique_weights(built).items()}
    lora.attach(built)
    with torch.no_grad():
        for name in adapter_parameters(built):
            nn.init.normal_(built.get_parameter(name), std=0.3)
    saved = model_folder.saved_weights(built)
    assert saved.keys() == adapter_parameters(built)
    model_folder.load_weights(plain, lora.merge(base, saved), "here")
    pairs, unadapted = batch(), model()
    model_folder.load_weights(unadapted, base, "here")
    assert_close(logits(plain, pairs), logits(built, pairs), rtol=0, atol=1e-5)
    assert (logits(plain, pairs) - logits(unadapted, pairs)).abs().max() > 0.01


def test_buffers_are_saved_with_the_adapter_since_training_changes_them():
    part = encoders.parse({"name": "transformer", "layers": 1, "heads": 2, "norm": "batch"})
    built = Seq2Seq(V, V, width=D, encoder=part, decoder=Part("transformer", {"layers": 1, "heads": 2}))
    LoRA().attach(built)
    names = model_folder.saved_weights(built).keys() - adapter_parameters(built)
    assert names
    assert all(name.endswith(("running_mean", "running_var")) for name in names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 17}, "rank is 17, but 'encoder.stack.blocks.0"),
        ({"parts": ["encodr"]}, "no linear layer is below 'encodr'; did you mean 'encoder'?"),
        ({"parts": ["encoder", "output"]}, "no linear layer is below 'output'"),
        ({"parts": []}, "no linear layer is below the empty list"),
    ],
)
def test_what_does_not_fit_a_model_is_named(options, message):
    with pytest.raises(PartError) as caught:
        LoRA(**options).check(model())
    assert message in str(caught.value)


def test_a_layer_whose_matrix_is_shared_is_left_out():
    built = model()
    attention = built.encoder.stack.blocks[0].mixer
    before = LoRA().find_layers(built).keys()
    attention.Wq.weight = attention.Wk.weight
    dropped = before - LoRA().find_layers(built).keys()
    assert {name.rpartition(".")[2] for name in dropped} == {"Wq", "Wk"}


@pytest.mark.parametrize(
    "saved",
    [
        {"encoder.adapter.A": torch.zeros(1, 10**6), "encoder.adapter.B": torch.zeros(10**6, 1)},
        {"encoder.adapter.A": torch.zeros(2, 2), "encoder.adapter.B": torch.zeros(3, 2)},  # of another rank
        {"encoder.adapter.A": torch.zeros(1, 2)},
        {"other.adapter.A": torch.zeros(1, 2), "other.adapter.B": torch.zeros(3, 1)},
    ],
)
def test_matrices_that_do_not_fit_are_refused_before_they_are_multiplied(saved):
    with pytest.raises(PartError, match=r"encoder|other"):
        LoRA(rank=1).merge({"encoder.weight": torch.zeros(3, 2)}, saved)
