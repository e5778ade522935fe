"""The Transformer block against torch's own layers, with copied weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from dragoman.core.interfaces import Memory, Segments
from dragoman.core.registry import Part
from dragoman.nn.attention import MultiHead
from dragoman.nn.blocks import Block, Style
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders

D, HEADS, INNER, B, T, S = 8, 2, 12, 3, 5, 6
ORDERS = pytest.mark.parametrize("order", ["pre", "post"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "gelu"])


def block_of(order: Any, activation: Any, d_memory: int | None) -> Block:
    style = Style(HEADS, INNER, activation, Part("layer"), order, 0.0, 0.0, Part("scaled_dot"), Part("softmax"))
    return noisy(Block(D, d_memory, style))  # type: ignore[no-any-return]


def noisy(module: Any) -> Any:
    for p in module.parameters():
        nn.init.normal_(p, std=0.4)
    return module


@torch.no_grad()
def copy_attention(ours: MultiHead, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.Wq.weight, ours.Wk.weight, ours.Wv.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.Wq.bias, ours.Wk.bias, ours.Wv.bias]))
    theirs.out_proj.load_state_dict(ours.Wo.state_dict())


def copy_block(ours: Block, theirs: Any) -> None:
    copy_attention(ours.self_attention, theirs.self_attn)
    theirs.linear1.load_state_dict(ours.feedforward.W1.state_dict())
    theirs.linear2.load_state_dict(ours.feedforward.W2.state_dict())
    theirs.norm1.load_state_dict(ours.self_norm.state_dict())
    if ours.cross_attention is None or ours.cross_norm is None:
        theirs.norm2.load_state_dict(ours.feedforward_norm.state_dict())
    else:
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        theirs.norm2.load_state_dict(ours.cross_norm.state_dict())
        theirs.norm3.load_state_dict(ours.feedforward_norm.state_dict())


def theirs_of(kind: Any, order: str, activation: str) -> Any:
    return kind(D, HEADS, INNER, 0.0, activation, batch_first=True, norm_first=order == "pre")


@ORDERS
@ACTIVATIONS
def test_an_encoder_block_is_torch_s(order: str, activation: str) -> None:
    ours, theirs = block_of(order, activation, None), theirs_of(nn.TransformerEncoderLayer, order, activation)
    copy_block(ours, theirs)
    x, real = torch.randn(B, T, D), Segments(torch.tensor([5, 2, 1])).mask(T)
    expected = theirs(x, src_key_padding_mask=~real)
    assert_close(ours(x, real[:, None, None])[real], expected[real], atol=1e-5, rtol=1e-4)


@ORDERS
@ACTIVATIONS
def test_a_decoder_block_is_torch_s(order: str, activation: str) -> None:
    ours, theirs = block_of(order, activation, D), theirs_of(nn.TransformerDecoderLayer, order, activation)
    copy_block(ours, theirs)
    y, memory, real = torch.randn(B, T, D), torch.randn(B, S, D), Segments(torch.tensor([6, 2, 1])).mask(S)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs(y, memory, tgt_mask=future, memory_key_padding_mask=~real)
    assert_close(ours(y, None, True, memory, real[:, None, None]), expected, atol=1e-5, rtol=1e-4)


@ORDERS
def test_an_encoder_is_torch_s_stack_with_a_last_norm_only_where_the_order_needs_one(order: str) -> None:
    options = {"layers": 2, "heads": HEADS, "feedforward": INNER, "norm_order": order, "position": Part("none")}
    ours: Any = noisy(encoders.build(Part("transformer", options), D)).eval()
    layer = theirs_of(nn.TransformerEncoderLayer, order, "relu")
    last = nn.LayerNorm(D) if order == "pre" else None
    theirs = nn.TransformerEncoder(layer, 2, norm=last, enable_nested_tensor=False)
    for a, b in zip(ours.blocks, theirs.layers, strict=True):
        copy_block(a, b)
    if last is not None:
        theirs.norm.load_state_dict(ours.norm.state_dict())
    x, lengths = torch.randn(B, S, D), torch.tensor([6, 3, 1])
    expected = theirs(x, src_key_padding_mask=~Segments(lengths).mask(S))
    memory = ours(x, Segments(lengths))
    for i, n in enumerate(lengths.tolist()):
        assert_close(memory.states[i, :n], expected[i, :n], atol=1e-5, rtol=1e-4)
        assert_close(memory.summary[i], expected[i, :n].mean(0), atol=1e-5, rtol=1e-4)


@ORDERS
def test_a_decoder_is_torch_s_stack_with_positions_added_first(order: str) -> None:
    options = {"layers": 2, "heads": HEADS, "feedforward": INNER, "norm_order": order}
    ours: Any = noisy(decoders.build(Part("transformer", options), D, D)).eval()
    layer = theirs_of(nn.TransformerDecoderLayer, order, "relu")
    last = nn.LayerNorm(D) if order == "pre" else None
    theirs = nn.TransformerDecoder(layer, 2, norm=last)
    for a, b in zip(ours.blocks, theirs.layers, strict=True):
        copy_block(a, b)
    if last is not None:
        theirs.norm.load_state_dict(ours.norm.state_dict())
    y, lengths = torch.randn(B, T, D), torch.tensor([6, 3, 1])
    memory = Memory(torch.randn(B, S, D), lengths, torch.zeros(B, D))
    angles = torch.arange(T)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
    waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    expected = theirs(
        y + waves, memory.states, torch.ones(T, T, dtype=torch.bool).triu(1), memory_key_padding_mask=~memory.mask
    )
    assert_close(ours(y, memory).o, expected, atol=1e-5, rtol=1e-4)


def test_swapping_two_source_words_matters_with_positions_and_only_then() -> None:
    x = torch.randn(1, S, D)
    swapped = x[:, [1, 0, 2, 3, 4, 5]]
    for position, same in {"none": True, "sinusoidal": False, "learned": False}.items():
        options = {"layers": 2, "heads": HEADS, "position": Part(position)}
        encoder: Any = noisy(encoders.build(Part("transformer", options), D)).eval()
        a, b = (encoder(words, Segments(torch.tensor([S]))) for words in (x, swapped))
        assert torch.allclose(a.summary, b.summary, atol=1e-4) == same
        assert torch.allclose(a.states[:, [1, 0, 2, 3, 4, 5]], b.states, atol=1e-4) == same


def test_the_longest_input_is_that_of_the_positions() -> None:
    learned = {"position": Part("learned", {"length": 7})}
    for part in (
        encoders.build(Part("transformer", learned), D),
        decoders.build(Part("transformer", learned), D, D),
    ):
        assert part.length == 7  # type: ignore[attr-defined]
    assert encoders.build(Part("transformer"), D).length is None  # type: ignore[attr-defined]


def test_dropout_is_for_training_alone() -> None:
    ours: Any = encoders.build(Part("transformer", {"dropout": 0.5, "layers": 1}), D)
    x, segments = torch.randn(B, S, D), Segments(torch.tensor([6, 6, 6]))
    assert not torch.equal(ours.train()(x, segments).states, ours(x, segments).states)
    assert torch.equal(ours.eval()(x, segments).states, ours(x, segments).states)
