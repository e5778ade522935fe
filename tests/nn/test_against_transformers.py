"""Published systems from our parts: with the weights of Hugging Face's models, the same logits.

Each model is tiny, random and made here, so nothing is downloaded; a map from our names to theirs carries the weights
over, and nothing of ours may be left without. Their norms and biases begin as ones and zeros, where a mistake would not
show, so every weight is drawn anew first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dragoman.core.registry import Part
from dragoman.core.types import PAD, Batch
from dragoman.nn.seq2seq import Seq2Seq

transformers = pytest.importorskip("transformers")

V, D, LAYERS, HEADS, INNER, REACH = 17, 12, 2, 3, 20, 24
SIZES = {"layers": LAYERS, "heads": HEADS, "feedforward": INNER}
SPECIAL = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}

Weights = dict[str, Tensor]
Names = Mapping[str, str]  # ours → theirs


def drawn(model: Any) -> Any:
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.4).add_(float(p.dim() == 1))  # gains around 1
    return model.eval()


def ids() -> tuple[Tensor, Tensor]:
    """Rows of different lengths, (B, T) with padding, and the lengths."""
    lengths = torch.tensor([7, 1, 4])
    tokens = torch.randint(3, V, (3, 7))
    return tokens.masked_fill(torch.arange(7) >= lengths[:, None], PAD), lengths


def carried(names: Names, theirs: Weights) -> Iterator[tuple[str, Tensor]]:
    """Weights and biases of modules under our names; a module may have no bias."""
    for mine, other in names.items():
        for end in ("weight", "bias"):
            if f"{other}.{end}" in theirs:
                yield f"{mine}.{end}", theirs[f"{other}.{end}"]


def below(mine: str, other: str, names: Names) -> Names:
    return {f"{mine}.{ours}": f"{other}.{name}" for ours, name in names.items()}


def table(weights: Tensor) -> Weights:
    """One table in its three places."""
    return {f"{place}.weight": weights for place in ("frontend.table", "embedding.table", "output")}


def same_logits(ours: Seq2Seq, theirs: Any) -> None:
    """Both read the same source and the same inputs of the decoder; logits are compared where those are real."""
    (source, lengths), (target, _) = ids(), ids()
    with torch.no_grad():
        expected = theirs(source, (source != PAD).long(), decoder_input_ids=target, use_cache=False).logits
        memory = ours.encode(source, lengths)
        found = ours.logits(ours.decode(target, memory).o)
    assert_close(found[target != PAD], expected[target != PAD], atol=1e-4, rtol=1e-4)


# -- Marian and BART, whose layers have the same names -----------------------------------------------------------------

ATTENTION = {"Wq": "q_proj", "Wk": "k_proj", "Wv": "v_proj", "Wo": "out_proj"}
ENCODER_BLOCK: Names = {
    **below("mixer", "self_attn", ATTENTION),
    "mixer_norm": "self_attn_layer_norm",
    "feedforward.W1": "fc1",
    "feedforward.W2": "fc2",
    "feedforward_norm": "final_layer_norm",
}
DECODER_BLOCK: Names = {
    **ENCODER_BLOCK,
    **below("cross_attention", "encoder_attn", ATTENTION),
    "cross_norm": "encoder_attn_layer_norm",
}


def both_stacks() -> Names:
    """The blocks of encoder and decoder."""
    names: dict[str, str] = {}
    for i in range(LAYERS):
        names |= below(f"encoder.stack.blocks.{i}", f"model.encoder.layers.{i}", ENCODER_BLOCK)
        names |= below(f"decoder.stack.blocks.{i}", f"model.decoder.layers.{i}", DECODER_BLOCK)
    return names


BARTS: dict[str, Any] = {
    "vocab_size": V,
    "d_model": D,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "max_position_embeddings": REACH,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    **SPECIAL,
}


@pytest.mark.parametrize("activation", ["swish", "relu"])
def test_a_transformer_with_marians_weights_has_marians_logits(activation: str) -> None:
    options = {**BARTS, "activation_function": activation, "scale_embedding": True}
    theirs = drawn(transformers.MarianMTModel(transformers.MarianConfig(**options)))
    theirs.final_logits_bias.normal_()
    for side in (theirs.model.encoder, theirs.model.decoder):  # Marian's sinusoids are a parameter that is not trained
        side.embed_positions.weight.data.copy_(side.embed_positions.create_weight())
    part = Part(
        "transformer",
        {**SIZES, "norm_order": "post", "activation": activation, "position": Part("sinusoidal", {"layout": "halves"})},
    )
    ours = Seq2Seq(V, V, width=D, encoder=part, decoder=part, tie="all").eval()
    weights = theirs.state_dict()
    ours.load_state_dict(
        {
            **dict(carried(both_stacks(), weights)),
            **table(weights["model.shared.weight"]),
            "output.bias": weights["final_logits_bias"][0],
        }
    )
    same_logits(ours, theirs)


@pytest.mark.parametrize("scale", [False, True])
def test_a_transformer_with_barts_weights_has_barts_logits(scale: bool) -> None:
    options = {**BARTS, "activation_function": "gelu", "scale_embedding": scale}
    theirs = drawn(transformers.BartForConditionalGeneration(transformers.BartConfig(**options)))
    theirs.final_logits_bias.normal_()
    part = Part(
        "transformer",
        {
            **SIZES,
            "norm_order": "post",
            "activation": "gelu",
            "embedding_norm": True,
            "position": Part("learned", {"length": REACH}),
        },
    )
    frontend = Part("tokens", {"scale": scale})
    ours = Seq2Seq(V, V, width=D, encoder=part, decoder=part, frontend=frontend, scale=scale, tie="all").eval()
    weights = theirs.state_dict()
    names = dict(both_stacks())
    for side in ("encoder", "decoder"):
        names[f"{side}.stack.embedding_norm"] = f"model.{side}.layernorm_embedding"
    places = {
        f"{side}.stack.positions.0.table.weight": weights[f"model.{side}.embed_positions.weight"][2:]
        for side in ("encoder", "decoder")
    }
    ours.load_state_dict(
        {
            **dict(carried(names, weights)),
            **places,
            **table(weights["model.shared.weight"]),
            "output.bias": weights["final_logits_bias"][0],
        }
    )
    same_logits(ours, theirs)


# -- T5 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_a_transformer_with_t5s_weights_has_t5s_logits(activation: str) -> None:
    options = {
        "vocab_size": V,
        "d_model": D,
        "d_kv": 6,  # not D / heads
        "d_ff": INNER,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 6,
        "feed_forward_proj": "relu" if activation == "relu" else "gated-silu",
        "decoder_start_token_id": PAD,
        **SPECIAL,
    }
    theirs = drawn(transformers.T5ForConditionalGeneration(transformers.T5Config(**options)))
    part = Part(
        "transformer",
        {
            **SIZES,
            "key_width": 6,
            "value_width": 6,
            "activation": activation,
            "norm": Part("rms", {"eps": 1e-6}),
            "bias": False,
            "score": Part("dot"),
            "position": Part("t5", {"buckets": 8, "distance": 6}),
        },
    )
    ours = Seq2Seq(V, V, width=D, encoder=part, decoder=part, tie="all", output_bias=False).eval()
    attention = {"Wq": "q", "Wk": "k", "Wv": "v", "Wo": "o"}
    names: dict[str, str] = {}
    for side in ("encoder", "decoder"):
        names[f"{side}.stack.positions.0.table"] = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
        names[f"{side}.stack.norm"] = f"{side}.final_layer_norm"
        last = 1 if side == "encoder" else 2
        for i in range(LAYERS):
            block: Names = {
                **below("mixer", "0.SelfAttention", attention),
                "mixer_norm": "0.layer_norm",
                **(below("cross_attention", "1.EncDecAttention", attention) if last == 2 else {}),
                "cross_norm": "1.layer_norm" if last == 2 else "none",
                "feedforward.W1": f"{last}.DenseReluDense.{'wi' if activation == 'relu' else 'wi_0'}",
                "feedforward.W3": f"{last}.DenseReluDense.wi_1",
                "feedforward.W2": f"{last}.DenseReluDense.wo",
                "feedforward_norm": f"{last}.layer_norm",
            }
            names |= below(f"{side}.stack.blocks.{i}", f"{side}.block.{i}.layer", block)
    weights = theirs.state_dict()
    # Theirs reads the table as it is and divides the logits by √D; ours reads it √D times as large.
    ours.load_state_dict({**dict(carried(names, weights)), **table(weights["shared.weight"] / math.sqrt(D))})
    same_logits(ours, theirs)


# -- one stack: GPT-2 and BERT -----------------------------------------------------------------------------------------


def test_a_language_model_with_gpt2s_weights_has_gpt2s_logits() -> None:
    options = {"vocab_size": V, "n_embd": D, "n_layer": LAYERS, "n_head": HEADS, "n_inner": INNER, "n_positions": REACH}
    theirs = drawn(transformers.GPT2LMHeadModel(transformers.GPT2Config(**options, **SPECIAL)))
    part = Part(
        "transformer",
        {**SIZES, "source": "prefix", "activation": "gelu_tanh", "position": Part("learned", {"length": REACH})},
    )
    frontend, none = Part("tokens", {"scale": False}), Part("none")
    ours = Seq2Seq(
        V, V, width=D, encoder=none, decoder=part, frontend=frontend, scale=False, tie="all", output_bias=False
    ).eval()
    weights = theirs.state_dict()
    mine = {
        **dict(carried({"decoder.stack.norm": "transformer.ln_f"}, weights)),
        **table(weights["transformer.wte.weight"]),
        "decoder.stack.positions.0.table.weight": weights["transformer.wpe.weight"],
    }
    for i in range(LAYERS):
        block, there = f"decoder.stack.blocks.{i}", f"transformer.h.{i}"
        mine |= carried({f"{block}.mixer_norm": f"{there}.ln_1", f"{block}.feedforward_norm": f"{there}.ln_2"}, weights)
        # Their layers keep matrices transposed, and queries, keys and values in one.
        together = weights[f"{there}.attn.c_attn.weight"].T.chunk(3), weights[f"{there}.attn.c_attn.bias"].chunk(3)
        for name, weight, bias in zip(("Wq", "Wk", "Wv"), *together, strict=True):
            mine |= {f"{block}.mixer.{name}.weight": weight, f"{block}.mixer.{name}.bias": bias}
        for name, other in {
            "mixer.Wo": "attn.c_proj",
            "feedforward.W1": "mlp.c_fc",
            "feedforward.W2": "mlp.c_proj",
        }.items():
            mine[f"{block}.{name}.weight"] = weights[f"{there}.{other}.weight"].T
            mine[f"{block}.{name}.bias"] = weights[f"{there}.{other}.bias"]
    ours.load_state_dict(mine)
    text, lengths = ids()
    with torch.no_grad():
        expected = theirs(text, attention_mask=(text != PAD).long()).logits
        found = ours.logits(ours.decode(text, ours.encode(text[:, :0], lengths * 0)).o)
        # The same when the beginning of each text is a prefix: its first token is the source.
        split = ours.decode(text[:, 1:], ours.encode(text[:, :1], lengths * 0 + 1))
        parted = ours.logits(torch.cat([split.extras["prefix"], split.o], 1))
    assert_close(found[text != PAD], expected[text != PAD], atol=1e-4, rtol=1e-4)
    assert_close(parted[text != PAD], expected[text != PAD], atol=1e-4, rtol=1e-4)


def test_a_tagger_with_berts_weights_has_berts_logits() -> None:
    options = {
        "vocab_size": V,
        "hidden_size": D,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": REACH,
        "layer_norm_eps": 1e-5,
        **SPECIAL,
    }
    theirs = drawn(transformers.BertForMaskedLM(transformers.BertConfig(**options)))
    part = Part(
        "transformer",
        {
            **SIZES,
            "norm_order": "post",
            "activation": "gelu",
            "embedding_norm": True,
            "position": Part("learned", {"length": REACH}),
        },
    )
    frontend, head = Part("tokens", {"scale": False}), Part("tagger", {"hidden": True})
    ours = Seq2Seq(V, V, width=D, encoder=part, decoder=None, head=head, frontend=frontend, tie="all").eval()
    names = {
        "encoder.stack.embedding_norm": "bert.embeddings.LayerNorm",
        "head.transform.0": "cls.predictions.transform.dense",
        "head.transform.2": "cls.predictions.transform.LayerNorm",
    }
    block = {
        **below("mixer", "attention.self", {"Wq": "query", "Wk": "key", "Wv": "value"}),
        "mixer.Wo": "attention.output.dense",
        "mixer_norm": "attention.output.LayerNorm",
        "feedforward.W1": "intermediate.dense",
        "feedforward.W2": "output.dense",
        "feedforward_norm": "output.LayerNorm",
    }
    for i in range(LAYERS):
        names |= below(f"encoder.stack.blocks.{i}", f"bert.encoder.layer.{i}", block)
    weights = theirs.state_dict()
    words = weights["bert.embeddings.word_embeddings.weight"]
    ours.load_state_dict(
        {
            **dict(carried(names, weights)),
            "frontend.table.weight": words,
            "output.weight": words,
            "output.bias": weights["cls.predictions.bias"],
            # All is one segment, so that its vector goes with every position.
            "encoder.stack.positions.0.table.weight": weights["bert.embeddings.position_embeddings.weight"]
            + weights["bert.embeddings.token_type_embeddings.weight"][0],
        }
    )
    text, lengths = ids()
    with torch.no_grad():
        expected = theirs(text, attention_mask=(text != PAD).long()).logits
        found = ours(Batch(text, lengths, text[:, :0], lengths * 0, token_labels=text)).logits
    assert_close(found[text != PAD], expected[text != PAD], atol=1e-4, rtol=1e-4)
