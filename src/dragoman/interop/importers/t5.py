"""T5 and its relatives: T5, T5 v1.1, FLAN-T5, ByT5 (model_type t5) and mT5 (mt5).

    x + f(rms(x))      e_ts = q_t · k_s + b_h[bucket(s − t)], not divided by √d      no biases

The original T5 reads its table E as it is and divides o by √D before the same table: ours is E / √D with scale: true.
v1.1 and its descendants have an output layer of their own, and divide nothing.
"""

from __future__ import annotations

from typing import Any

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core.errors import ModelError
from dragoman.interop.importers.contents import Weights
from dragoman.interop.importers.hf_tokenizers import ImportedText
from dragoman.interop.importers.huggingface import HuggingFaceModel, are_equal

MODEL_TYPES = ("t5", "mt5")
FEED_FORWARDS = {"t5": "relu", "mt5": "gated-gelu"}  # where config.json does not say it
PLAIN = {"relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "silu": "swish"}
GATED = {"gelu": "geglu_tanh", "gelu_new": "geglu_tanh", "gelu_python": "geglu", "silu": "swiglu"}


def convert_t5(model: HuggingFaceModel, text: ImportedText) -> tuple[dict[str, Any], Weights]:
    """The model section and the weights of a T5."""
    width, layers = model.size("d_model"), model.size("num_layers")
    depths = {
        "encoder": layers,
        "decoder": model.size("num_decoder_layers") if has(model, "num_decoder_layers") else layers,
    }
    activation = activation_of(model)
    is_gated = activation.startswith(("geglu", "swiglu"))
    head_width, eps = model.size("d_kv"), model.number("layer_norm_epsilon", 1e-6)
    buckets = model.size("relative_attention_num_buckets") if has(model, "relative_attention_num_buckets") else 32
    distance = model.size("relative_attention_max_distance") if has(model, "relative_attention_max_distance") else 128
    weights: Weights = {}
    sides: dict[str, dict[str, Any]] = {}
    for side, depth in depths.items():
        for i in range(depth):
            weights |= t5_block(model, f"{side}.block.{i}.layer", f"{side}.stack.blocks.{i}", side, is_gated)
        table = model.weight(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
        if table.shape != (buckets, model.size("num_heads")):
            raise ModelError(
                f"{model.folder}: its sizes contradict each other: the table of relative positions is "
                f"{tuple(table.shape)} in the weights, and {(buckets, model.size('num_heads'))} by its config"
            )
        weights[f"{side}.stack.positions.0.table.weight"] = table
        weights[f"{side}.stack.norm.weight"] = model.weight(f"{side}.final_layer_norm.weight")
        sides[side] = {
            "name": "transformer",
            "layers": depth,
            "heads": model.size("num_heads"),
            "key_width": head_width,
            "value_width": head_width,
            "feedforward": model.size("d_ff"),
            "activation": activation,
            "position": {"name": "t5", "buckets": buckets, "distance": distance},
            "norm": {"name": "rms", "eps": eps},
            "norm_order": "pre",
            "bias": False,
            "dropout": model.number("dropout_rate", 0.1),
            "attention_dropout": model.number("dropout_rate", 0.1),
            "score": "dot",
        }
    tables, tie, scale = embedding_tables(model, text, width)
    weights |= tables
    weights["output.bias"] = text.target.output_bias(None)
    section = {
        "width": width,
        "frontend": {"name": "tokens", "scale": scale},
        "scale": scale,
        "tie": tie,
        "output_bias": True,  # for <s>, which is <pad> there
        **sides,
    }
    return section, weights


def has(model: HuggingFaceModel, key: str) -> bool:
    """Whether config.json says something of `key`."""
    return model.config.get(key) is not None


def activation_of(model: HuggingFaceModel) -> str:
    """Our name of the activation and gate that feed_forward_proj says."""
    said = str(model.config.get("feed_forward_proj") or FEED_FORWARDS[model.model_type])
    gate, _, name = said.rpartition("-")
    table = GATED if gate == "gated" else PLAIN
    if gate not in ("", "gated") or name not in table:
        raise ModelError(f"{model.folder}/config.json: feed_forward_proj '{said[:30]}' cannot be imported")
    return table[name]


def t5_block(model: HuggingFaceModel, theirs: str, ours: str, side: str, is_gated: bool) -> Weights:
    """The weights of a block."""
    weights: Weights = {}
    parts = [("SelfAttention", "mixer", "mixer_norm")]
    if side == "decoder":
        parts.append(("EncDecAttention", "cross_attention", "cross_norm"))
    for k, (part, own, norm) in enumerate(parts):
        for name, W in (("q", "Wq"), ("k", "Wk"), ("v", "Wv"), ("o", "Wo")):
            weights[f"{ours}.{own}.{W}.weight"] = model.weight(f"{theirs}.{k}.{part}.{name}.weight")
        weights[f"{ours}.{norm}.weight"] = model.weight(f"{theirs}.{k}.layer_norm.weight")
    last = f"{theirs}.{len(parts)}"
    layers = {"W1": "wi_0", "W3": "wi_1", "W2": "wo"} if is_gated else {"W1": "wi", "W2": "wo"}
    for W, name in layers.items():
        weights[f"{ours}.feedforward.{W}.weight"] = model.weight(f"{last}.DenseReluDense.{name}.weight")
    weights[f"{ours}.feedforward_norm.weight"] = model.weight(f"{last}.layer_norm.weight")
    return weights


def embedding_tables(model: HuggingFaceModel, text: ImportedText, width: int) -> tuple[Weights, str, bool]:
    """The tables under our names, which of them are one (model.tie), and whether embeddings are scaled by √D."""
    table, output = shared_table(model), model.find_weight("lm_head.weight")
    is_divided = divides_outputs(model)
    factor = width**-0.5 if is_divided else 1.0
    source, target = text.source, text.target
    if output is None or (not is_v1_1(model) and are_equal(output, table)):
        return {"frontend.table.weight": source.pick(table, factor)}, "all", is_divided
    tables = {"frontend.table.weight": source.pick(table), "output.weight": target.pick(output, factor)}
    return tables, "embeddings", False


def shared_table(model: HuggingFaceModel) -> LazyTensor:
    """The embeddings of both sides."""
    table = model.find_weight("shared.weight")
    encoder, decoder = model.embedding("encoder"), model.embedding("decoder")
    for each in (encoder, decoder):
        if not are_equal(encoder if table is None else table, each):
            raise ModelError(f"{model.folder}: its encoder and decoder have different embeddings, which T5 has not")
    return encoder if table is None else table


def is_v1_1(model: HuggingFaceModel) -> bool:
    """Whether config.json says that the output layer has a table of its own."""
    return model.config.get("tie_word_embeddings") is False


def divides_outputs(model: HuggingFaceModel) -> bool:
    """Whether o is divided by √D before the output layer: not in mT5, and not in T5 v1.1."""
    if model.model_type == "mt5":
        return False
    said = model.config.get("scale_decoder_outputs")
    return bool(said) if isinstance(said, bool) else not is_v1_1(model)
