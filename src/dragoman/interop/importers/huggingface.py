"""Folders of Hugging Face transformers: which family, its tokenizer, and its generation settings.

    model_type   norm_order  embedding_norm  positions                        before / after a source  first in a target
    marian       post        false           sines, then cosines              >>xx<<? … </s>           –
    bart         post        true            learned, from row 2              <s> … </s>               <s> where forced
    pegasus      pre         false           sines, then cosines              … </s>                   –
    mbart        pre         true            learned, from row 2              … </s> xx, or xx … </s>  xx
    m2m_100      pre         false           sines, then cosines; endpoint, first: 2   xx … </s>       xx

Their layers have the same names. t5.py has T5 and its relatives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core.errors import ModelError, did_you_mean
from dragoman.interop.importers import checkpoint_files
from dragoman.interop.importers.contents import Imported, VocabularyMap, Weights, transformed, zeros
from dragoman.interop.importers.hf_tokenizers import ImportedText, read_text_side
from dragoman.nn.positions import SinusoidalPositions

if TYPE_CHECKING:
    from dragoman.interop.importers import ImportOptions

OFFSET = 2  # rows of the position tables of BART and mBART before position 0
IGNORED = re.compile(  # tables that are tied or computed, and what transformers ignores, too
    r"embed_tokens\.weight|shared\.weight|lm_head\.weight|embed_positions\.weights?$|(encoder|decoder)\.version$"
    r"|_float_tensor$|EncDecAttention\.relative_attention_bias\.weight$"
)
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "swish",
    "swish": "swish",
}


@dataclass(frozen=True)
class HuggingFaceModel:
    """The files of a folder."""

    folder: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    weights: dict[str, LazyTensor]
    source_lang: str = ""  # of all sources and targets, where the user says so
    target_lang: str = ""
    read_names: set[str] = field(default_factory=set)  # of the weights that were asked for

    @property
    def model_type(self) -> str:
        """marian, bart, t5, …"""
        return str(self.config.get("model_type", ""))

    def setting(self, key: str) -> Any:
        """A setting of generation, which older folders have in config.json."""
        value = self.generation.get(key)
        return self.config.get(key) if value is None else value

    def size(self, key: str) -> int:
        """A positive whole number of config.json; ModelError otherwise."""
        value = self.config.get(key)
        if type(value) is not int or not 0 < value < 10**7:
            raise ModelError(f"{self.folder}/config.json: {key} is {str(value)[:30]}, but must be a positive number")
        return value

    def number(self, key: str, default: float) -> float:
        """A number of config.json from 0 on; ModelError if it is none."""
        value = self.config.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**7:
            raise ModelError(f"{self.folder}/config.json: {key} is {str(value)[:30]}, but must be a number from 0 on")
        return float(value)

    def vocabulary_sizes(self) -> tuple[int, int]:
        """The rows of the embeddings of source and target; ModelError if they are not those that config.json says."""
        said = [self.size("vocab_size")] * 2
        if self.model_type == "marian" and self.config.get("share_encoder_decoder_embeddings", True) is False:
            said[1] = self.size("decoder_vocab_size")
        for size, side in zip(said, ("encoder", "decoder"), strict=True):
            rows = self.embedding(side).shape[0]
            if rows != size:
                raise ModelError(
                    f"{self.folder}: its sizes contradict each other: the embeddings have {rows:,} rows, and "
                    f"config.json says {size:,}"
                )
        return said[0], said[1]

    def embedding(self, side: str) -> LazyTensor:
        """The embeddings of encoder or decoder, a matrix."""
        names = [f"{side}.embed_tokens.weight", "shared.weight"]
        prefix = "model." if self.model_type in FAMILIES else ""
        others = ["decoder.embed_tokens.weight", "encoder.embed_tokens.weight"]  # where only one of the tied is there
        table = self.weight(*(f"{prefix}{name}" for name in [*names, *others]), "lm_head.weight")
        if len(table.shape) != 2:
            raise ModelError(f"{self.folder}: its embeddings are no matrix; copy the weights again")
        return table

    def symbol_id(self, kind: str, rows: int) -> int:
        """The id of the symbol for padding ("pad") or the end ("eos"); ModelError if it is outside the vocabulary."""
        value = self.config.get(f"{kind}_token_id") if kind == "pad" else self.setting(f"{kind}_token_id")
        if isinstance(value, list) and value:
            value = value[0]
        if value is None:
            value = DEFAULT_SYMBOLS[self.model_type][kind]
        return self.check_id(f"{kind}_token_id", value, rows)

    def check_id(self, key: str, id: Any, rows: int) -> int:
        """An id of the vocabulary; ModelError if it is none."""
        if type(id) is not int or not 0 <= id < rows:
            raise ModelError(f"{self.folder}/config.json: {key} is {str(id)[:30]}, but must be an id below {rows}")
        return id

    def start_id(self, rows: int, names: Mapping[int, str]) -> int:
        """The id from which decoders start."""
        value = self.setting("decoder_start_token_id")
        if value is None and self.model_type == "mbart":  # there the language of the target
            found = [id for id, name in names.items() if name == self.target_lang and name]
            value = found[0] if found else None
            if value is None:
                raise ModelError(
                    f"{self.folder}/config.json: has no decoder_start_token_id, so the language of the targets must be "
                    "given with --to, as its tokenizer names it (en_XX)"
                )
        if value is None:
            kind = "eos" if self.model_type in ("bart", "m2m_100") else "pad"
            return self.symbol_id(kind, rows)
        return self.check_id("decoder_start_token_id", value, rows)

    def forced_start(self) -> int | None:
        """The id that every output begins with, if that is always the same one."""
        value = self.setting("forced_bos_token_id")
        if self.target_lang and self.model_type in ("mbart", "m2m_100"):
            return None
        return value if type(value) is int else None

    def starts_with_language(self, names: Mapping[int, str]) -> bool:
        """Whether decoders start from a language's symbol; `names` are ours."""
        value = self.setting("decoder_start_token_id")
        return value is None or names.get(value, "").startswith("<lang:")

    def length_limits(self) -> dict[str, Any]:
        """The most tokens of sources and targets in a training that goes on from the model."""
        key = "max_position_embeddings" if self.model_type in FAMILIES else "n_positions"
        length = self.size(key) if key in self.config else 512
        return {"max_source": length, "max_target": length}

    def weight(self, *names: str) -> LazyTensor:
        """The first weight of these names that the folder has; ModelError if there is none."""
        for name in names:
            if (x := self.find_weight(name)) is not None:
                return x
        raise ModelError(f"{self.folder}: has no weight '{names[0]}', which its config implies; copy the whole folder")

    def find_weight(self, name: str) -> LazyTensor | None:
        """The weight of a name; None if the folder has none."""
        self.read_names.add(name)
        return self.weights.get(name)

    def check_unread(self) -> None:
        """ModelError if the folder has weights that its config does not imply."""
        for name in sorted(self.weights.keys() - self.read_names):
            if not IGNORED.search(name):
                raise ModelError(f"{self.folder}: has a weight '{name[:80]}', which its config does not imply")


@dataclass(frozen=True)
class Family:
    """What the classes of a model type have in common."""

    norm_order: str
    embedding_norm: bool
    position: str | dict[str, Any]
    activation: str = "gelu"  # where config.json does not say it
    scale: bool = False
    attention_dropout: float = 0.0


FAMILIES = {
    "marian": Family("post", False, {"name": "sinusoidal", "layout": "halves"}),
    "bart": Family("post", True, "learned"),
    "pegasus": Family("pre", False, {"name": "sinusoidal", "layout": "halves"}),
    "mbart": Family("pre", True, "learned"),
    "m2m_100": Family("pre", False, {"name": "sinusoidal", "layout": "halves", "endpoint": True}, "relu", True, 0.1),
}
DEFAULT_SYMBOLS = {  # ids where config.json does not say them
    "marian": {"pad": 58100, "eos": 0},
    "bart": {"pad": 1, "eos": 2},
    "pegasus": {"pad": 0, "eos": 1},
    "mbart": {"pad": 1, "eos": 2},
    "m2m_100": {"pad": 1, "eos": 2},
    "t5": {"pad": 0, "eos": 1},
    "mt5": {"pad": 0, "eos": 1},
}
Converter = Callable[[HuggingFaceModel, ImportedText], tuple[dict[str, Any], Weights]]


def read_model(folder: Path, options: ImportOptions) -> Imported:
    """Read a folder that transformers' save_pretrained wrote."""
    from dragoman.interop.importers import whisper

    model = open_model(folder, options)
    if model.model_type == whisper.MODEL_TYPE:
        return whisper.read_huggingface(model, read_license(folder))
    text = read_text_side(model)
    section, weights = find_converter(folder, model.model_type)(model, text)
    model.check_unread()
    settings, limitations = generation_settings(model)
    names = model.config.get("architectures") or [model.model_type]
    return Imported(
        f"Hugging Face {str(names[0])[:60] if isinstance(names, list) else model.model_type}",
        {
            "tokenizer": text.options,
            "data": {"train": "pairs.tsv", "normalization": "none", **text.limits},
            "model": section,
            "generation": settings,
        },
        weights,
        text.codec,
        read_license(folder),
        [*text.limitations, *limitations],
    )


def open_model(folder: Path, options: ImportOptions) -> HuggingFaceModel:
    """Open the files of a folder; ModelError if it is of no family that can be imported."""
    checkpoint_files.check_folder(folder)
    config = checkpoint_files.read_json(folder / "config.json", needed_for="the model's architecture")
    model_type = str(config.get("model_type", ""))
    find_converter(folder, model_type)
    if config.get("quantization_config") is not None:
        raise ModelError(
            f"{folder}/config.json: its weights are quantized, which cannot be imported; take the original"
        )
    generation = checkpoint_files.read_optional_json(folder / "generation_config.json")
    weights = add_prefix(checkpoint_files.open_weights(folder, options.trust_pickle), model_type)
    return HuggingFaceModel(folder, config, generation, weights, options.source_lang, options.target_lang)


def find_converter(folder: Path, model_type: str) -> Converter:
    """The function that converts models of a type; ModelError for an unknown one."""
    from dragoman.interop.importers import t5, whisper

    if model_type in FAMILIES:
        return convert_bart
    if model_type in t5.MODEL_TYPES:
        return t5.convert_t5
    if model_type == whisper.MODEL_TYPE:
        return whisper.convert_whisper
    known = [*FAMILIES, *t5.MODEL_TYPES, whisper.MODEL_TYPE]
    raise ModelError(
        f"{folder}/config.json: model_type is '{model_type[:40]}', which cannot be imported"
        f"{did_you_mean(model_type, known)}; these can: {', '.join(known)}"
    )


def add_prefix(weights: dict[str, LazyTensor], model_type: str) -> dict[str, LazyTensor]:
    """Weights of BART's families that were saved without their output layer, under the names of those with it."""
    if model_type in FAMILIES and not any(name.startswith("model.") for name in weights):
        return {name if name in ("lm_head.weight", "final_logits_bias") else f"model.{name}": x
                for name, x in weights.items()}  # fmt: skip
    return weights


def read_license(folder: Path) -> str:
    """The license that the front matter of README.md names; "" if there is none."""
    path = folder / "README.md"
    if not path.exists():
        return ""
    text = checkpoint_files.read_bytes(path).decode("utf-8", errors="replace")
    front = text.split("---")[1] if text.startswith("---") and text.count("---") > 1 else ""
    lines = (line.removeprefix("license:").strip() for line in front.splitlines() if line.startswith("license:"))
    return next(lines, "")[:100]


# -- Marian, BART, Pegasus, mBART, M2M-100 and NLLB --------------------------------------------------------------------


def convert_bart(model: HuggingFaceModel, text: ImportedText) -> tuple[dict[str, Any], Weights]:
    """The model section and the weights of a family whose layers have BART's names."""
    config, family = model.config, FAMILIES[model.model_type]
    activation = str(config.get("activation_function") or family.activation)
    if activation not in ACTIVATIONS:
        raise ModelError(f"{model.folder}/config.json: activation_function '{activation[:30]}' cannot be imported")
    width = model.size("d_model")
    shared: dict[str, Any] = {
        "activation": ACTIVATIONS[activation],
        "norm_order": family.norm_order,
        "embedding_norm": family.embedding_norm,
        "dropout": model.number("dropout", 0.1),
        "attention_dropout": model.number("attention_dropout", family.attention_dropout),
    }
    sides: dict[str, dict[str, Any]] = {
        side: {
            "name": "transformer",
            "layers": model.size(f"{side}_layers"),
            "heads": model.size(f"{side}_attention_heads"),
            "feedforward": model.size(f"{side}_ffn_dim"),
            **shared,
        }
        for side in ("encoder", "decoder")
    }
    weights: Weights = {}
    for side, options in sides.items():
        theirs, ours = f"model.{side}", f"{side}.stack"
        for i in range(options["layers"]):
            weights |= bart_block(model, f"{theirs}.layers.{i}", f"{ours}.blocks.{i}", side == "decoder")
        options["position"], table = positions(model, side, width)
        if table is not None:
            weights[f"{ours}.positions.0.table.weight"] = table
        norms = {"layernorm_embedding": "embedding_norm"} if family.embedding_norm else {}
        norms |= {"layer_norm": "norm"} if family.norm_order == "pre" else {}
        for name, own in norms.items():
            weights |= {f"{ours}.{own}.{kind}": model.weight(f"{theirs}.{name}.{kind}") for kind in ("weight", "bias")}
    tables, tie = embedding_tables(model, text.source, text.target)
    bias = model.find_weight("final_logits_bias")
    weights |= tables
    weights["output.bias"] = text.target.output_bias(None if bias is None else transformed(bias, lambda x: x[0]))
    said = config.get("scale_embedding")
    scale = family.scale if said is None else bool(said)
    section = {
        "width": width,
        "frontend": {"name": "tokens", "scale": scale},
        "scale": scale,
        "tie": tie,
        "output_bias": True,
        **sides,
    }
    return section, weights


def bart_block(model: HuggingFaceModel, theirs: str, ours: str, is_decoder: bool) -> Weights:
    """The weights of a block; a bias that the folder lacks is zeros."""
    weights: Weights = {}
    parts = [("self_attn", "mixer"), *([("encoder_attn", "cross_attention")] if is_decoder else [])]
    for part, own in parts:
        for name, W in (("q_proj", "Wq"), ("k_proj", "Wk"), ("v_proj", "Wv"), ("out_proj", "Wo")):
            weights |= linear_weights(model, f"{theirs}.{part}.{name}", f"{ours}.{own}.{W}")
        norm = "mixer_norm" if own == "mixer" else "cross_norm"
        weights |= norm_weights(model, f"{theirs}.{part}_layer_norm", f"{ours}.{norm}")
    for name, W in (("fc1", "W1"), ("fc2", "W2")):
        weights |= linear_weights(model, f"{theirs}.{name}", f"{ours}.feedforward.{W}")
    return weights | norm_weights(model, f"{theirs}.final_layer_norm", f"{ours}.feedforward_norm")


def linear_weights(model: HuggingFaceModel, theirs: str, ours: str) -> Weights:
    """The weight and bias of a linear layer; a bias that the folder lacks is zeros."""
    weight = model.weight(f"{theirs}.weight")
    bias = model.find_weight(f"{theirs}.bias")
    return {f"{ours}.weight": weight, f"{ours}.bias": zeros(weight.shape[0]) if bias is None else bias}


def norm_weights(model: HuggingFaceModel, theirs: str, ours: str) -> Weights:
    """The weight and bias of a layer norm."""
    return {f"{ours}.{kind}": model.weight(f"{theirs}.{kind}") for kind in ("weight", "bias")}


def positions(model: HuggingFaceModel, side: str, width: int) -> tuple[Any, LazyTensor | None]:
    """The position scheme of a side, and its table if it is learned."""
    scheme = FAMILIES[model.model_type].position
    stored = model.find_weight(f"model.{side}.embed_positions.weight")
    if scheme == "learned":
        table = model.weight(f"model.{side}.embed_positions.weight")
        length = table.shape[0] - OFFSET
        if length < 1:
            raise ModelError(f"{model.folder}: its table of positions is too short; copy the weights again")
        return {"name": "learned", "length": length}, transformed(table, lambda x: x[OFFSET:])
    assert isinstance(scheme, dict)
    if model.model_type == "m2m_100":  # its positions are counted from the id of padding
        first = model.symbol_id("pad", model.vocabulary_sizes()[0]) + 1
        return scheme | {"first": first}, None
    if stored is not None and stored.shape != () and width == stored.shape[-1] and not is_sinusoidal(stored):
        return {"name": "learned", "length": stored.shape[0]}, stored
    return scheme, None


def is_sinusoidal(table: LazyTensor) -> bool:
    """Whether a table (T, D) holds the sinusoids of Hugging Face's Marian and Pegasus, which are not always stored."""
    length, width = table.shape
    if width % 2:
        return False
    x = SinusoidalPositions(width, None, layout="halves")(torch.zeros(1, length, width), torch.arange(length)[None])
    return torch.allclose(x[0], table.load().float(), atol=1e-3)


def embedding_tables(model: HuggingFaceModel, source: VocabularyMap, target: VocabularyMap) -> tuple[Weights, str]:
    """The tables of embeddings and output layer under our names, and which of them are one (model.tie)."""
    encoder, decoder = model.embedding("encoder"), model.embedding("decoder")
    output = model.find_weight("lm_head.weight")
    is_one = model.config.get("tie_word_embeddings", True) is not False
    is_tied = output is None or (is_one and are_equal(output, decoder))
    are_shared = source.rows == target.rows and are_equal(encoder, decoder)
    if is_tied and output is None and not is_one:
        raise ModelError(f"{model.folder}: has no weight 'lm_head.weight', which its config implies; copy the folder")
    if are_shared and is_tied:
        return {"frontend.table.weight": source.pick(encoder)}, "all"
    if is_tied:
        return {"frontend.table.weight": source.pick(encoder), "embedding.table.weight": target.pick(decoder)}, "output"
    assert output is not None
    tables = {"frontend.table.weight": source.pick(encoder), "output.weight": target.pick(output)}
    if are_shared:
        return tables, "embeddings"
    return tables | {"embedding.table.weight": target.pick(decoder)}, "none"


def are_equal(x: LazyTensor, y: LazyTensor) -> bool:
    """Whether two tensors are the same; as in transformers, what a config ties is one only then."""
    return x is y or (x.shape == y.shape and torch.equal(x.load(), y.load()))


# -- generation --------------------------------------------------------------------------------------------------------

LOST = {  # settings that change outputs, with the value at which they do nothing
    "num_beam_groups": 1,
    "do_sample": False,
    "bad_words_ids": None,
    "force_words_ids": None,
    "sequence_bias": None,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "diversity_penalty": 0.0,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_decoder_ids": None,
    "renormalize_logits": False,
    "remove_invalid_values": False,
    "guidance_scale": None,
    "penalty_alpha": None,
}
MAX_NUMBER = 10**6  # of a setting


def generation_settings(model: HuggingFaceModel) -> tuple[dict[str, Any], list[str]]:
    """Our generation section, and a sentence for each setting that has no place in it."""

    def whole(key: str, default: int = 0) -> int:
        value = model.setting(key)
        if value is None:
            return default
        if type(value) is not int or not 0 <= value <= MAX_NUMBER:
            raise ModelError(f"{model.folder}: generation setting {key} is {str(value)[:30]}, but must be a number")
        return value

    def number(key: str, default: float) -> float:
        value = model.setting(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise ModelError(f"{model.folder}: generation setting {key} is {str(value)[:30]}, but must be a number")
        return float(value)

    beams, lost = whole("num_beams", 1), []
    settings: dict[str, Any] = {"search": "greedy"}
    if beams > 1:
        stopping = model.setting("early_stopping")
        settings = {
            "search": "beam",
            "beam": beams,
            "length_rule": "power",
            "length_penalty": number("length_penalty", 1.0),
            "early_stopping": stopping if stopping in (True, "never") else False,
            **({"patience": 1.0} if stopping is True else {}),
        }
    if ngram := whole("no_repeat_ngram_size"):
        settings["no_repeat_ngram_size"] = ngram
    penalty = number("repetition_penalty", 1.0)
    if 1.0 < penalty <= 100.0:
        settings["repetition_penalty"] = penalty
        lost.append(f"generation setting repetition_penalty: {penalty} is taken of log p, not of the scores before it")
    elif penalty != 1.0:
        lost.append(f"generation setting repetition_penalty: {penalty}")
    # Theirs count </s>, and max_length and min_length the symbol from which the decoder starts; ours count neither.
    longest = whole("max_new_tokens") or max(whole("max_length") - 1, 0)
    if beams > 1 or model.setting("forced_eos_token_id") is not None:  # a greedy output has so many without </s>
        longest -= 1
    if longest > 0:
        settings["max_new_tokens"] = longest
    shortest = whole("min_new_tokens") or max(whole("min_length") - 1, 0)
    if shortest:
        settings["min_new_tokens"] = min(shortest, longest) if longest > 0 else shortest
    if isinstance(ends := model.setting("eos_token_id"), list) and len(ends) > 1:
        lost.append(f"generation setting eos_token_id: {str(ends)[:40]}; outputs end with the first alone")
    never = {model.config.get("pad_token_id"), model.setting("decoder_start_token_id")}  # in outputs of ours
    for key, neutral in LOST.items():
        value = model.setting(key)
        listed = value if isinstance(value, list) else []
        ids = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in listed]
        if value in (None, neutral) or (value == listed and all(type(id) is int and id in never for id in ids)):
            continue
        lost.append(f"generation setting {key}: {str(value)[:40]}")
    return settings, lost
