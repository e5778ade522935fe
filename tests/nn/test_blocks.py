"""The Transformer block and the stack of them: against torch's own layers with copied weights, and option by option."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.core.errors import PartError
from dragoman.core.registry import Part
from dragoman.core.types import Capacity, Memory, Segments
from dragoman.nn.attention import AttentionMask, MultiHeadAttention, MultiHeadConfig, record_attention
from dragoman.nn.blocks import TransformerBlock
from dragoman.nn.decoders import decoders
from dragoman.nn.encoders import encoders
from dragoman.nn.positions import positions
from dragoman.nn.token_mixers import BlockConfig, mixers

D, HEADS, INNER, B, K, T, S = 8, 2, 12, 3, 2, 5, 6
SMALL: dict[str, Any] = {"layers": 2, "heads": HEADS, "feedforward": INNER}
ORDERS = pytest.mark.parametrize("order", ["pre", "post"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "gelu"])


def noisy(module: Any) -> Any:
    for p in module.parameters():
        nn.init.normal_(p, std=0.4)
    return module


def encoder_of(**options: Any) -> Any:
    return noisy(encoders.build(Part("transformer", SMALL | options), D)).eval()


def decoder_of(**options: Any) -> Any:
    return noisy(decoders.build(Part("transformer", SMALL | options), D, D)).eval()


def a_memory(lengths: tuple[int, ...] = (6, 3, 1)) -> Memory:
    return Memory(torch.randn(B, S, D), torch.tensor(lengths), torch.zeros(B, D))


def close(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=1e-5, rtol=1e-4)


# -- torch's layers ----------------------------------------------------------------------------------------------------


def block_of(order: Any, activation: Any, d_memory: int | None) -> TransformerBlock:
    heads = MultiHeadConfig(HEADS, Part("scaled_dot"), Part("softmax"))
    style = BlockConfig(
        heads, INNER, activation, Part("layer"), order, 0.0, Part("attention"), causal=d_memory is not None
    )
    return noisy(TransformerBlock(D, d_memory, style))  # type: ignore[no-any-return]


@torch.no_grad()
def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.Wq.weight, ours.Wk.weight, ours.Wv.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.Wq.bias, ours.Wk.bias, ours.Wv.bias]))
    theirs.out_proj.load_state_dict(ours.Wo.state_dict())


def copy_block(ours: Any, theirs: Any) -> None:
    copy_attention(ours.mixer, theirs.self_attn)
    theirs.linear1.load_state_dict(ours.feedforward.W1.state_dict())
    theirs.linear2.load_state_dict(ours.feedforward.W2.state_dict())
    theirs.norm1.load_state_dict(ours.mixer_norm.state_dict())
    if ours.cross_attention is None:
        theirs.norm2.load_state_dict(ours.feedforward_norm.state_dict())
    else:
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        theirs.norm2.load_state_dict(ours.cross_norm.state_dict())
        theirs.norm3.load_state_dict(ours.feedforward_norm.state_dict())


def theirs_of(kind: Any, order: str, activation: str = "relu") -> Any:
    return kind(D, HEADS, INNER, 0.0, activation, batch_first=True, norm_first=order == "pre")


@ORDERS
@ACTIVATIONS
def test_an_encoder_block_is_torch_s(order: str, activation: str) -> None:
    ours, theirs = block_of(order, activation, None), theirs_of(nn.TransformerEncoderLayer, order, activation)
    copy_block(ours, theirs)
    x, real = torch.randn(B, T, D), Segments(torch.tensor([5, 2, 1])).mask(T)
    expected = theirs(x, src_key_padding_mask=~real)
    found = ours(x, AttentionMask(torch.arange(T)[None], real[:, None, None]), None)
    close(found[real], expected[real])


@ORDERS
@ACTIVATIONS
def test_a_decoder_block_is_torch_s(order: str, activation: str) -> None:
    ours, theirs = block_of(order, activation, D), theirs_of(nn.TransformerDecoderLayer, order, activation)
    copy_block(ours, theirs)
    y, memory, t = torch.randn(B, T, D), a_memory(), torch.arange(T)[None]
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs(y, memory.states, tgt_mask=future, memory_key_padding_mask=~memory.mask)
    close(ours(y, AttentionMask(t, None, True), None, memory, AttentionMask(t, memory.mask[:, None, None])), expected)


@ORDERS
@pytest.mark.parametrize("embedding_norm", [False, True])
def test_an_encoder_is_torch_s_stack_with_norms_where_it_says(order: str, embedding_norm: bool) -> None:
    """One at the end where the blocks leave their sums as they are, one at the beginning where it is asked for."""
    ours = encoder_of(norm_order=order, position=Part("none"), embedding_norm=embedding_norm)
    last = nn.LayerNorm(D) if order == "pre" else None
    theirs = nn.TransformerEncoder(
        theirs_of(nn.TransformerEncoderLayer, order), 2, norm=last, enable_nested_tensor=False
    )
    for a, b in zip(ours.stack.blocks, theirs.layers, strict=True):
        copy_block(a, b)
    if last is not None:
        last.load_state_dict(ours.stack.norm.state_dict())
    x, lengths, first = torch.randn(B, S, D), torch.tensor([6, 3, 1]), nn.LayerNorm(D)
    if embedding_norm:
        first.load_state_dict(ours.stack.embedding_norm.state_dict())
    expected = theirs(first(x) if embedding_norm else x, src_key_padding_mask=~Segments(lengths).mask(S))
    memory = ours(x, Segments(lengths))
    for i, n in enumerate(lengths.tolist()):
        close(memory.states[i, :n], expected[i, :n])
        close(memory.summary[i], expected[i, :n].mean(0))


@ORDERS
def test_a_decoder_is_torch_s_stack_with_positions_added_first(order: str) -> None:
    ours = decoder_of(norm_order=order)
    last = nn.LayerNorm(D) if order == "pre" else None
    theirs = nn.TransformerDecoder(theirs_of(nn.TransformerDecoderLayer, order), 2, norm=last)
    for a, b in zip(ours.stack.blocks, theirs.layers, strict=True):
        copy_block(a, b)
    if last is not None:
        last.load_state_dict(ours.stack.norm.state_dict())
    y, memory = torch.randn(B, T, D), a_memory()
    angles = torch.arange(T)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
    waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    close(ours(y, memory).o, theirs(y + waves, memory.states, future, memory_key_padding_mask=~memory.mask))


def test_the_paper_s_sizes_are_the_defaults_and_depths_are_independent() -> None:
    encoder: Any = encoders.build(Part("transformer"), 16)
    decoder: Any = decoders.build(Part("transformer"), 16, 16)
    for part in (encoder, decoder):
        blocks = part.stack.blocks
        assert len(blocks) == 6
        assert all(block.mixer.heads == 8 and block.feedforward.W1.out_features == 4 * 16 for block in blocks)
    deep, shallow = encoder_of(layers=5), decoder_of(layers=1)
    memory = deep(torch.randn(B, S, D), Segments(torch.tensor([6, 3, 1])))
    assert shallow(torch.randn(B, T, D), memory).o.shape == (B, T, D)
    assert (len(deep.stack.blocks), len(shallow.stack.blocks)) == (5, 1)


# -- positions ---------------------------------------------------------------------------------------------------------

NEAR = {  # schemes with a reach: shorter than the target, except for learned, which end with it
    "t5": {"buckets": 4, "distance": 3},
    "shaw": {"distance": 2, "values": True},
    "xl": {"distance": 2},
    "learned": {"length": T},
}


@torch.no_grad()
@pytest.mark.parametrize("name", positions.names)
def test_under_every_position_scheme_step_by_step_is_all_at_once(name: str) -> None:
    """Two hypotheses of each sentence, and more tokens than the schemes of relative places tell apart."""
    ours, memory = decoder_of(position=Part(name, NEAR.get(name, {})), key_heads=1), a_memory()
    y = torch.randn(B, K, T, D)
    state = ours.start(memory, Capacity(K, T + 2))
    at_once = torch.stack([ours(y[:, k], memory).o for k in range(K)], 1)
    for t in range(T):
        output, state = ours.step(y[:, :, t], state)
        close(output.o, at_once[:, :, t])


def test_swapping_two_source_words_matters_with_positions_and_only_then() -> None:
    x, order = torch.randn(1, S, D), [1, 0, 2, 3, 4, 5]
    for name in positions.names:
        encoder = encoder_of(position=Part(name))
        a, b = (encoder(words, Segments(torch.tensor([S]))) for words in (x, x[:, order]))
        assert torch.allclose(a.states[:, order], b.states, atol=1e-4) == (name == "none"), name


def test_shaw_has_vectors_for_every_layer_of_its_own_and_t5_one_table_for_all() -> None:
    for name, shared, own in (("shaw", False, 3), ("shaw", True, 1), ("t5", False, 1), ("learned", False, 1)):
        stack = encoder_of(layers=3, position=Part(name), shared=shared).stack
        assert len(stack.positions) == own
        assert len({id(stack.position_scheme(i)) for i in range(3)}) == own


def test_shaw_s_values_need_heads_of_one_width() -> None:
    position = Part("shaw", {"values": True})
    with pytest.raises(PartError, match=r"'shaw' positions .* keys are 4 and values 3 wide; make key_width and value"):
        encoder_of(position=position, value_width=3)
    encoder_of(position=position, key_width=3, value_width=3)
    encoder_of(position=Part("shaw"), value_width=3)


def test_the_longest_input_is_that_of_the_positions() -> None:
    learned = Part("learned", {"length": 7})
    assert encoder_of(position=learned).max_positions == decoder_of(position=learned).max_positions == 7
    assert encoder_of().max_positions is None


# -- the memory --------------------------------------------------------------------------------------------------------


def test_values_may_differ_from_keys() -> None:
    """Memory.values, as ConvS2S hands them on: where all are alike, it does not matter which state was looked at."""
    ours, memory, y = decoder_of(), a_memory(), torch.randn(B, T, D)
    same = torch.randn(B, 1, D).expand(B, S, D)
    close(ours(y, replace(memory, values=memory.states)).o, ours(y, memory).o)
    alike = replace(memory, values=same)
    expected = ours(y, alike).o
    close(ours(y, replace(alike, states=torch.randn(B, S, D))).o, expected)
    close(ours(y, replace(memory, states=same.contiguous())).o, expected)
    state = ours.start(alike, Capacity(1, T))
    for t in range(T):
        output, state = ours.step(y[:, t : t + 1], state)
        close(output.o[:, 0], expected[:, t])


def test_a_source_of_which_nothing_is_real_gives_no_nan() -> None:
    memory = a_memory((6, 0, 1))
    x = memory.states.requires_grad_()
    for position in (Part("sinusoidal"), Part("alibi"), Part("t5")):
        encoded = encoder_of(position=position)(x, Segments(memory.lengths))
        o = decoder_of(position=position)(torch.randn(B, T, D), encoded).o
        assert torch.isfinite(o).all()
        assert torch.isfinite(torch.autograd.grad(o.sin().sum(), x)[0]).all()


# -- training ----------------------------------------------------------------------------------------------------------


def test_shared_layers_are_one_layer_again_and_again() -> None:
    one, shared, copied = (encoder_of(layers=n, shared=s) for n, s in ((1, False), (3, True), (3, False)))
    weights = one.state_dict()
    copied.load_state_dict({name: weights[re.sub(r"blocks\.\d", "blocks.0", name)] for name in copied.state_dict()})
    shared.load_state_dict(copied.state_dict())
    assert sum(p.numel() for p in shared.parameters()) == sum(p.numel() for p in one.parameters())
    x, segments = torch.randn(2, 5, D), Segments(torch.tensor([5, 3]))
    found, wanted = shared(x, segments).states, copied(x, segments).states
    close(found[0], wanted[0])
    close(found[1, :3], wanted[1, :3])


def test_attention_of_shared_layers_is_the_mean_over_all_their_calls() -> None:
    decoder = decoder_of(layers=2, shared=True)
    with record_attention() as recorded:
        output = decoder(torch.randn(3, 4, D), a_memory())
    [module] = [m for m in recorded if m is decoder.stack.blocks[0].cross_attention]
    assert len(recorded[module]) == 2
    close(output.attention, torch.stack([a.mean(1) for a in recorded[module]]).mean(0))


def test_dropout_is_for_training_alone() -> None:
    ours, x, segments = encoder_of(dropout=0.5, layers=1), torch.randn(B, S, D), Segments(torch.tensor([6, 6, 6]))
    assert not torch.equal(ours.train()(x, segments).states, ours(x, segments).states)
    assert torch.equal(ours.eval()(x, segments).states, ours(x, segments).states)


def test_a_dropped_layer_is_the_identity_and_as_many_are_dropped_as_it_says() -> None:
    share, passes = 0.3, 400
    options: dict[str, Any] = {"dropout": 0.0, "norm_order": "post", "position": Part("none")}
    ours = encoder_of(layer_drop=share, **options)
    x, segments, attention_mask = (
        torch.randn(1, S, D),
        Segments(torch.tensor([S])),
        AttentionMask(torch.arange(S)[None], None),
    )
    first, second = ours.stack.blocks
    with torch.no_grad():
        one, two = first(x, attention_mask, None), second(x, attention_mask, None)
        both = second(one, attention_mask, None)
        assert all(torch.allclose(ours(x, segments).states, both, atol=1e-5) for _ in range(20))  # in evaluation
        ours.train()
        found: Counter[int] = Counter()
        for _ in range(passes):
            y = ours(x, segments).states
            kinds = [i for i, z in enumerate((both, one, two, x)) if torch.allclose(y, z, atol=1e-5)]
            assert len(kinds) == 1
            found.update(kinds)
    for kind, p in enumerate((0.7 * 0.7, 0.7 * 0.3, 0.3 * 0.7, 0.3 * 0.3)):
        assert abs(found[kind] - passes * p) < 5 * math.sqrt(passes * p * (1 - p))


@ORDERS
def test_padding_does_not_enter_the_statistics_of_batch_norm(order: str) -> None:
    """In training: rows padded with noise come out, and are remembered, as rows padded with anything else."""
    options: dict[str, Any] = {"norm": Part("batch"), "norm_order": order, "dropout": 0.0, "embedding_norm": True}
    one, other = encoder_of(**options), encoder_of(**options)
    other.load_state_dict(one.state_dict())
    x, segments = torch.randn(B, S, D), Segments(torch.tensor([6, 3, 1]))
    real, noise = segments.mask(S), torch.randn(B, S + 2, D) * 50
    noise[:, :S][real] = x[real]
    a, b = one.train()(x, segments), other.train()(noise, segments)
    close(a.states[real], b.states[:, :S][real])
    for (name, p), q in zip(one.named_buffers(), other.buffers(), strict=True):
        close(p, q)
        assert not name.endswith("running_mean") or p.abs().sum() > 0  # it did learn something
    close(one.eval()(x, segments).summary, other.eval()(noise, segments).summary)


def test_a_decoder_refuses_a_norm_that_would_show_it_the_future() -> None:
    with pytest.raises(PartError, match=r"norm 'batch' averages over positions in training, .* use 'layer' or 'rms'"):
        decoder_of(norm=Part("batch"))


@pytest.mark.parametrize("mixer", mixers.names)
def test_without_bias_no_block_has_one(mixer: str) -> None:
    options: dict[str, Any] = {"mixer": Part(mixer), "norm": Part("rms"), "activation": "swiglu"}
    with_bias, without = (
        {name for name, _ in decoder_of(bias=bias, **options).stack.blocks.named_parameters() if "bias" in name}
        for bias in (True, False)
    )
    assert with_bias
    assert not without
