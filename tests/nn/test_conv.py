"""The convolutional encoder and decoder against the paper's equations in numpy loops, with copied weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core import tree
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Capacity, Memory, Segments
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.normalizers import normalizers
from dragoman.nn.scores import scores

D_IN, D_MEMORY, D, B, K, S, T = 6, 4, 5, 3, 2, 5, 4
LENGTHS = [5, 2, 1]
HALF = math.sqrt(0.5)


def noisy(module: Any) -> Any:
    """Every weight away from where it begins, in double precision: loops and tensors must agree to the last digits."""
    for p in module.parameters():
        nn.init.normal_(p, std=0.5)
    return module.double().eval()


def encoder_of(**options: Any) -> Any:
    return noisy(encoders.build(Part("conv", options), D_IN))


def decoder_of(d_memory: int = D_IN, **options: Any) -> Any:
    return noisy(decoders.build(Part("conv", options), D_IN, d_memory))


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def a_memory(d: int = D_IN, lengths: list[int] = LENGTHS) -> Memory:
    states = normal(len(lengths), max(lengths), d)
    return Memory(states, torch.tensor(lengths), normal(len(lengths), d), values=normal(*states.shape))


def steps(decoder: Any, y: Tensor, state: Any) -> tuple[Tensor, Any]:
    """y (B, K, T, D_in), one step after the other → o (B, K, T, D)."""
    outputs = []
    for t in range(y.shape[2]):
        output, state = decoder.step(y[:, :, t], state)
        outputs.append(output.o)
    return torch.stack(outputs, 2), state


# -- the paper in loops ----------------------------------------------------------------------------------------------


def apply(layer: Any, x: np.ndarray) -> np.ndarray:
    return layer.weight.detach().numpy() @ x + layer.bias.detach().numpy()


def glu_of_window(layer: Any, window: list[np.ndarray]) -> np.ndarray:
    """GLU(Σ_j W_j window_j + b): the first half of the sum, gated by the second."""
    W, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    W = W.reshape(len(b), len(b) // 2, len(window))  # (2D, D, k)
    a, gate = np.split(sum(W[:, :, j] @ x for j, x in enumerate(window)) + b, 2)
    return a / (1 + np.exp(-gate))


def near(h: list[np.ndarray], first: int, last: int) -> list[np.ndarray]:
    """h_first … h_last, with zeros where there is none."""
    return [h[i] if 0 <= i < len(h) else np.zeros_like(h[0]) for i in range(first, last + 1)]


def placed(part: Any, x: Tensor) -> list[np.ndarray]:
    return list((x + part.position.table.weight[: len(x)]).detach().numpy())


def encoded(encoder: Any, x: Tensor, kernel: int) -> tuple[np.ndarray, np.ndarray]:
    """z and (z + e)·√½ for one sentence, (n, D_in)."""
    e = placed(encoder, x)
    h = [apply(encoder.input_proj, e_i) for e_i in e]
    for layer in encoder.layers:
        reach = (kernel - 1) // 2
        h = [(glu_of_window(layer.W, near(h, i - reach, i + reach)) + h_i) * HALF for i, h_i in enumerate(h)]
    z = np.stack([apply(encoder.output_proj, h_i) for h_i in h])
    return z, (z + np.stack(e)) * HALF


def decoded(decoder: Any, y: Tensor, z: np.ndarray, values: np.ndarray, kernel: int) -> tuple[np.ndarray, np.ndarray]:
    """o (T, D_in) and the mean weights of the layers (T, m), for one sentence of m real source positions."""
    g, m, weights = placed(decoder, y), len(z), []
    h = [apply(decoder.input_proj, g_i) for g_i in g]
    for layer in decoder.layers:
        after = []
        for i, h_i in enumerate(h):
            v = glu_of_window(layer.convolve.W, near(h, i - kernel + 1, i))
            d = apply(layer.Wd, v) + (g[i] if len(g[i]) == z.shape[1] else apply(decoder.query_proj, g[i]))
            e = np.array([d @ z_j for z_j in z])
            a = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
            c = sum(a_j * v_j for a_j, v_j in zip(a, values, strict=True)) * m * math.sqrt(1 / m)
            after.append(((v + apply(layer.Wo, c)) * HALF + h_i) * HALF)
            weights.append(a)
        h = after
    o = np.stack([apply(decoder.output_proj, h_i) for h_i in h])
    return o, np.reshape(weights, (len(decoder.layers), len(g), m)).mean(0)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_the_encoder_is_the_paper_s_equations(kernel: int) -> None:
    encoder, x = encoder_of(layers=3, width=D, kernel=kernel), normal(B, S, D_IN)
    memory = encoder(x, Segments(torch.tensor(LENGTHS)))
    assert encoder.d == D_IN
    for i, n in enumerate(LENGTHS):
        z, values = encoded(encoder, x[i, :n], kernel)
        assert_close(memory.states[i, :n], torch.from_numpy(z))
        assert_close(memory.values[i, :n], torch.from_numpy(values))
        assert_close(memory.summary[i], torch.from_numpy(z.mean(0)))


@pytest.mark.parametrize("d_memory", [D_IN, D_MEMORY])
@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("valued", [True, False], ids=["values", "states"])
def test_the_decoder_is_the_paper_s_equations(d_memory: int, kernel: int, valued: bool) -> None:
    decoder, memory, y = decoder_of(d_memory, layers=2, width=D, kernel=kernel), a_memory(d_memory), normal(B, T, D_IN)
    if not valued:
        memory = replace(memory, values=None)
    found = decoder(y, memory)
    for i, n in enumerate(LENGTHS):
        z = memory.states[i, :n].numpy()
        o, a = decoded(decoder, y[i], z, z if memory.values is None else memory.values[i, :n].numpy(), kernel)
        assert_close(found.o[i], torch.from_numpy(o))
        assert_close(found.attention[i, :, :n], torch.from_numpy(a))
        assert found.attention[i, :, n:].abs().sum() == 0


# -- padding, steps, prefixes ------------------------------------------------------------------------------------------


def test_padding_changes_nothing_through_many_layers() -> None:
    encoder, x = encoder_of(layers=12, kernel=5), normal(B, S + 7, D_IN)
    for i, n in enumerate(LENGTHS):
        together = encoder(x * 100 ** (torch.arange(S + 7) >= n)[:, None], Segments(torch.tensor([n] * B)))
        alone = encoder(x[i : i + 1, :n], Segments(torch.tensor([n])))
        assert_close(together.states[i, :n], alone.states[0])
        assert_close(together.values[i, :n], alone.values[0])
        assert_close(together.summary[i], alone.summary[0])


@pytest.mark.parametrize("source", ["attention", "prefix"])
@pytest.mark.parametrize("kernel", [1, 2, 4])
def test_steps_equal_all_at_once_and_hypotheses_keep_their_own_past(source: str, kernel: int) -> None:
    decoder, memory = decoder_of(source=source, layers=3, width=D, kernel=kernel), a_memory()
    y, parents, rows = normal(B, K, T, D_IN), torch.tensor([[1, 1], [1, 0], [0, 0]]), torch.arange(B)[:, None]
    first, state = steps(decoder, y[:, :, :2], decoder.start(memory, Capacity(K, T)))
    state = tree.reorder(state, parents)
    second, _ = steps(decoder, y[:, :, 2:], state)
    for k in range(K):
        assert_close(first[:, k], decoder(y[:, k, :2], memory).o)
        history = torch.cat([y[rows, parents][:, k, :2], y[:, k, 2:]], 1)
        assert_close(second[:, k], decoder(history, memory).o[:, 2:])
    assert state.t.tolist() == [[2 + (n if source == "prefix" else 0)] for n in LENGTHS]


@pytest.mark.parametrize("lengths", [[5, 2, 1], [3, 0, 1], [0, 0]])
def test_a_prefix_is_one_sequence_with_the_target(lengths: list[int]) -> None:
    """A row of the batch equals a run over its real tokens alone, as a language model without any source."""
    decoder, memory, y = decoder_of(source="prefix", layers=3, kernel=3), a_memory(lengths=lengths), normal(3, T, D_IN)
    y = y[: len(lengths)]
    memory.states[~memory.mask] = 1e6
    found = decoder(y, memory)
    stepped, _ = steps(decoder, y[:, None], decoder.start(memory, Capacity(1, T)))
    assert found.attention is None
    assert found.extras["prefix"].shape == memory.states.shape
    for i, n in enumerate(lengths):
        whole = torch.cat([memory.states[i, :n], y[i]])[None]
        nothing = Memory(normal(1, 0, D_IN), torch.tensor([0]), normal(1, D_IN))
        o = decoder(whole, nothing).o[0]
        assert_close(found.extras["prefix"][i, :n], o[:n])
        assert found.extras["prefix"][i, n:].abs().sum() == 0  # the target's o is not the padding's
        assert_close(found.o[i], o[n:])
        assert_close(stepped[i, 0], o[n:])


def test_a_prefix_with_padding_fits_positions_that_hold_its_tokens() -> None:
    position = Part("learned", {"length": 3 + T})
    decoder = decoder_of(source="prefix", layers=1, position=position)
    memory = replace(a_memory(lengths=[3, 1]), states=normal(2, 9, D_IN), values=None)
    assert (decoder.source, decoder.max_positions) == (
        "prefix",
        3 + T,
    )  # a model asks both: source and target share the places
    assert torch.isfinite(decoder(normal(2, T, D_IN), memory).o).all()
    decoder.start(memory, Capacity(1, T))


@pytest.mark.parametrize(("layers", "kernel"), [(1, 3), (3, 2), (2, 4)])
def test_an_output_reaches_back_layers_times_kernel_less_one_and_no_farther(layers: int, kernel: int) -> None:
    decoder, y = decoder_of(source="prefix", layers=layers, kernel=kernel), normal(1, 10, D_IN).requires_grad_()
    memory = Memory(normal(1, 2, D_IN).requires_grad_(), torch.tensor([2]), normal(1, D_IN))
    for t in range(10):
        grads = torch.autograd.grad(decoder(y, memory).o[0, t].sin().sum(), [memory.states, y])
        seen = torch.cat(grads, 1)[0].abs().amax(-1) > 0  # (2 + T,)
        reach = layers * (kernel - 1)
        assert seen.tolist() == [t + 2 - reach <= i <= t + 2 for i in range(12)]


@pytest.mark.parametrize("source", ["attention", "prefix"])
def test_nothing_to_read_and_nothing_to_write_are_fine(source: str) -> None:
    encoder, decoder = encoder_of(layers=2), decoder_of(source=source, layers=2)
    empty = encoder(normal(2, 0, D_IN), Segments(torch.tensor([0, 0])))
    assert empty.states.shape == (2, 0, D_IN)
    assert empty.summary.tolist() == [[0.0] * D_IN] * 2
    for memory in (empty, replace(a_memory(lengths=[3, 0]), values=None)):
        some, none = decoder(normal(2, T, D_IN), memory), decoder(normal(2, 0, D_IN), memory)
        assert some.o.shape == (2, T, D_IN)
        assert torch.isfinite(some.o).all()
        assert none.o.shape == (2, 0, D_IN)
        if source == "prefix":
            assert_close(none.extras["prefix"], some.extras["prefix"])
        else:
            assert none.attention.shape == (2, 0, memory.states.shape[1])


# -- normalizers that look at places -----------------------------------------------------------------------------------


class AtItsOwnPlace(nn.Module):
    """Looks at the key at min(t, length − 1), and adds t to the loss."""

    def forward(self, e: Tensor, mask: Tensor, q: Tensor, t: Tensor, lengths: Tensor) -> tuple[Tensor, Any]:
        place = torch.minimum(t, lengths - 1).expand(e.shape[:-1])
        return nn.functional.one_hot(place, e.shape[-1]).to(e.dtype), {"penalty": t.expand(e.shape[:-1]).double()}


def test_a_normalizer_gets_the_query_positions_and_the_source_lengths() -> None:
    decoder, memory, y = decoder_of(layers=2), a_memory(), normal(B, K, T, D_IN)
    for layer in decoder.layers:
        layer.attention.normalizer = AtItsOwnPlace()
    found, state = decoder(y[:, 0], memory), decoder.start(memory, Capacity(K, T))
    for t in range(T):
        output, state = decoder.step(y[:, :, t], state)
        for i, n in enumerate(LENGTHS):
            truth = [float(j == min(t, n - 1)) for j in range(S)]
            assert found.attention[i, t].tolist() == truth
            assert output.attention[i].tolist() == [truth] * K
        assert found.extras["penalty"][:, t].tolist() == [2 * t] * B  # of both layers
        assert output.extras["penalty"].tolist() == [[2 * t] * K] * B


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weight_norm_keeps_the_function_and_trains_length_and_direction_apart() -> None:
    x, y, memory = normal(B, S, D_IN), normal(B, T, D_IN), a_memory(D_MEMORY)

    def outcome(encoder: Any, decoder: Any) -> Tensor:
        return torch.cat([encoder(x, Segments(memory.lengths)).summary[:, None], decoder(y, memory).o], 1)

    def pair(weight_norm: bool) -> tuple[Any, Any]:
        options = {"layers": 2, "width": D, "weight_norm": weight_norm}
        return encoder_of(**options), decoder_of(D_MEMORY, **options)

    plain, normed, other = pair(False), pair(True), pair(True)
    for mine, theirs, third in zip(normed, plain, other, strict=True):
        theirs_by_name = dict(theirs.named_modules())
        for name, module in mine.named_modules():
            if isinstance(module, nn.Linear):
                module.weight = theirs_by_name[name].weight.detach().clone()  # goes to g and v
                module.bias.data.copy_(theirs_by_name[name].bias)
        mine.position.load_state_dict(theirs.position.state_dict())
        weights = dict(mine.named_parameters())
        directions = [name for name in weights if name.endswith("weight.original1")]
        # every convolution and every projection, and nothing kept twice
        assert len(directions) == len([m for m in theirs.modules() if isinstance(m, nn.Linear)])
        assert len(weights) == len(list(theirs.parameters())) + len(directions)
        with torch.no_grad():
            for name in directions:
                weights[name] *= 3  # a direction has no length
            for name, p in third.named_parameters():
                p.copy_(weights[name])
    expected = outcome(*plain)
    assert_close(outcome(*normed), expected)
    assert torch.equal(outcome(*other), outcome(*normed))


def test_weights_begin_with_the_paper_s_variances() -> None:
    """√(4p/n) before a GLU, √(p/n) where dropout comes before, √(1/n) elsewhere; p is what dropout keeps."""
    n, width, keep = 96, 128, 0.75
    options = {"layers": 1, "width": width, "kernel": 3, "dropout": 1 - keep}
    encoder: Any = encoders.build(Part("conv", options), n)
    decoder: Any = decoders.build(Part("conv", options), n, n)
    layer = decoder.layers[0]
    for module, variance in [
        (encoder.layers[0].W, 4 * keep / (3 * width)),
        (layer.convolve.W, 4 * keep / (3 * width)),
        (encoder.input_proj, keep / n),
        (decoder.input_proj, keep / n),
        (encoder.output_proj, 1 / width),
        (decoder.output_proj, 1 / width),
        (layer.Wd, 1 / width),
        (layer.Wo, 1 / n),
    ]:
        assert module.weight.var().item() == pytest.approx(variance, rel=0.1)  # over 12,000 draws and more
        assert module.bias.abs().sum() == 0


def test_training_drops_the_inputs_of_every_convolution() -> None:
    encoder, decoder = encoder_of(layers=2, dropout=0.5), decoder_of(layers=2, dropout=0.5)
    read: list[Tensor] = []
    for layer in [*encoder.layers, *(layer.convolve for layer in decoder.layers)]:
        layer.register_forward_hook(lambda _, given, __: read.append(given[0][..., 2:-1, :]))  # without the edges
    memory = encoder.train()(normal(1, 2 * S, D_IN), Segments(torch.tensor([2 * S])))
    decoder.train()(normal(1, 2 * T, D_IN), memory)
    assert len(read) == 4
    assert all(0 < (h == 0).sum() < h.numel() for h in read)


# -- what does not go together -----------------------------------------------------------------------------------------


def test_what_cannot_work_is_refused_with_a_remedy() -> None:
    with pytest.raises(PartError, match=r"odd kernel.* not 4; use 5"):
        encoders.build(Part("conv", {"kernel": 4}), D_IN)
    with pytest.raises(PartError, match="the same width, not 4 and 6; use"):
        decoders.build(Part("conv", {"source": "prefix"}), D_IN, D_MEMORY)
    stateful = [name for name in scores.names if getattr(scores[name], "uses_past_weights", False)]
    stochastic = [name for name in normalizers.names if getattr(normalizers[name], "is_stochastic", False)]
    assert stateful
    assert stochastic
    for name in stateful:
        with pytest.raises(PartError, match=f"'{name}', which needs the weights of earlier"):
            decoders.build(Part("conv", {"score": Part(name)}), D_IN, D_IN)
    for name in stochastic:
        with pytest.raises(PartError, match=f"'{name}', which samples"):
            decoders.build(Part("conv", {"normalizer": Part(name)}), D_IN, D_IN)
