"""Decoder-only Transformers: source and target as one sequence, read from left to right or with the source seen whole.

B sentences, K hypotheses, S source and T target positions; n_b are the real lengths of the sources.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Capacity, Memory
from dragoman.nn.attention import record_attention
from dragoman.nn.decoders import decoders

D, HEADS, INNER, B, K, S, T = 8, 2, 12, 3, 2, 4, 3
LENGTHS = [4, 2, 0]
SOURCES = pytest.mark.parametrize("source", ["prefix", "full_prefix"])


def decoder_of(**options: Any) -> Any:
    small = {"layers": 2, "heads": HEADS, "feedforward": INNER}
    return settled(decoders.build(Part("transformer", small | options), D, D))


def settled(module: Any) -> Any:
    """In evaluation mode, with every weight moved a little: what begins as 0 or 1 must not hide a mistake."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return module.eval()


def memory_of(lengths: list[int], size: int = S) -> Memory:
    return Memory(torch.randn(len(lengths), size, D), torch.tensor(lengths), torch.zeros(len(lengths), D))


def row_of(memory: Memory, b: int) -> Memory:
    """One sentence without its padding."""
    n = int(memory.lengths[b])
    return Memory(memory.states[b : b + 1, :n], memory.lengths[b : b + 1], memory.summary[b : b + 1])


def seen_by(source: str, n: int, size: int) -> list[list[bool]]:
    """Who (row) sees whom (column) in a sequence whose first n places are the source."""
    return [[j <= i or (source == "full_prefix" and j < n) for j in range(size)] for i in range(size)]


def close(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=2e-5, rtol=1e-4)


@SOURCES
@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_decoder_without_cross_attention_is_torch_s_encoder_under_a_mask(source: str, order: str) -> None:
    ours: Any = decoder_of(source=source, norm_order=order, activation="gelu")
    layer = nn.TransformerEncoderLayer(D, HEADS, INNER, 0.0, "gelu", batch_first=True, norm_first=order == "pre")
    last = nn.LayerNorm(D) if order == "pre" else None
    theirs = nn.TransformerEncoder(layer, 2, norm=last, enable_nested_tensor=False)
    for a, b in zip(ours.stack.blocks, theirs.layers, strict=True):
        copy_block(a, b)
    if last is not None:
        last.load_state_dict(ours.stack.norm.state_dict())
    memory, y = memory_of(LENGTHS), torch.randn(B, T, D)
    output = ours(y, memory)
    assert output.extras["prefix"].shape == (B, S, D)
    for b, n in enumerate(LENGTHS):
        x = torch.cat([memory.states[b, :n], y[b]])
        angles = torch.arange(n + T)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
        x = x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        expected = theirs(x[None], mask=~torch.tensor(seen_by(source, n, n + T)))[0]
        close(output.extras["prefix"][b, :n], expected[:n])
        close(output.o[b], expected[n:])


@torch.no_grad()
def copy_block(ours: Any, theirs: Any) -> None:
    mixer = ours.mixer
    theirs.self_attn.in_proj_weight.copy_(torch.cat([mixer.Wq.weight, mixer.Wk.weight, mixer.Wv.weight]))
    theirs.self_attn.in_proj_bias.copy_(torch.cat([mixer.Wq.bias, mixer.Wk.bias, mixer.Wv.bias]))
    theirs.self_attn.out_proj.load_state_dict(mixer.Wo.state_dict())
    theirs.linear1.load_state_dict(ours.feedforward.W1.state_dict())
    theirs.linear2.load_state_dict(ours.feedforward.W2.state_dict())
    theirs.norm1.load_state_dict(ours.mixer_norm.state_dict())
    theirs.norm2.load_state_dict(ours.feedforward_norm.state_dict())


@torch.no_grad()
@SOURCES
@pytest.mark.parametrize(
    ("mixer", "position"),
    [
        ("attention", Part("learned", {"length": 6})),
        ("attention", Part("alibi")),
        ("parameter_free", Part("learned", {"length": 6})),
    ],
    ids=["attention-learned", "attention-alibi", "parameter_free-learned"],
)
def test_who_sees_whom(source: str, mixer: str, position: Part) -> None:
    """The table of influence: change one input, see whose output moves. Padding moves nobody.

    Learned positions end with the longest row, so that the places behind it, which are padding, are past their reach.
    """
    ours: Any = decoder_of(source=source, mixer=Part(mixer), position=position).double()  # small weights are seen too
    memory, y = memory_of([3, 1, 0]), torch.randn(B, T, D).double()  # S + T is 7, the longest row 6
    memory = replace(memory, states=memory.states.double())

    def outputs(states: Tensor, y: Tensor) -> list[Tensor]:
        output = ours(y, replace(memory, states=states))
        prefix = output.extras["prefix"]
        return [torch.cat([prefix[b, :n], output.o[b]]) for b, n in enumerate(memory.lengths.tolist())]

    before = outputs(memory.states, y)
    tables: list[list[list[bool]]] = [[] for _ in range(B)]  # row → input → which outputs moved
    for j in range(S + T):
        states, target = memory.states.clone(), y.clone()
        (states[:, j] if j < S else target[:, j - S]).normal_()
        for b, (x, z) in enumerate(zip(before, outputs(states, target), strict=True)):
            tables[b].append(((x - z).abs().amax(-1) > 1e-10).tolist())
    for b, n in enumerate(memory.lengths.tolist()):
        influence, padding = tables[b][:n] + tables[b][S:], tables[b][n:S]
        assert [list(row) for row in zip(*influence, strict=True)] == seen_by(source, n, n + T)
        assert not any(any(moved) for moved in padding)


@torch.no_grad()
@pytest.mark.parametrize(
    ("source", "mixer"),
    [("prefix", name) for name in ("attention", "parameter_free", "average", "ssru")]
    + [("full_prefix", name) for name in ("attention", "parameter_free")],
)
@pytest.mark.parametrize("order", ["pre", "post"])
def test_steps_after_the_source_are_the_row_read_at_once_without_padding(source: str, mixer: str, order: str) -> None:
    position = Part("shaw" if mixer == "attention" else "sinusoidal")  # every block with its own, where it can
    ours: Any = decoder_of(source=source, mixer=Part(mixer), norm_order=order, position=position)
    memory, y = memory_of(LENGTHS), torch.randn(B, K, T, D)
    state, found = ours.start(memory, Capacity(K, T)), []
    for t in range(T):
        output, state = ours.step(y[:, :, t], state)
        found.append(output.o)
    for b in range(B):
        for k in range(K):
            alone = ours(y[b : b + 1, k], row_of(memory, b)).o[0]
            close(torch.stack([o[b, k] for o in found]), alone)
            close(ours(y[:, k], memory).o[b], alone)


@torch.no_grad()
@SOURCES
def test_a_plain_language_model_has_a_source_of_length_0_and_a_source_may_stand_alone(source: str) -> None:
    ours: Any = decoder_of(source=source)
    nothing, y = memory_of([0, 0], 0), torch.randn(2, T, D)
    output, state = ours(y, nothing), ours.start(nothing, Capacity(1, T))
    assert output.extras["prefix"].shape == (2, 0, D)
    close(output.o, ours(y, memory_of([0, 0], 3)).o)  # nothing but padding is nothing
    for t in range(T):
        step, state = ours.step(y[:, t : t + 1], state)
        close(step.o[:, 0], output.o[:, t])
    memory = memory_of([4, 2])
    whole, alone = ours(y, memory).extras["prefix"], ours(y[:, :0], memory)
    assert alone.o.shape == (2, 0, D)
    for b, n in enumerate([4, 2]):
        close(alone.extras["prefix"][b, :n], whole[b, :n])  # the source never sees the target


@torch.no_grad()
@SOURCES
def test_learned_positions_reach_the_end_of_the_longest_row_and_padding_may_go_farther(source: str) -> None:
    ours: Any = decoder_of(source=source, position=Part("learned", {"length": 6}))
    assert ours.max_positions == 6
    memory, y = memory_of([4, 1], 9), torch.randn(2, 5, D)  # rows of 4 + 2 and of 1 + 5, padded to 9 + 5
    output = ours(y, memory).o
    for b, size in enumerate((2, 5)):
        close(output[b, :size], ours(y[b : b + 1, :size], row_of(memory, b)).o[0])
    state = ours.start(memory, Capacity(1, 5))
    for t in range(2):
        step, state = ours.step(y[:, t : t + 1], state)
        close(step.o[:, 0], output[:, t])


def test_a_decoder_without_cross_attention_returns_no_attention() -> None:
    with record_attention():
        assert decoder_of(source="prefix")(torch.randn(B, T, D), memory_of(LENGTHS)).attention is None


@SOURCES
def test_a_source_of_another_width_cannot_be_a_prefix(source: str) -> None:
    with pytest.raises(PartError, match=f"source: {source} needs an embedded source of width 8, .* 12; use"):
        decoders.build(Part("transformer", {"source": source}), 8, 12)


@pytest.mark.parametrize("mixer", ["average", "ssru"])
def test_a_mixer_that_reads_from_left_to_right_refuses_a_bidirectional_prefix(mixer: str) -> None:
    with pytest.raises(PartError, match=f"'{mixer}' reads from left to right, .* use source: prefix"):
        decoder_of(source="full_prefix", mixer=Part(mixer))
