"""A pipeline's model for the engine in the browser: a header, which is JSON, and the bytes of its tensors.

    Pipeline ─model_data→ header, tensors ─loadModel (engine/model_loading.js)→ the same log p

    float32   every number as it is          float16   matrices in half the bytes
    int8      matrices with a scale for each row:  s_r = max_c |W_rc| / 127,  W_rc ≈ s_r · round(W_rc / s_r)

Rows of W are the outputs of y = W x, and the vectors of an embedding. Vectors stay in float32. A tensor with several
names (tied embeddings, shared layers) is stored once. What the engine cannot compute is refused in one sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.browser.codec_data import codec_data, input_data
from dragoman.core.errors import UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.inference.pipeline import Pipeline
from dragoman.nn.adapters import adapter_parameters
from dragoman.nn.seq2seq import Seq2Seq

FORMAT = 1
ALIGNMENT = 16  # bytes: typed arrays and SIMD loads begin at multiples of their size
LEVELS = 127  # int8 values on each side of 0

Precision = Literal["int8", "float16", "float32"]
PRECISIONS: tuple[Precision, ...] = ("int8", "float16", "float32")

# The parts that engine/*.js has, by the config's field that names them.
ENCODERS = ("conv", "identity", "none", "pyramid", "rnn", "transformer")
DECODERS = ("attention", "conv", "rnn", "transformer")
HEADS = ("classifier", "tagger")
SCORES = ("additive", "concat", "coverage", "dot", "general", "location", "scaled_dot")
NORMALIZERS = ("entmax15", "hard", "local_m", "local_p", "softmax", "sparsemax")
POSITIONS = ("alibi", "learned", "none", "rotary", "shaw", "sinusoidal", "t5", "xl")
NORMS = ("batch", "layer", "rms")
MIXERS = ("attention", "average", "parameter_free", "ssru")
OPTION_KINDS = {"score": SCORES, "normalizer": NORMALIZERS, "position": POSITIONS, "norm": NORMS, "mixer": MIXERS}
SEARCHES = ("beam", "greedy")
LENGTH_RULES = ("none", "mean", "power", "gnmt")

# Options of a config's `generation:` that the engine does not have, with the value at which they do nothing.
UNSUPPORTED_OPTIONS = {
    "mbr": None,
    "ctc_weight": 0.0,
    "force_phrases": (),
    "choices": (),
    "pattern": "",
    "replace_unk": False,
}
OPTIONS = (
    "beam",
    "nbest",
    "length_penalty",
    "early_stopping",
    "patience",
    "finished_policy",
    "coverage_penalty",
    "max_new_tokens",
    "max_length_ratio",
    "max_length_extra",
    "min_new_tokens",
    "min_length_ratio",
    "prefix",
    "forbid_phrases",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "allow_unk",
)


def model_data(pipeline: Pipeline, precision: Precision = "int8") -> tuple[dict[str, Any], bytes]:
    """Return header and tensors of a model; UserError if the engine in the browser cannot compute it."""
    if precision not in PRECISIONS:
        raise UserError(f"precision is '{precision}'; it must be one of {', '.join(PRECISIONS)}")
    if (problem := browser_blocker(pipeline)) is not None:
        raise UserError(f"this model cannot run in a browser: {problem}")
    model = pipeline.model
    table, data = pack_tensors(model, precision)
    header = {
        "format": FORMAT,
        "precision": precision,
        "parameters": sum(p.numel() for p in model.parameters()),
        "model": _model_options(pipeline),
        "generation": _generation_options(pipeline.config.generation),
        "limits": {"max_target_positions": model.max_target_positions},
        "inputs": input_data(pipeline.input_processor),
        "codec": codec_data(pipeline.codec),
        "tensors": table,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return header, data


# -- what the engine can compute ---------------------------------------------------------------------------------------


def browser_blocker(pipeline: Pipeline) -> str | None:
    """Why the engine in the browser cannot compute this model; None: it can."""
    model, config = pipeline.model, pipeline.config.model
    if not isinstance(model, Seq2Seq):
        return "an ensemble, or a model fused with a language model, has several models; export one of them alone"
    if model.second_source is not None:
        return "it reads two sources"
    if config.frontend.name != "tokens":
        return f"frontend '{config.frontend.name}' reads files, and the engine reads texts"
    if adapter_parameters(model):
        return "its adapter is not merged; load it from its run folder"
    for kind, part, known in (
        ("encoder", config.encoder, ENCODERS),
        ("decoder", config.decoder, DECODERS),
        ("head", config.head, HEADS),
        ("pointer score", config.pointer, SCORES),
    ):
        if part is not None and (problem := _part_blocker(kind, part, known)) is not None:
            return problem
    return _generation_blocker(pipeline.config.generation)


def _part_blocker(kind: str, part: Part, known: tuple[str, ...]) -> str | None:
    """Why the engine lacks a part or one of its options; None: it has all of them."""
    if part.name not in known:
        return f"the engine has no {kind} '{part.name}' (it has {', '.join(known)})"
    for name, option in part.options.items():
        if isinstance(option, Part) and (problem := _part_blocker(name, option, OPTION_KINDS.get(name, ()))):
            return problem
    return None


def _generation_blocker(options: GenerationOptions) -> str | None:
    """Why the engine cannot generate as the config says; None: it can."""
    if options.search.name not in SEARCHES:
        return f"generation.search is '{options.search.name}', and the engine has {' and '.join(SEARCHES)}"
    if options.length_rule.name not in LENGTH_RULES:
        return f"generation.length_rule is '{options.length_rule.name}', and the engine has {', '.join(LENGTH_RULES)}"
    for name, neutral in UNSUPPORTED_OPTIONS.items():
        if getattr(options, name) != neutral:
            return f"the engine has no generation.{name}; take it out of the model's config"
    return None


# -- the config --------------------------------------------------------------------------------------------------------


def _model_options(pipeline: Pipeline) -> dict[str, Any]:
    """The options of the model that change what it computes; widths are those of the tensors."""
    config, model = pipeline.config.model, pipeline.model
    decoder = None if config.decoder is None else config.decoder.to_mapping()
    if decoder is not None and decoder["name"] == "rnn":
        decoder["reads"] = model.decoder.reads  # the config may leave it to the other options
    return {
        "width": config.width,
        "scale_source": model.frontend.factor,
        "scale_target": None if decoder is None else model.embedding.factor,
        "encoder": config.encoder.to_mapping(),
        "decoder": decoder,
        "head": None if config.head is None else config.head.to_mapping(),
        "pointer": None if config.pointer is None else config.pointer.to_mapping(),
        "is_decoder_only": model.is_decoder_only,
        "continues_text": pipeline.continues_text and not model.has_bidirectional_prefix,
    }


def _generation_options(options: GenerationOptions) -> dict[str, Any]:
    """The options of the config's `generation:` that the engine has."""
    values = {name: getattr(options, name) for name in OPTIONS}
    values["forbid_phrases"] = list(options.forbid_phrases)
    return {"search": options.search.name, "length_rule": options.length_rule.to_mapping(), **values}


# -- the tensors -------------------------------------------------------------------------------------------------------


def pack_tensors(model: nn.Module, precision: Precision) -> tuple[list[dict[str, Any]], bytes]:
    """Return the table of a model's tensors, each with its names, and their bytes."""
    table: list[dict[str, Any]] = []
    data = bytearray()

    def append(values: np.ndarray[Any, Any]) -> int:
        data.extend(b"\0" * (-len(data) % ALIGNMENT))
        offset = len(data)
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        data.extend(np.ascontiguousarray(little).tobytes())
        return offset

    for names, tensor in _distinct_tensors(model):
        values = tensor.detach().float().cpu().numpy()
        if not np.isfinite(values).all():
            raise UserError(f"the weight {names[0]} is not finite, so the model cannot be exported")
        entry: dict[str, Any] = {"names": names, "shape": list(values.shape), "dtype": "float32"}
        if precision != "float32" and is_matrix(names[0], values.shape):
            if precision == "float16":
                half = values.astype(np.float16)
                if not np.isfinite(half).all():
                    raise UserError(f"the weight {names[0]} is too large for float16; export in float32 or int8")
                entry |= {"dtype": "float16", "offset": append(half)}
            else:
                rounded, scales = round_to_int8(values)
                entry |= {"dtype": "int8", "offset": append(rounded), "scales": append(scales)}
        else:
            entry["offset"] = append(values)
        table.append(entry)
    return table, bytes(data)


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a weight is a matrix W of y = W x or a table of vectors, which may be rounded."""
    return len(shape) == 2 and shape[0] > 1 and "weight" in name.rpartition(".")[2]


def round_to_int8(W: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return W (R, C) rounded to int8, and the scale of each row, (R,)."""
    scales = (np.abs(W).max(1) / LEVELS).astype(np.float32)
    divisors = np.where(scales > 0, scales, 1.0).astype(np.float32)
    rounded = np.clip(np.rint(W / divisors[:, None]), -LEVELS, LEVELS).astype(np.int8)
    return rounded, scales


def _distinct_tensors(model: nn.Module) -> Iterator[tuple[list[str], Tensor]]:
    """Yield every tensor that the engine reads, with all of its names; a tied one comes once."""
    groups: dict[tuple[int, torch.Size], tuple[list[str], Tensor]] = {}
    for name, tensor in _effective_weights(model).items():
        key = (tensor.data_ptr(), tensor.shape) if tensor.numel() else (id(tensor), tensor.shape)
        groups.setdefault(key, ([], tensor))[0].append(name)
    yield from groups.values()


def _effective_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, those with weight norm as they are multiplied; without those of training alone."""
    weights: dict[str, Tensor] = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if ".parametrizations." not in name and name.partition(".")[0] not in ("ctc", "baseline")
    }
    for name, module in model.named_modules(remove_duplicate=False):
        for key in getattr(module, "parametrizations", {}):
            weights[f"{name}.{key}"] = getattr(module, key)
    return weights


def unpack_tensors(header: Mapping[str, Any], data: bytes) -> dict[str, Tensor]:
    """Return the tensors as the engine has them, in float32 and by all of their names."""
    tensors: dict[str, Tensor] = {}
    for entry in header["tensors"]:
        shape, count = entry["shape"], int(np.prod(entry["shape"], dtype=np.int64))
        values = np.frombuffer(data, np.dtype(entry["dtype"]).newbyteorder("<"), count, entry["offset"])
        values = values.reshape(shape).astype(np.float32)
        if entry["dtype"] == "int8":
            values = values * np.frombuffer(data, "<f4", shape[0], entry["scales"])[:, None]
        tensors |= dict.fromkeys(entry["names"], torch.from_numpy(values.copy()))
    return tensors
