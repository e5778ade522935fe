"""Marian's model.npz: Transformers, with self-attention, SSRU or average attention in the decoder.

    y = x W + b, with W (in, out)          PE: sines, then cosines; rates over D/2 − 1          layer norm: ε = 10⁻⁶

The decoder starts from a vector of zeros instead of a symbol: our <s> has such a row, and takes no part in the softmax.
Up to version 1.12.0 Marian's gelu is x σ(1.702 x): our swish, with W₁ times and W₂ over 1.702. Pre-norm is refused: up
to 1.9 keys and values are not normalized, and later they are in training, but not where a decoder goes step by step,
so that Marian's own outputs are not those of the model that it trained.

The architecture is in the file itself (special:model.yml), the names of the vocabularies and the settings of decoding
are in FILE.decoder.yml, or FILE.yml; of them the last part of the path is read, beside FILE.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core import yaml
from dragoman.core.errors import ConfigError, ModelError
from dragoman.interop.importers import checkpoint_files
from dragoman.interop.importers.contents import (
    ABSENT_BIAS,
    Imported,
    VocabularyMap,
    Weights,
    map_vocabulary,
    scaled,
    transformed,
    zeros,
)
from dragoman.interop.importers.npz import open_npz
from dragoman.interop.importers.token_lists import (
    TokenList,
    append_row,
    block_diagonal,
    concatenated,
    make_codec,
    read_sentencepiece,
    read_text,
)

if TYPE_CHECKING:
    from dragoman.interop.importers import ImportOptions

EOS, UNK = 0, 1  # of a vocabulary that is a list
GELU = 1.702
LAST_APPROXIMATE_GELU = (1, 12, 0)
ACTIVATIONS = {"relu": "relu", "swish": "swish", "gelu": "gelu"}
MAX_LENGTH_FACTOR = 3  # Marian's longest output, in tokens for each of the source, </s> included
NEUTRAL: dict[str, tuple[Any, ...]] = {  # options that a model of ours cannot state, and the values that are none
    "type": ("transformer",),
    "ulr": (False,),
    "lemma-dependency": ("",),
    "factors-dim-emb": (0,),
    "right-left": (False,),
    "input-types": ((), None),
    "transformer-no-projection": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-pool": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "layer-normalization": (False,),
    "transformer-postprocess-top": ("", "d"),
    "word-penalty": (0,),
}


class MarianModel:
    """A file, its weights and its options."""

    def __init__(self, path: Path) -> None:
        self.path = path
        arrays = open_npz(path)
        beside = read_yaml_beside(path, ".yml")
        stored = arrays.pop("special:model.yml", None)
        self.options: dict[str, Any] = {**beside, **({} if stored is None else self.parse_stored(stored))}
        if "type" not in self.options:
            raise ModelError(f"{path}: does not say its architecture (special:model.yml); is it a model of Marian?")
        self.decoding: dict[str, Any] = {**beside, **read_yaml_beside(path, ".decoder.yml")}
        self.weights = {name: x for name, x in arrays.items() if not name.startswith("special:")}
        self.used: set[str] = set()
        for key, neutral in NEUTRAL.items():
            value = (self.decoding if key == "word-penalty" else self.options).get(key, neutral[0])
            if (tuple(value) if isinstance(value, list) else value) not in neutral:
                raise ModelError(f"{path}: {key} is {repr(value)[:40]}, which cannot be imported")

    def parse_stored(self, stored: LazyTensor) -> dict[str, Any]:
        """The options in the file itself, a YAML text that may be padded with zeros."""
        if len(stored.shape) != 1 or stored.shape[0] > checkpoint_files.MAX_JSON_BYTES:
            raise ModelError(f"{self.path}: special:model.yml is no text; copy it again")
        data = bytes(stored.load().view(-1).numpy().astype("uint8")).strip(b"\0")
        return parse_yaml(data, f"{self.path} (special:model.yml)")

    @property
    def version(self) -> tuple[int, ...]:
        """The version of Marian that wrote the file; () if it does not say."""
        match = re.match(r"v(\d+)\.(\d+)\.(\d+)", str(self.options.get("version", "")))
        return tuple(map(int, match.groups())) if match else ()

    def weight(self, name: str) -> LazyTensor:
        """A weight; ModelError if there is none."""
        if name not in self.weights:
            raise ModelError(f"{self.path}: has no weight '{name}', which its options imply")
        if len(self.weights[name].shape) != 2:
            raise ModelError(f"{self.path}: the weight '{name}' is {self.weights[name].shape}, but must be a matrix")
        self.used.add(name)
        return self.weights[name]

    def size(self, key: str) -> int:
        """A positive option; ModelError if it is none."""
        value = self.options.get(key)
        if type(value) is not int or not 0 < value < 10**6:
            raise ModelError(f"{self.path}: {key} is {str(value)[:30]}, but must be a positive number")
        return value

    def choice(self, key: str, default: str, allowed: dict[str, Any] | tuple[str, ...]) -> str:
        """An option that is one of some values; ModelError otherwise."""
        value = self.options.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            names = ", ".join(repr(name) for name in allowed)
            raise ModelError(f"{self.path}: {key} is {str(value)[:40]!r}, which cannot be imported; these can: {names}")
        return str(value)

    def number(self, key: str, default: float, where: dict[str, Any] | None = None) -> float:
        """An option that is a number; ModelError otherwise."""
        value = (self.options if where is None else where).get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelError(f"{self.path}: {key} is {repr(value)[:30]}, but must be a number")
        return float(value)

    def matrix(self, name: str) -> LazyTensor:
        """W (in, out) as ours, (out, in)."""
        return transformed(self.weight(name), lambda x: x.T)

    def vector(self, name: str) -> LazyTensor:
        """b (1, D) as ours, (D,)."""
        return transformed(self.weight(name), lambda x: x.reshape(-1))

    def linear(self, theirs: tuple[str, str], ours: str, factor: float = 1.0, bias_factor: float = 1.0) -> Weights:
        """The weight and bias of a linear layer, times a factor each."""
        weight, bias = self.matrix(theirs[0]), self.vector(theirs[1])
        return {f"{ours}.weight": scaled(weight, factor), f"{ours}.bias": scaled(bias, bias_factor)}

    def norm(self, theirs: str, ours: str, suffix: str = "") -> Weights:
        """The weight and bias of a layer norm."""
        weight, bias = (self.vector(f"{theirs}_ln_{kind}{suffix}") for kind in ("scale", "bias"))
        return {f"{ours}.weight": weight, f"{ours}.bias": bias}


def read_model(path: Path, options: ImportOptions) -> Imported:
    """Read a model.npz with what lies beside it."""
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; name the .npz file in it")
    model = MarianModel(path)
    section, weights = convert_layers(model)
    source, target = read_vocabularies(model)
    codec, tokenizer = make_codec(source, target, "{text} </s>")
    tables, tie = convert_tables(model, source[1], target[1])
    if unknown := sorted(model.weights.keys() - model.used):
        raise ModelError(f"{path}: has a weight '{unknown[0][:60]}', which no option explains")
    return Imported(
        "Marian transformer",
        {
            "tokenizer": tokenizer,
            "data": {"train": "pairs.tsv", "normalization": "none"},
            "model": {"width": model.size("dim-emb"), "tie": tie, "output_bias": True, **section},
            "generation": generation_settings(model),
        },
        {**weights, **tables},
        codec,
        limitations=(["Marian's special treatment of all-caps text"] if model.options.get("all-caps-every") else []),
    )


# -- layers ------------------------------------------------------------------------------------------------------------


def convert_layers(model: MarianModel) -> tuple[dict[str, Any], Weights]:
    """Encoder and decoder of the model section, and their weights."""
    before = str(model.options.get("transformer-preprocess", "")).replace("d", "")
    after = str(model.options.get("transformer-postprocess", "dan")).replace("d", "")
    if "n" in before:
        raise ModelError(
            f"{model.path}: transformer-preprocess is {before!r}: Marian decodes pre-norm otherwise than it trains it, "
            "so its outputs cannot be had here; only post-norm (transformer-postprocess: dan) can be imported"
        )
    if (before, after) != ("", "an"):
        raise ModelError(
            f"{model.path}: transformer-preprocess {before!r} and transformer-postprocess {after!r} cannot be "
            "imported; '' and 'dan' can"
        )
    activation = ACTIVATIONS[model.choice("transformer-ffn-activation", "swish", ACTIVATIONS)]
    factor = 1.0
    if activation == "gelu" and model.version <= LAST_APPROXIMATE_GELU:
        activation, factor = "swish", GELU
    embedding = str(model.options.get("transformer-postprocess-emb", "d")).replace("d", "")
    if embedding not in ("", "n"):
        raise ModelError(
            f"{model.path}: transformer-postprocess-emb {embedding!r} cannot be imported; 'd' and 'nd' can"
        )
    inner = model.size("transformer-dim-ffn")
    shared = {
        "name": "transformer",
        "heads": model.size("transformer-heads"),
        "activation": activation,
        "position": {"name": "sinusoidal", "layout": "halves", "endpoint": True},
        "norm": {"name": "layer", "eps": 1e-6},
        "norm_order": "post",
        "embedding_norm": embedding == "n",
        "dropout": model.number("transformer-dropout", 0.0),
        "attention_dropout": model.number("transformer-dropout-attention", 0.0),
    }
    mixer = decoder_mixer(model)
    section: dict[str, Any] = {
        "encoder": {**shared, "layers": model.size("enc-depth"), "feedforward": inner},
        "decoder": {
            **shared,
            "layers": model.size("dec-depth"),
            "feedforward": model.options.get("transformer-decoder-dim-ffn") or inner,
            "mixer": mixer,
        },
    }
    weights: Weights = {}
    for side, part in section.items():
        tied = model.options.get("transformer-tied-layers") or [] if side == "decoder" else []
        if not isinstance(tied, list) or (tied and len(tied) != part["layers"]):
            raise ModelError(f"{model.path}: transformer-tied-layers must name each of the {part['layers']} layers")
        if embedding == "n":
            weights |= model.norm(f"{side}_emb", f"{side}.stack.embedding_norm", "_pre")
        for i in range(part["layers"]):
            theirs, ours = f"{side}_l{tied[i] if tied else i + 1}", f"{side}.stack.blocks.{i}"
            weights |= mixer_weights(model, theirs, ours, mixer["name"] if side == "decoder" else "attention")
            if side == "decoder":
                weights |= attention_weights(model, f"{theirs}_context", f"{ours}.cross_attention")
                weights |= model.norm(f"{theirs}_context_Wo", f"{ours}.cross_norm")
            weights |= feedforward_weights(model, f"{theirs}_ffn", f"{ours}.feedforward", factor)
            weights |= model.norm(f"{theirs}_ffn_ffn", f"{ours}.feedforward_norm")
    return section, weights


def decoder_mixer(model: MarianModel) -> dict[str, Any]:
    """The first sub-layer of a decoder's block; ModelError unless it is one of ours."""
    kinds = ("self-attention", "average-attention", "rnn")
    kind = model.choice("transformer-decoder-autoreg", "self-attention", kinds)
    if kind == "rnn":
        model.choice("dec-cell", "gru", ("ssru",))
        return {"name": "ssru"}
    if kind == "self-attention":
        return {"name": "attention"}
    depth = model.options.get("transformer-aan-depth", 2)
    if depth not in (1, 2):
        raise ModelError(
            f"{model.path}: transformer-aan-depth is {str(depth)[:20]}, which cannot be imported; 1 and 2 can"
        )
    if depth == 2:
        model.choice("transformer-aan-activation", "swish", ("relu",))
        inner = model.options.get("transformer-decoder-dim-ffn") or model.size("transformer-dim-ffn")
        if model.size("transformer-dim-aan") != inner:
            raise ModelError(
                f"{model.path}: transformer-dim-aan is {model.size('transformer-dim-aan')} and the feed-forward layers "
                f"are {inner} wide, which cannot be imported: here both are one option"
            )
    gate = not model.options.get("transformer-aan-nogate", False)
    return {"name": "average", "feedforward": depth == 2, "gate": gate}


def mixer_weights(model: MarianModel, theirs: str, ours: str, kind: str) -> Weights:
    """The weights of the first sub-layer and its norm."""
    if kind == "attention":
        weights = attention_weights(model, f"{theirs}_self", f"{ours}.mixer")
        return weights | model.norm(f"{theirs}_self_Wo", f"{ours}.mixer_norm")
    if kind == "ssru":
        weights = {f"{ours}.mixer.W.weight": model.matrix(f"{theirs}_rnn_W")}
        weights |= model.linear((f"{theirs}_rnn_Wf", f"{theirs}_rnn_bf"), f"{ours}.mixer.Wf")
        return weights | model.norm(f"{theirs}_rnn_ffn", f"{ours}.mixer_norm")
    aan, weights = f"{theirs}_aan", {}
    if f"{aan}_W1" in model.weights:
        weights |= feedforward_weights(model, aan, f"{ours}.mixer.feedforward", 1.0)
    if f"{aan}_Wi" in model.weights:  # i depends on x alone, and f on g
        weights[f"{ours}.mixer.gate.weight"] = block_diagonal(model.matrix(f"{aan}_Wi"), model.matrix(f"{aan}_Wf"))
        weights[f"{ours}.mixer.gate.bias"] = concatenated(model.vector(f"{aan}_bi"), model.vector(f"{aan}_bf"))
    return weights | model.norm(f"{aan}_ffn", f"{ours}.mixer_norm")


def attention_weights(model: MarianModel, theirs: str, ours: str) -> Weights:
    """Queries, keys, values and the projection of the heads."""
    weights: Weights = {}
    for letter in "qkvo":
        weights |= model.linear((f"{theirs}_W{letter}", f"{theirs}_b{letter}"), f"{ours}.W{letter}")
    return weights


def feedforward_weights(model: MarianModel, theirs: str, ours: str, factor: float) -> Weights:
    """W₁ and W₂, with what goes into the activation times a factor, and what comes out over it."""
    first = model.linear((f"{theirs}_W1", f"{theirs}_b1"), f"{ours}.W1", factor, factor)
    return first | model.linear((f"{theirs}_W2", f"{theirs}_b2"), f"{ours}.W2", 1 / factor)


def convert_tables(model: MarianModel, source: VocabularyMap, target: VocabularyMap) -> tuple[Weights, str]:
    """Embeddings and output layer, and which of their tables are one (model.tie)."""
    all_tied, source_tied, output_tied = (
        bool(model.options.get(key)) for key in ("tied-embeddings-all", "tied-embeddings-src", "tied-embeddings")
    )
    is_shared = all_tied or source_tied
    tables = [model.weight("Wemb" if is_shared else f"{side}_Wemb") for side in ("encoder", "decoder")]
    name = "decoder_ff_logit_out_b"
    bias = model.vector(name) if name in model.weights else zeros(tables[1].shape[0])
    weights = {"output.bias": target.output_bias(append_row(bias, ABSENT_BIAS))}
    weights["frontend.table.weight"] = source.pick(append_row(tables[0]))
    has_one_table = is_shared and source.rows == target.rows
    if not has_one_table:
        weights["embedding.table.weight"] = target.pick(append_row(tables[1]))
    if all_tied or output_tied:
        return weights, "all" if has_one_table else "output"
    name = "decoder_ff_logit_out_W"
    output = model.weight(f"{name}t") if f"{name}t" in model.weights else model.matrix(name)
    weights["output.weight"] = target.pick(append_row(output))
    return weights, "embeddings" if has_one_table else "none"


# -- vocabularies and decoding -----------------------------------------------------------------------------------------


def read_vocabularies(model: MarianModel) -> tuple[tuple[TokenList, VocabularyMap], tuple[TokenList, VocabularyMap]]:
    """Source and target, each as it is in the file and in our order."""
    names = model.decoding.get("vocabs") or []
    if not isinstance(names, list) or len(names) != 2:
        raise ModelError(
            f"{model.path}.decoder.yml: must name two vocabularies (vocabs:), for source and target; "
            f"it has {len(names) if isinstance(names, list) else 0}"
        )
    sizes = model.options.get("dim-vocabs")
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(n) is int and 2 < n < 10**7 for n in sizes):
        raise ModelError(f"{model.path}: dim-vocabs is {str(sizes)[:40]}, but must be two sizes")
    source, target = (
        read_vocabulary(model.path.parent / Path(str(name)).name).resized(size)
        for name, size in zip(names, sizes, strict=True)
    )
    return (source, arrange(source)), (target, arrange(target))


def arrange(tokens: TokenList) -> VocabularyMap:
    """The vocabulary in our order; <pad> and <s> are a row that Marian does not have, which follows its last."""
    size = len(tokens.names)
    eos, unk = (tokens.eos, tokens.unk) if tokens.model else (EOS, UNK)
    return map_vocabulary(tokens.names, pad=size, start=size, eos=eos, unk=unk)


def read_vocabulary(path: Path) -> TokenList:
    """A vocabulary file: a sentencepiece model, token: id in YAML or JSON, or a token in each line."""
    if path.suffix == ".spm":
        tokens = read_sentencepiece(path)
        if min(tokens.eos, tokens.unk) < 0:
            raise ModelError(f"{path}: has no </s> or no <unk>; is it the vocabulary of a Marian model?")
        return tokens
    if path.suffix == ".fsv":
        raise ModelError(f"{path}: has factors, which cannot be imported")
    text = read_text(path)
    if path.suffix not in (".yml", ".yaml", ".json"):
        return TokenList(text.split("\n")[: -1 if text.endswith("\n") else None], "symbols")
    ids = parse_token_ids(text, path)
    names = dict(zip(ids.values(), ids, strict=True))
    if sorted(names) != list(range(len(names))) or len(names) != len(ids):
        raise ModelError(f"{path}: does not number its tokens from 0 to {len(ids) - 1}; copy the file again")
    return TokenList([names[i] for i in range(len(names))], "symbols")


def parse_token_ids(text: str, path: Path) -> dict[str, int]:
    """Marian's YAML of a vocabulary: a token and its id in each line, perhaps a million, and `no` is a word."""
    problem = f"{path}: is no vocabulary: each line must be a token, a colon and its number"
    try:
        if text.lstrip().startswith("{"):
            value = json.loads(text)
            return {str(token): int(id) for token, id in value.items()}
        ids: dict[str, int] = {}
        for line in text.splitlines():
            if not line.strip() or line.startswith(("#", "---", "...")):
                continue
            key, _, id = line.rpartition(":")
            key = key.strip()
            if key.startswith('"'):
                key = json.loads(key)
            elif key.startswith("'"):
                key = key[1:-1].replace("''", "'")
            ids[key] = int(id)
        return ids
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ModelError(problem) from None


def generation_settings(model: MarianModel) -> dict[str, Any]:
    """Our generation section: Marian's beam shrinks as outputs finish, and <unk> is not generated."""
    beam, alpha = model.decoding.get("beam-size", 12), model.number("normalize", 0, model.decoding)
    factor = model.number("max-length-factor", MAX_LENGTH_FACTOR, model.decoding)
    settings: dict[str, Any] = {"search": "beam", "beam": beam, "finished_policy": "shrink"}
    if beam == 1:
        settings = {"search": "greedy"}
    elif alpha:
        settings |= {"length_rule": "power", "length_penalty": alpha}
    else:
        settings |= {"length_rule": "none"}
    settings |= {"max_length_ratio": factor, "max_length_extra": 0}
    return settings | {"allow_unk": bool(model.decoding.get("allow-unk", False))}


def read_yaml_beside(path: Path, suffix: str) -> dict[str, Any]:
    """The options in FILE.yml or FILE.decoder.yml; {} if there is no such file."""
    beside = path.with_name(path.name + suffix)
    return parse_yaml(checkpoint_files.read_bytes(beside), str(beside)) if beside.exists() else {}


def parse_yaml(data: bytes, where: str) -> dict[str, Any]:
    """Options in YAML; ModelError if they are none."""
    try:
        value = yaml.parse(data.decode("utf-8"), where)
    except (ConfigError, UnicodeDecodeError) as error:
        problem = error.problems[0] if isinstance(error, ConfigError) else "it is not UTF-8"
        raise ModelError(f"{where}: {problem}; copy the file again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{where}: has no options; copy the file again")
    return value
