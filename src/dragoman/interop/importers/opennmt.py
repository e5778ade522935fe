"""Checkpoints of OpenNMT-py 3: Transformers, pre-norm, with tokens separated by spaces.

    {"model": weights, "generator": the output layer, "vocab": {"src": [tokens], "tgt": [tokens]}, "opt": a Namespace}

A source has no </s>. Embeddings are multiplied by √D where position_encoding is set. A feed-forward layer has its norm
inside (feed_forward.layer_norm); layer_norm_1 is that of the decoder's self-attention, layer_norm_2 of its
cross-attention. Checkpoints of versions 1 and 2 hold vocabularies as Python objects, and are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core.errors import ModelError
from dragoman.interop.importers.contents import Imported, VocabularyMap, Weights, map_vocabulary, zeros
from dragoman.interop.importers.pickles import read_pickles
from dragoman.interop.importers.token_lists import TokenList, make_codec, read_sentencepiece

if TYPE_CHECKING:
    from dragoman.interop.importers import ImportOptions

PAD, EOS, UNK, START = "<blank>", "</s>", "<unk>", "<s>"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swiglu", "gated-gelu": "geglu"}
POSITIONS: dict[str, dict[str, Any]] = {
    "SinusoidalInterleaved": {"name": "sinusoidal"},
    "SinusoidalConcat": {"name": "sinusoidal", "layout": "halves", "endpoint": True},
}
NEUTRAL: dict[str, tuple[Any, ...]] = {  # options that a model of ours cannot state, and the values that are none
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "max_relative_positions": (0,),
    "n_src_feats": (0,),
    "copy_attn": (False,),
    "multiquery": (False,),
    "num_kv": (0,),
    "num_experts": (0,),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "sliding_window": (0,),
    "lora_layers": ((),),
    "lora_embedding": (False,),
    "quant_layers": ((),),
    "generator_function": ("softmax",),
    "both_embeddings": (None,),
}
MAX_LENGTH = 250  # OpenNMT's own, of an output


class OpenNMTModel:
    """A checkpoint's options, vocabularies and weights."""

    def __init__(self, path: Path, trust_pickle: bool) -> None:
        self.path = path
        names = ("opt", "vocab")
        tensors, values = read_pickles([path], trust_pickle, values=names, skip=("optim",), namespaces=True)
        if missing := [name for name in names if not isinstance(values.get(name), dict)]:
            raise ModelError(f"{path}: has no '{missing[0]}'; is it a checkpoint of OpenNMT-py 3?")
        self.options, self.vocabularies = values["opt"], values["vocab"]
        self.weights = {name.removeprefix("model/"): x for name, x in tensors.items() if not name.endswith(".pe.pe")}
        self.used: set[str] = set()
        for key, neutral in NEUTRAL.items():
            value = self.options.get(key, neutral[0])
            if (tuple(value) if isinstance(value, list) else value) not in neutral:
                raise ModelError(f"{path}: {key} is {repr(value)[:40]}, which cannot be imported")

    def weight(self, name: str, rank: int = 2) -> LazyTensor:
        """A weight; ModelError if there is none with so many dimensions."""
        if name not in self.weights:
            raise ModelError(f"{self.path}: has no weight '{name}', which its options imply")
        if len(self.weights[name].shape) != rank:
            shape = self.weights[name].shape
            raise ModelError(f"{self.path}: the weight '{name}' is {shape}, but must have {rank} dimensions")
        self.used.add(name)
        return self.weights[name]

    def linear(self, theirs: str, ours: str) -> Weights:
        """The weight and bias of a linear layer; without a bias it has zeros."""
        weight = self.weight(f"{theirs}.weight")
        has_bias = f"{theirs}.bias" in self.weights
        bias = self.weight(f"{theirs}.bias", 1) if has_bias else zeros(*weight.shape[:1])
        return {f"{ours}.weight": weight, f"{ours}.bias": bias}

    def norm(self, theirs: str, ours: str) -> Weights:
        """The weight of a norm, and its bias if it has one."""
        weights = {f"{ours}.weight": self.weight(f"{theirs}.weight", 1)}
        has_bias = f"{theirs}.bias" in self.weights
        return weights | ({f"{ours}.bias": self.weight(f"{theirs}.bias", 1)} if has_bias else {})

    def choice(self, key: str, default: str, allowed: dict[str, Any]) -> Any:
        """What stands for an option's value; ModelError if nothing does."""
        value = self.options.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise ModelError(
                f"{self.path}: {key} is {str(value)[:40]!r}, which cannot be imported; these can: {', '.join(allowed)}"
            )
        return allowed[value]


def read_model(path: Path, options: ImportOptions) -> Imported:
    """Read a checkpoint that onmt_train wrote."""
    model = OpenNMTModel(path, options.trust_pickle)
    section, weights = convert_layers(model)
    source, target = (read_vocabulary(model, side) for side in ("src", "tgt"))
    codec, tokenizer = make_codec(source, target, "{text}")
    tables, tie = convert_tables(model, source[1], target[1])
    if unknown := sorted(model.weights.keys() - model.used):
        raise ModelError(f"{path}: has a weight '{unknown[0][:60]}', which no option explains")
    limitations = ["OpenNMT's beam ends when its best hypothesis does, and ours otherwise: their outputs may differ"]
    if not source[0].model:
        limitations.append("how texts become tokens: here they are split at spaces, as OpenNMT itself does")
    return Imported(
        "OpenNMT-py transformer",
        {
            "tokenizer": tokenizer,
            "data": {"train": "pairs.tsv", "normalization": "none"},
            "model": {**section, "tie": tie, "output_bias": True},
            "generation": {"search": "beam", "beam": 5, "length_rule": "none", "max_new_tokens": MAX_LENGTH},
        },
        {**weights, **tables},
        codec,
        limitations=limitations,
    )


def convert_layers(model: OpenNMTModel) -> tuple[dict[str, Any], Weights]:
    """The model section without its tables, and the weights of its layers."""
    options = model.options
    has_positions = bool(options.get("position_encoding"))
    kind = (
        model.choice("position_encoding_type", "SinusoidalInterleaved", POSITIONS)
        if has_positions
        else {"name": "none"}
    )
    shared = {
        "name": "transformer",
        "heads": options.get("heads"),
        "feedforward": options.get("transformer_ff"),
        "activation": model.choice("pos_ffn_activation_fn", "relu", ACTIVATIONS),
        "position": kind,
        "norm": {"name": model.choice("layer_norm", "standard", {"standard": "layer", "rms": "rms"}),
                 "eps": options.get("norm_eps", 1e-6)},
        "norm_order": "pre",
        "dropout": first_number(options.get("dropout")),
        "attention_dropout": first_number(options.get("attention_dropout")),
    }  # fmt: skip
    weights: Weights = {}
    section: dict[str, Any] = {
        "width": options.get("tgt_word_vec_size"),
        "frontend": {"name": "tokens", "scale": has_positions},
        "scale": has_positions,
    }
    for side, stack in (("encoder", "encoder.transformer"), ("decoder", "decoder.transformer_layers")):
        layers = options.get("enc_layers" if side == "encoder" else "dec_layers")
        if type(layers) is not int or not 0 < layers < 1000:
            raise ModelError(
                f"{model.path}: has {str(layers)[:20]} layers in its {side}, but must have a positive number"
            )
        section[side] = {**shared, "layers": layers}
        for i in range(layers):
            weights |= convert_block(model, f"{stack}.{i}", f"{side}.stack.blocks.{i}", side == "decoder")
        weights |= model.norm(f"{side}.layer_norm", f"{side}.stack.norm")
    return section, weights


def convert_block(model: OpenNMTModel, theirs: str, ours: str, is_decoder: bool) -> Weights:
    """The weights of a block."""
    weights = attention_weights(model, f"{theirs}.self_attn", f"{ours}.mixer")
    weights |= model.norm(f"{theirs}.{'layer_norm_1' if is_decoder else 'layer_norm'}", f"{ours}.mixer_norm")
    if is_decoder:
        weights |= attention_weights(model, f"{theirs}.context_attn", f"{ours}.cross_attention")
        weights |= model.norm(f"{theirs}.layer_norm_2", f"{ours}.cross_norm")
    for i in (1, 2, 3):
        if i < 3 or f"{theirs}.feed_forward.w_3.weight" in model.weights:
            weights |= model.linear(f"{theirs}.feed_forward.w_{i}", f"{ours}.feedforward.W{i}")
    return weights | model.norm(f"{theirs}.feed_forward.layer_norm", f"{ours}.feedforward_norm")


def attention_weights(model: OpenNMTModel, theirs: str, ours: str) -> Weights:
    """Queries, keys, values and the projection of the heads."""
    names = {"Wq": "linear_query", "Wk": "linear_keys", "Wv": "linear_values", "Wo": "final_linear"}
    weights: Weights = {}
    for own, name in names.items():
        weights |= model.linear(f"{theirs}.{name}", f"{ours}.{own}")
    return weights


def convert_tables(model: OpenNMTModel, source: VocabularyMap, target: VocabularyMap) -> tuple[Weights, str]:
    """Embeddings and output layer, and which of their tables are one (model.tie)."""
    encoder, decoder = (
        model.weight(f"{side}.embeddings.make_embedding.emb_luts.0.weight") for side in ("encoder", "decoder")
    )
    output, bias = model.weight("generator/weight"), model.weight("generator/bias", 1)
    for x, vocabulary in ((encoder, source), (decoder, target), (output, target), (bias, target)):
        if x.shape[:1] != (len(vocabulary.tokens) + len(vocabulary.extra_symbols) + 4 - vocabulary.repeats_start,):
            raise ModelError(f"{model.path}: has tables of {x.shape[:1]} rows, which do not fit its vocabularies")
    weights = {"output.bias": target.output_bias(bias), "frontend.table.weight": source.pick(encoder)}
    is_shared = bool(model.options.get("share_embeddings")) and source.rows == target.rows
    is_tied = bool(model.options.get("share_decoder_embeddings"))
    if not is_shared:
        weights["embedding.table.weight"] = target.pick(decoder)
    if not is_tied:
        weights["output.weight"] = target.pick(output)
    return weights, {(1, 1): "all", (1, 0): "embeddings", (0, 1): "output", (0, 0): "none"}[is_shared, is_tied]


def read_vocabulary(model: OpenNMTModel, side: str) -> tuple[TokenList, VocabularyMap]:
    """A side's vocabulary, in the checkpoint's order and in ours."""
    names = model.vocabularies.get(side)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{model.path}: its vocabulary '{side}' is no list of tokens")
    start = model.vocabularies.get("decoder_start_token") or START
    for symbol in (PAD, EOS, UNK, start):
        if symbol not in names:
            raise ModelError(f"{model.path}: its vocabulary '{side}' has no {str(symbol)[:40]}")
    tokens = TokenList(names, "symbols")
    subword = model.options.get(f"{side}_subword_model")
    transforms = model.options.get("transforms")
    if subword and isinstance(transforms, list) and "sentencepiece" in transforms:
        found = read_sentencepiece(model.path.parent / Path(str(subword)).name)
        tokens = TokenList(names, "sentencepiece", found.model)
    id = names.index
    return tokens, map_vocabulary(tokens.names, pad=id(PAD), start=id(start), eos=id(EOS), unk=id(UNK))


def first_number(value: Any) -> float:
    """The first of a schedule of dropouts."""
    value = value[0] if isinstance(value, list) and value else value
    return float(value) if isinstance(value, (int, float)) else 0.0
