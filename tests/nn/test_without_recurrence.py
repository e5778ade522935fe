"""What is left when recurrence is dropped: encoders that compute nothing, and a decoder that only attends (SPEC B7)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.types import Capacity, Memory, Segments
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders

D, D_MEMORY, B, S, T, K = 6, 4, 3, 5, 4, 2
LENGTHS = [5, 1, 0]


def near(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=1e-5, rtol=1e-4)


def encoder_with(name: str, **options: Any) -> Any:
    return encoders.build(encoders.parse({"name": name, **options}), D).eval()  # type: ignore[attr-defined]


def decoder_with(**options: Any) -> Any:
    decoder: Any = decoders.build(decoders.parse({"name": "attention", **options}), D, D_MEMORY)
    for p in decoder.parameters():
        nn.init.normal_(p, std=0.5)
    return decoder.eval()


def wave(t: int) -> Tensor:
    """PE(t) of width D in plain numbers."""
    return torch.tensor([f(t / 10000 ** (2 * i / D)) for i in range(D // 2) for f in (math.sin, math.cos)])


# -- encoders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["identity", "none"])
def test_bare_encoders_hand_on_the_tokens_and_their_mean(name: str) -> None:
    x = torch.randn(B, S, D)
    memory = encoder_with(name)(x, Segments(torch.tensor(LENGTHS)))
    assert torch.equal(memory.states, x)
    near(memory.summary[0], sum(x[0], torch.zeros(D)) / 5)
    near(memory.summary[1], x[1, 0])
    assert not memory.summary[2].any()


def test_the_identity_encoder_adds_positions_where_it_is_told_to() -> None:
    x = torch.randn(B, S, D)
    memory = encoder_with("identity", position="sinusoidal")(x, Segments(torch.tensor(LENGTHS)))
    near(memory.states, x + torch.stack([wave(t) for t in range(S)]))
    assert encoder_with("identity", position={"name": "learned", "length": 7}).max_positions == 7


def test_bare_encoders_take_empty_sources() -> None:
    for name in ("identity", "none"):
        memory = encoder_with(name)(torch.zeros(2, 0, D), Segments(torch.tensor([0, 0])))
        assert memory.states.shape == (2, 0, D)
        assert torch.equal(memory.summary, torch.zeros(2, D))


def test_positions_that_act_in_attention_are_refused_without_heads() -> None:
    with pytest.raises(PartError, match="rotary"):
        encoder_with("identity", position="rotary")


# -- decoder -------------------------------------------------------------------------------------------------------


def in_loops(decoder: Any, past: bool, y: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The equations of the module's header for one sentence: y (T, D), h (n, D_memory)."""
    x, outputs, weights = [y_t + wave(t) for t, y_t in enumerate(y)], [], []
    score = decoder.attention.score
    for t in range(len(x)):
        s = x[t]
        if past:
            e = [math.exp(float(x[t] @ x[j]) / math.sqrt(D)) for j in range(t + 1)]
            s = s + sum(((e_j / sum(e)) * x[j] for j, e_j in enumerate(e)), torch.zeros(D))
        a = torch.stack([score.v.weight[0] @ torch.tanh(score.W1(s) + score.W2(h_j)) for h_j in h]).softmax(0)
        outputs.append(torch.tanh(decoder.W(torch.cat([s, a @ h]))))
        weights.append(a)
    return torch.stack(outputs), torch.stack(weights)


@pytest.mark.parametrize("past", [True, False])
@torch.no_grad()
def test_the_attention_decoder_is_its_equations(past: bool) -> None:
    decoder, lengths = decoder_with(past=past), [5, 2, 1]
    memory = Memory(torch.randn(B, S, D_MEMORY), torch.tensor(lengths), torch.randn(B, D_MEMORY))
    y = torch.randn(B, T, D)
    found = decoder(y, memory)
    for i, n in enumerate(lengths):
        o, a = in_loops(decoder, past, y[i], memory.states[i, :n])
        near(found.o[i], o)
        near(found.attention[i, :, :n], a)


@pytest.mark.parametrize("options", [{}, {"past": False}, {"normalizer": {"name": "local_m", "window": 1}}], ids=str)
@torch.no_grad()
def test_step_by_step_it_sees_what_it_sees_at_once(options: dict[str, Any]) -> None:
    decoder = decoder_with(**options)
    memory = Memory(torch.randn(B, S, D_MEMORY), torch.tensor(LENGTHS), torch.randn(B, D_MEMORY))
    y = torch.randn(B, K, T, D)
    whole = [decoder(y[:, k], memory) for k in range(K)]
    state = decoder.start(memory, Capacity(K, T + 1))
    for t in range(T):
        output, state = decoder.step(y[:, :, t], state)
        for k in range(K):
            near(output.o[:, k], whole[k].o[:, t])
            near(output.attention[:, k], whole[k].attention[:, t])


@torch.no_grad()
def test_without_past_only_the_last_token_and_its_position_matter() -> None:
    memory = Memory(torch.randn(B, S, D_MEMORY), torch.tensor(LENGTHS), torch.randn(B, D_MEMORY))
    y = torch.randn(B, T, D)
    other = torch.cat([torch.randn(B, T - 1, D), y[:, -1:]], 1)
    for past in (True, False):
        decoder = decoder_with(past=past)
        moved = (decoder(y, memory).o[:, -1] - decoder(other, memory).o[:, -1]).abs().max()
        assert (moved > 1e-3) == past


def test_the_target_may_be_empty() -> None:
    memory = Memory(torch.randn(B, S, D_MEMORY), torch.tensor(LENGTHS), torch.randn(B, D_MEMORY))
    found = decoder_with()(torch.randn(B, 0, D), memory)
    assert found.o.shape == (B, 0, D)


def test_a_score_that_needs_past_weights_is_refused() -> None:
    with pytest.raises(PartError, match="score 'coverage' needs the weights of earlier steps"):
        decoder_with(score="coverage")
