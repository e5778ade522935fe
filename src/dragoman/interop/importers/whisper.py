"""Whisper, from Hugging Face's folders and CTranslate2's: sound in, and text after a prompt out.

    <s> is <|startoftranscript|>, </s> is <|endoftext|>, and a target is

    <|notimestamps|> {text} </s>                                of a model for English alone
    <lang:{to}> <|transcribe|> <|notimestamps|> {text} </s>     of a multilingual model; <lang:en> is <|en|>

Tokens that Whisper's search suppresses have a bias of −1e9. Its texts begin with a space, which ours do not: here the
tokenizer sets it before a text and takes it away again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core.errors import ModelError
from dragoman.core.registry import Part
from dragoman.core.types import EOS, SPECIALS, UNK
from dragoman.interop.importers import checkpoint_files, ctranslate2, huggingface
from dragoman.interop.importers.contents import (
    ABSENT_BIAS,
    Imported,
    VocabularyMap,
    Weights,
    load_tokenizer,
    map_vocabulary,
)
from dragoman.interop.importers.ctranslate2 import CTranslate2Model
from dragoman.interop.importers.hf_tokenizers import ImportedText, read_contents, read_settings
from dragoman.interop.importers.huggingface import ACTIVATIONS, HuggingFaceModel
from dragoman.modalities.whisper import FRAMES_PER_SECOND, WhisperAudioModality
from dragoman.nn.frontends.whisper import WhisperFrontend
from dragoman.text.codec import Codec
from dragoman.text.templates import SequenceTemplate
from dragoman.text.tokenizers import tokenizers

MODEL_TYPE = "whisper"
START, END, NO_TIMESTAMPS = "<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>"
TASKS = {"transcribe": "<|transcribe|>", "translate": "<|translate|>"}
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
MULTILINGUAL_SIZE = 51_865  # of the smallest vocabulary that has languages
SECONDS_PER_TIMESTAMP = 0.02
SOUND_SETTINGS = {"sampling_rate": 16_000, "hop_length": 160, "n_fft": 400, "do_normalize": False, "dither": 0.0}
DEFAULTS_OF_CTRANSLATE2 = {
    "num_beams": 5,
    "length_penalty": 1.0,
    "early_stopping": True,
    "max_new_tokens": 225,  # half of its max_length, 448, and </s>
}
OWN_SETTINGS = ("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids")


def read_huggingface(model: HuggingFaceModel, license: str) -> Imported:
    """A Whisper of transformers."""
    text = read_text(model)
    return read_whisper(model, text, convert_whisper(model, text), "Hugging Face Whisper", license)


def read_ctranslate2(model: CTranslate2Model, source_lang: str, target_lang: str) -> Imported:
    """A Whisper of CTranslate2, whose sizes, settings and weights get the names that they have in transformers."""
    sides: dict[str, dict[str, Any]] = {}
    stacks: Weights = {}
    for side in ("encoder", "decoder"):
        section, weights = ctranslate2.convert_stack(model, side)
        table = model.weight(f"{side}/position_encodings/encodings")
        if len(table.shape) != 2:
            raise ModelError(f"{model.file.path}: the {side}'s table of positions is {table.shape}")
        position = {"name": "learned", "length": table.shape[0]}
        sides[side] = section | {"position": position, "activation": "gelu", "dropout": 0.0}
        stacks |= weights | {f"{side}.stack.positions.0.table.weight": table}
    renamed = {"decoder/embeddings": "model.decoder.embed_tokens", "decoder/projection": "proj_out"}
    renamed |= {f"encoder/{name}": f"model.encoder.{name}" for name in ("conv1", "conv2")}
    found = {
        f"{ours}.{kind}": model.weight(f"{theirs}/{kind}")
        for theirs, ours in renamed.items()
        for kind in ("weight", "bias")
        if model.has(f"{theirs}/{kind}")
    }
    if len(convolution := model.weight("encoder/conv1/weight").shape) != 3:
        raise ModelError(f"{model.file.path}: 'encoder/conv1/weight' is {convolution}, but must be a convolution")
    same = HuggingFaceModel(
        model.folder,
        {
            "d_model": ctranslate2.tables_width(model),
            "num_mel_bins": convolution[1],
            "max_source_positions": sides["encoder"]["position"]["length"],
            "max_target_positions": sides["decoder"]["position"]["length"],
        },
        {
            **DEFAULTS_OF_CTRANSLATE2,
            "suppress_tokens": model.config.get("suppress_ids"),
            "begin_suppress_tokens": model.config.get("suppress_ids_begin"),
        },
        found,
        source_lang,
        target_lang,
    )
    text = read_text(same)
    check_vocabulary(model.folder, text.target)
    for flag in ("scale_embeddings", "start_from_zero_embedding"):
        if model.scalar(f"decoder/{flag}"):
            raise ModelError(f"{model.file.path}: decoder/{flag} is set, which Whisper does not have")
    left = {name for name in model.file.variables.keys() - model.used if Path(name).name not in ctranslate2.IGNORED}
    if left:
        raise ModelError(f"{model.file.path}: has the variable '{min(left)[:80]}', which cannot be imported")
    converted = convert_ends(same, text, sides, stacks)
    return read_whisper(same, text, converted, "CTranslate2 Whisper", huggingface.read_license(model.folder))


def read_whisper(
    model: HuggingFaceModel, text: ImportedText, converted: tuple[dict[str, Any], Weights], program: str, license: str
) -> Imported:
    """A Whisper as a model of ours, from its text side, its section and its weights."""
    settings, limitations = generation_settings(model, text)
    section, weights = converted
    return Imported(
        program,
        {
            "tokenizer": text.options,
            "data": {"train": "pairs.tsv", "normalization": "none", **text.limits},
            "model": section,
            "generation": settings,
        },
        weights,
        text.codec,
        license,
        [*text.limitations, *limitations],
    )


# -- text --------------------------------------------------------------------------------------------------------------


def read_text(model: HuggingFaceModel) -> ImportedText:
    """The vocabulary, the prompt, and how sound is read."""
    check_sound_settings(model)
    table = model.weight("model.decoder.embed_tokens.weight").shape
    if len(table) != 2:
        raise ModelError(f"{model.folder}: its embeddings are {table}, but must be a matrix; copy the weights again")
    rows = table[0]
    contents = read_contents(model, read_settings(model.folder), rows)
    if max(contents.names) >= rows:
        raise ModelError(
            f"{model.folder}: its sizes contradict each other: the tokenizer has {max(contents.names) + 1:,} tokens, "
            f"and the embeddings have {rows:,} rows; copy the whole folder"
        )
    ids = {name: id for id, name in contents.names.items()}
    if missing := [symbol for symbol in (START, END, NO_TIMESTAMPS) if symbol not in ids]:
        raise ModelError(f"{model.folder}: its tokenizer lacks {missing[0]}, which Whisper's have; copy the folder")
    unnamed = set(range(rows)) - contents.names.keys()
    names = contents.names | {id: timestamp_name(id - ids[NO_TIMESTAMPS] - 1, ids) for id in sorted(unnamed)}
    symbols = {id: our_name(names[id]) for id in contents.symbols | unnamed}
    mapped = map_vocabulary(
        [names[id] for id in range(rows)], pad=ids[END], start=ids[START], eos=ids[END], unk=ids[END],
        symbols={id: name for id, name in symbols.items() if id not in (ids[START], ids[END])},
    )  # fmt: skip
    tokenizer = tokenizers.build(Part(contents.kind))
    try:
        load_tokenizer(tokenizer, with_first_space(contents.model), mapped)
    except ValueError as error:
        raise ModelError(f"{model.folder}: its tokenizer cannot be read: {error}") from None
    prompt, limitations = read_prompt(model, mapped, rows)
    frames = WhisperFrontend.stride * model.size("max_source_positions")
    if frames % FRAMES_PER_SECOND:
        raise ModelError(
            f"{model.folder}: reads {frames} frames of sound, but must read whole seconds of {FRAMES_PER_SECOND} frames"
        )
    modality = WhisperAudioModality(frames // FRAMES_PER_SECOND, model.size("num_mel_bins"))
    return ImportedText(
        mapped,
        mapped,
        Codec(tokenizer, tokenizer, "none", modality, target_template=SequenceTemplate.parse(prompt)),
        {"source": contents.kind, "target_template": prompt},
        {"max_source": frames, "max_target": model.size("max_target_positions")},
        [
            f"timestamps, and sounds longer than {modality.seconds} s: the rest of a longer one is not read",
            *limitations,
        ],
    )


def check_vocabulary(folder: Path, target: VocabularyMap) -> None:
    """ModelError if CTranslate2's list of tokens is not that of the tokenizer."""
    for path in (folder / "vocabulary.json", folder / "vocabulary.txt"):
        if path.exists():
            names = ctranslate2.parse_names(path)
            rows = target.rows[-len(target.tokens) :]
            if max(rows) >= len(names) or [names[row] for row in rows] != target.tokens:
                raise ModelError(f"{path}: lists other tokens than tokenizer.json beside it; copy the whole folder")


def our_name(symbol: str) -> str:
    """Our name of a symbol: language tags have a form of their own."""
    match = LANGUAGE.fullmatch(symbol)
    return symbol if match is None else f"<lang:{match[1]}>"


def timestamp_name(index: int, taken: Collection[str]) -> str:
    """The name of the timestamp that is this many after the first, which the tokenizer lacks."""
    name = f"<|{index * SECONDS_PER_TIMESTAMP:.2f}|>"
    return f"<unused:{index}>" if name in taken else name


def with_first_space(tokenizer: bytes) -> bytes:
    """A tokenizer.json of byte-level BPE that sets a space before a text, and takes it away again."""
    data = json.loads(tokenizer)
    for key in ("pre_tokenizer", "decoder"):
        if not isinstance(data.get(key), dict) or data[key].get("type") != "ByteLevel":
            raise ValueError(f"its {key} is not ByteLevel, as Whisper's is")
    data["pre_tokenizer"]["add_prefix_space"] = True
    data["decoder"] = {
        "type": "Sequence",
        "decoders": [data["decoder"], {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    }
    return json.dumps(data, ensure_ascii=False).encode()


def read_prompt(model: HuggingFaceModel, vocabulary: VocabularyMap, rows: int) -> tuple[str, list[str]]:
    """The template of targets, and what it leaves out."""
    is_multilingual = model.generation.get("is_multilingual")
    if not (rows >= MULTILINGUAL_SIZE if is_multilingual is None else is_multilingual):
        return f"{NO_TIMESTAMPS} {{text}} {SPECIALS[EOS]}", []
    known = sorted(symbol[6:-1] for symbol in vocabulary.extra_symbols if symbol.startswith("<lang:"))
    task = str(model.generation.get("task") or "transcribe")
    if task not in TASKS or TASKS[task] not in vocabulary.extra_symbols:
        raise ModelError(f"{model.folder}: its task is '{task[:30]}', but must be one of {', '.join(TASKS)}")
    said = model.target_lang if task == "transcribe" else model.source_lang  # the language that is spoken
    language = said or str(model.generation.get("language") or "").strip("<|>")
    if said and said not in known:
        raise ModelError(
            f"{model.folder}: does not know the language '{said[:30]}'; it knows {', '.join(known[:12])}"
            f"{', …' if len(known) > 12 else ''}"
        )
    limitations = []
    if language not in known:
        language = "{to}" if task == "transcribe" else "{from}"
        option = "--target-lang" if task == "transcribe" else "--source-lang"
        limitations.append(f"finding out which language is spoken: name it with {option}")
    return f"<lang:{language}> {TASKS[task]} {NO_TIMESTAMPS} {{text}} {SPECIALS[EOS]}", limitations


# -- weights -----------------------------------------------------------------------------------------------------------


def convert_whisper(model: HuggingFaceModel, text: ImportedText) -> tuple[dict[str, Any], Weights]:
    """The model section and the weights of a Whisper of transformers."""
    activation = str(model.config.get("activation_function") or "gelu")
    if activation not in ACTIVATIONS:
        raise ModelError(f"{model.folder}/config.json: activation_function '{activation[:30]}' cannot be imported")
    weights: Weights = {}
    sides: dict[str, dict[str, Any]] = {}
    for side, length in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        sides[side] = {
            "name": "transformer",
            "layers": model.size(f"{side}_layers"),
            "heads": model.size(f"{side}_attention_heads"),
            "feedforward": model.size(f"{side}_ffn_dim"),
            "activation": ACTIVATIONS[activation],
            "norm_order": "pre",
            "position": {"name": "learned", "length": model.size(length)},  # the encoder's are sinusoids, as stored
            "dropout": model.number("dropout", 0.0),
            "attention_dropout": model.number("attention_dropout", 0.0),
        }
        theirs, ours = f"model.{side}", f"{side}.stack"
        for i in range(sides[side]["layers"]):
            weights |= huggingface.bart_block(model, f"{theirs}.layers.{i}", f"{ours}.blocks.{i}", side == "decoder")
        weights |= huggingface.norm_weights(model, f"{theirs}.layer_norm", f"{ours}.norm")
        weights[f"{ours}.positions.0.table.weight"] = model.weight(f"{theirs}.embed_positions.weight")
    return convert_ends(model, text, sides, weights)


def convert_ends(
    model: HuggingFaceModel, text: ImportedText, sides: dict[str, dict[str, Any]], stacks: Weights
) -> tuple[dict[str, Any], Weights]:
    """Add frontend, embeddings and output layer to the encoder and decoder of the model section and their weights."""
    embedding = model.weight("model.decoder.embed_tokens.weight")
    output = model.weights.get("proj_out.weight")
    weights = stacks | {
        "embedding.table.weight": text.target.pick(embedding),
        "output.bias": output_bias(text.target, set(token_ids(model, "suppress_tokens"))),
    }
    for name in ("conv1", "conv2"):
        weights |= huggingface.norm_weights(model, f"model.encoder.{name}", f"frontend.{name}")
    is_tied = output is None or huggingface.are_equal(output, embedding)
    if output is not None and not is_tied:
        weights["output.weight"] = text.target.pick(output)
    modality = text.codec.modality
    assert isinstance(modality, WhisperAudioModality)
    section = {
        "width": model.size("d_model"),
        "frontend": {"name": "whisper", "bins": modality.bins, "seconds": modality.seconds},
        "scale": False,
        "tie": "output" if is_tied else "none",
        "output_bias": True,
        **sides,
    }
    return section, weights


def check_sound_settings(model: HuggingFaceModel) -> None:
    """ModelError if preprocessor_config.json reads sound in another way than Whisper."""
    path = model.folder / "preprocessor_config.json"
    settings = checkpoint_files.read_optional_json(path)
    expected = SOUND_SETTINGS | {"feature_size": model.size("num_mel_bins")}
    for key, value in expected.items():
        if settings.get(key, value) != value:
            raise ModelError(f"{path}: {key} is {str(settings[key])[:30]}, but can be imported only if it is {value}")


def output_bias(vocabulary: VocabularyMap, suppressed: set[int]) -> LazyTensor:
    """The bias of the output layer: suppressed tokens take no part in the softmax."""

    def load() -> Tensor:
        bias = vocabulary.output_bias(None).load()
        bias[torch.tensor([row in suppressed for row in vocabulary.rows])] = ABSENT_BIAS
        return bias

    return LazyTensor((len(vocabulary.rows),), load)


# -- generation --------------------------------------------------------------------------------------------------------


def token_ids(model: HuggingFaceModel, key: str) -> list[int]:
    """A list of tokens among the settings of generation; ModelError if it is none."""
    value = model.setting(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(type(id) is int for id in value):
        raise ModelError(f"{model.folder}: generation setting {key} is {str(value)[:30]}, but must be a list of tokens")
    return value


def generation_settings(model: HuggingFaceModel, text: ImportedText) -> tuple[dict[str, Any], list[str]]:
    """Our generation section, and a sentence for each setting that has no place in it."""
    config, generation = (
        {key: value for key, value in settings.items() if key not in OWN_SETTINGS}
        for settings in (model.config, model.generation)
    )
    settings, limitations = huggingface.generation_settings(replace(model, config=config, generation=generation))
    given = len(text.codec.target_template.prefix)
    for key in ("max_new_tokens", "min_new_tokens"):  # which count the prompt here
        if model.setting(key) is not None and key in settings:
            settings[key] += given
    if settings["search"] == "greedy":  # which is a beam of 1, so that a larger --beam finds the length rule
        settings |= {"search": "beam", "beam": 1, "length_penalty": 1.0, "early_stopping": False}
    counts_end = model.model_type == MODEL_TYPE  # in transformers; CTranslate2 leaves </s> out
    settings["length_rule"] = {"name": "power", "uncounted": given + (not counts_end)}
    if suppressed := token_ids(model, "suppress_tokens"):
        limitations.append(
            f"suppress_tokens: the {len(suppressed)} tokens have probability 0 in `score` and in training, too"
        )
    first = set(token_ids(model, "begin_suppress_tokens"))
    if text.target.rows[EOS] in first:
        settings["min_new_tokens"] = max(settings.get("min_new_tokens", 0), given + 1)
    if others := [
        text.codec.target.vocabulary.name(i) for i, row in enumerate(text.target.rows) if row in first and i > UNK
    ]:
        limitations.append(f"begin_suppress_tokens: an output may begin with {' '.join(others[:5])}")
    return settings, limitations
