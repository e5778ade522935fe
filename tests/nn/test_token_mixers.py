"""What a block learns the other positions from: each mixer against its equation, and its steps against the whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core import tree
from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.nn.attention import AttentionMask, MultiHeadConfig, record_attention
from dragoman.nn.positions import HeadSpec, positions
from dragoman.nn.token_mixers import BlockConfig, mixers

B, K, S, T, D = 3, 2, 4, 3, 8
LENGTHS = [4, 2, 0]  # one source without padding, one with it, one that is nothing else


def mixer_of(name: str, causal: bool = True, bias: bool = True, **options: Any) -> Any:
    heads = MultiHeadConfig(2, Part("scaled_dot"), Part("softmax"), key_heads=1, bias=bias)
    config = BlockConfig(heads, 10, "relu", Part("layer"), "pre", 0.0, Part(name, options), causal)
    module: Any = mixers.build(config.mixer, D, config)
    for p in module.parameters():
        nn.init.normal_(p, std=0.5)
    return module.eval()


def everything(x: Tensor, mask: Tensor | None = None, causal: bool = False) -> AttentionMask:
    return AttentionMask(torch.arange(x.shape[1])[None], mask, causal)


def close(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=1e-5, rtol=1e-5)


# -- attention without parameters --------------------------------------------------------------------------------------


def free_in_loops(x: Tensor, seen: Tensor, scale: float) -> Tensor:
    """y_i = Σ_j softmax_j(x_i·x_j) x_j over the j that i sees; x (T, D), seen (T, T)."""
    y = torch.zeros_like(x)
    for i, x_i in enumerate(x):
        powers = [math.exp(scale * float(x_i @ x_j)) if seen[i, j] else 0.0 for j, x_j in enumerate(x)]
        for j, power in enumerate(powers):
            y[i] += power / max(sum(powers), 1e-30) * x[j]
    return y


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_parameter_free_attention_is_its_equation(scale: bool, causal: bool) -> None:
    mixer, x = mixer_of("parameter_free", causal, scale=scale), torch.randn(B, S, D)
    assert not list(mixer.parameters())
    real = torch.arange(S) < torch.tensor(LENGTHS)[:, None]
    triangle = torch.ones(S, S).bool().tril() if causal else torch.ones(S, S).bool()
    found = mixer(x, everything(x, real[:, None, None], causal), None)
    for b in range(B):  # the last row sees nothing and gets zeros
        close(found[b], free_in_loops(x[b], triangle & real[b], D**-0.5 if scale else 1.0))
    close(mixer(x, everything(x, None, causal), None)[0], free_in_loops(x[0], triangle, D**-0.5 if scale else 1.0))


def test_parameter_free_attention_is_permutation_equivariant_unless_causal() -> None:
    mixer, x, order = mixer_of("parameter_free"), torch.randn(1, 6, D), [3, 0, 5, 1, 4, 2]
    for causal, moves in ((False, True), (True, False)):
        y, z = (mixer(words, everything(x, causal=causal), None) for words in (x, x[:, order]))
        assert torch.allclose(y[:, order], z, atol=1e-5) == moves


def test_parameter_free_attention_cannot_favor_an_orthogonal_word_but_some_weights_can() -> None:
    """The lectures' bank: x_bank·x_river = 0, so river weighs no more than any other word it has nothing to do with."""
    bank, river, the = torch.eye(D)[0], torch.eye(D)[1], torch.eye(D)[2]
    x = torch.stack([bank, river, the])[None]
    free, heads = mixer_of("parameter_free", False), mixer_of("attention", False, bias=False)
    with torch.no_grad():
        heads.Wq.weight.copy_(4 * torch.eye(D))
        heads.Wk.weight.zero_()
        heads.Wk.weight[0, 1] = 4.0  # river answers to what bank asks
    with record_attention() as recorded:
        free(x, everything(x), None)
        heads(x, everything(x), None)
    of_bank, of_bank_in_head = recorded[free][0][0, 0, 0], recorded[heads][0][0, 0, 0]
    assert of_bank[1] == of_bank[2] < of_bank[0]
    assert of_bank_in_head[1] > 0.9


# -- one vector for all of the past ------------------------------------------------------------------------------------


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


@pytest.mark.parametrize("feedforward", [True, False])
@pytest.mark.parametrize("gate", [True, False])
def test_average_attention_is_its_equations(feedforward: bool, gate: bool) -> None:
    mixer, x = mixer_of("average", feedforward=feedforward, gate=gate), torch.randn(1, 5, D)
    found = mixer(x, everything(x, causal=True), None)[0]
    for t in range(5):
        g = sum(x[0, : t + 1]) / (t + 1)
        if feedforward:
            W1, W2 = mixer.feedforward.W1, mixer.feedforward.W2
            g = W2.weight @ (W1.weight @ g + W1.bias).clamp(min=0) + W2.bias
        y = g
        if gate:
            gates = sigmoid(mixer.gate.weight @ torch.cat([x[0, t], g]) + mixer.gate.bias)
            y = gates[:D] * x[0, t] + gates[D:] * g
        close(found[t], y)


def test_ssru_is_its_equations() -> None:
    mixer, x = mixer_of("ssru"), torch.randn(1, 5, D)
    found, c = mixer(x, everything(x, causal=True), None)[0], torch.zeros(D)
    for t in range(5):
        f = sigmoid(mixer.Wf.weight @ x[0, t] + mixer.Wf.bias)
        c = f * c + (1 - f) * (mixer.W.weight @ x[0, t])
        close(found[t], c.clamp(min=0))


def sizes(state: Any) -> list[int]:
    found: list[int] = []
    tree.map(lambda x: found.append(x.numel()) or x, state)
    return found


@pytest.mark.parametrize("name", ["average", "ssru"])
def test_the_state_of_a_fast_mixer_is_one_vector_however_long_the_past(name: str) -> None:
    mixer = mixer_of(name)
    for past, capacity in ((0, 1), (5, 100)):
        state = mixer.start(torch.randn(B, past, D), torch.full((B,), past), K, capacity, None)
        for t in range(past, past + 4):
            assert sizes(state) == [B * K * D]
            _, state = mixer.step(torch.randn(B, K, D), state, torch.full((B, 1), t), None)
        assert sizes(state) == [B * K * D]


@pytest.mark.parametrize("name", ["average", "ssru"])
def test_a_left_to_right_mixer_is_refused_in_an_encoder(name: str) -> None:
    with pytest.raises(
        PartError, match=f"'{name}' reads from left to right, so it works only in decoders; .* 'attention'"
    ):
        mixer_of(name, causal=False)


# -- every mixer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scheme"),
    [(name, "none") for name in mixers.names]
    + [("attention", name) for name in ("rotary", "alibi", "t5", "shaw", "xl")],
)
def test_steps_after_a_padded_prefix_equal_a_run_without_padding(name: str, scheme: str) -> None:
    """Rows of unequal lengths, one of them empty, and hypotheses that read different things."""
    mixer, position = mixer_of(name).double(), positions.build(Part(scheme), D, HeadSpec(2, D // 2, True)).double()
    x, y = 9 * torch.randn(B, S, D, dtype=torch.float64), torch.randn(B, K, T, D, dtype=torch.float64)
    lengths = torch.tensor(LENGTHS)
    state, found = mixer.start(x, lengths, K, T, position), []
    for t in range(T):
        o, state = mixer.step(y[:, :, t], state, lengths[:, None] + t, position)
        found.append(o)
    for b, n in enumerate(LENGTHS):
        for k in range(K):
            row = torch.cat([x[b, :n], y[b, k]])[None]
            expected = mixer(row, everything(row, causal=True), position)[0, n:]
            close(torch.stack([o[b, k] for o in found]), expected)


@pytest.mark.parametrize("name", mixers.names)
def test_without_bias_there_is_none(name: str) -> None:
    assert not [key for key, _ in mixer_of(name, bias=False).named_parameters() if key.endswith("bias")]
