"""What every export has in common: the options, which models can be exported at all, and the files of the tokenizers.

    tokenization.json          how a text becomes ids: normalization, the symbols around it, the tokens by id
    source.spm, target.spm     the sentencepiece models, where the tokenizers are such

A vocabulary of ours may hold the same name twice (a learned token that is spelled like </s>); other programs look names
up, so the second of them is renamed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.errors import UserError
from dragoman.core.types import BOS, EOS, PAD, SPECIALS, UNK
from dragoman.data.objectives import objectives
from dragoman.nn.frontends.tokens import TokenEmbedding
from dragoman.text.codec import Codec
from dragoman.text.sentencepiece_model import SentencePieceTokenizer
from dragoman.text.tokenizers import Tokenizer
from dragoman.text.tokenizers.sentencepiece import SentencePiece
from dragoman.text.vocabulary import Vocabulary

Quantization = Literal["float32", "float16", "int8"]

SENTENCEPIECE = SentencePieceTokenizer, SentencePiece  # learned by us, and of imported models
END = SPECIALS[EOS]
MAX_POSITIONS = 1024  # that are promised for position schemes without a maximum
CHECKED_LENGTH = 60  # tokens of an output in a check, where the program can be told so
TOLERANCES: dict[Quantization, float] = {"float32": 1e-4, "float16": 0.05, "int8": 1.0}


@dataclass(frozen=True)
class ExportOptions:
    """What a user may choose beside the format."""

    quantization: Quantization = "float32"
    source_lang: str = ""
    target_lang: str = ""


@dataclass
class Exported:
    """What an exporter has written: how it is run and checked, and what was lost on the way."""

    program: str  # the package that runs it
    readme: str
    reads: Literal["text", "tokens", "ids"]  # what the other program is given in a check
    runner: Literal["ct2", "hf", "onnx", "argos"]  # the function of foreign_programs.py that runs it
    limitations: list[str] = field(default_factory=list)
    max_positions: int = MAX_POSITIONS  # of source and target
    writers: tuple[str, ...] = ()  # further packages that took part in writing
    min_length: int = 0  # tokens of an output at least; argostranslate has no option for it
    max_length: int = CHECKED_LENGTH  # tokens of an output in the check at most
    tolerance: float = TOLERANCES["float32"]  # between two log p that rounding may exchange


class Exporter(Protocol):
    """Writes a model into an empty folder; UserError if the format cannot state it."""

    def __call__(self, loaded: LoadedModel, folder: Path, options: ExportOptions) -> Exported: ...


def rounding_limitation(quantization: Quantization) -> list[str]:
    """A sentence on what a quantization does to the outputs, if it does anything."""
    if quantization == "float32":
        return []
    return [
        f"{quantization} rounds the weights, so outputs may differ from ours where two tokens are about equally "
        f"probable, within {TOLERANCES[quantization]} in log p"
    ]


def check_exportable(loaded: LoadedModel) -> None:
    """Raise UserError for models that no format of ours can state."""
    model, codec = loaded.model, loaded.codec

    def refuse(problem: str) -> UserError:
        return UserError(f"{loaded.path}: cannot be exported: {problem}")

    if model.head is not None:
        raise refuse("it predicts labels (model.head); only models that generate a target can be")
    if codec.modality is not None:
        raise refuse(f"its sources are no text but {codec.modality.kind}; only models that read text can be")
    if model.second_source is not None:
        raise refuse("it reads two sources (model.second_source); only models that read one can be")
    if objectives.build(loaded.config.training.objective).continues_text:
        raise refuse("it is a language model; only models with a source and a target can be")
    if model.pointer is not None:
        raise refuse("it copies words of the source (model.pointer), which the formats cannot state")
    if not isinstance(model.frontend, TokenEmbedding):
        raise refuse(f"its frontend is {type(model.frontend).__name__}; only models that read token ids can be")
    if codec.target_template.prefix or codec.target_template.suffix != (END,):
        raise refuse("its target template is not '{text} </s>', and the formats cannot state another")


def ends_with_eos(loaded: LoadedModel) -> bool:
    """Whether </s> ends every source."""
    has_eos = objectives.build(loaded.config.training.objective).has_source_eos
    return loaded.codec.source_template.ends_with_eos and has_eos


def check_source_template(loaded: LoadedModel, format: str) -> bool:
    """Whether </s> ends every source; UserError if the template has something else after the text."""
    suffix = loaded.codec.source_template.suffix
    if suffix not in ((), (END,)):
        raise UserError(
            f"{loaded.path}: cannot be exported as {format}: its source template puts '{' '.join(suffix)}' after the "
            f"text, and only {END} or nothing can stand there"
        )
    return ends_with_eos(loaded)


def unique_names(vocabulary: Vocabulary) -> list[str]:
    """The name of every id, each once: a name that is taken already gets the id appended."""
    names: dict[str, None] = {}
    for id, name in enumerate(vocabulary.names):
        while name in names:
            name = f"{name}#{id}"
        names[name] = None
    return list(names)


def renaming_limitation(codec: Codec) -> list[str]:
    """A sentence on tokens that were renamed, if there are any."""
    renamed = [
        f"{old!r} is {new!r}"
        for side in {id(side): side for side in (codec.source, codec.target)}.values()
        for old, new in zip(side.vocabulary.names, unique_names(side.vocabulary), strict=True)
        if old != new
    ]
    return [f"tokens whose names were taken were renamed: {', '.join(renamed[:5])}"] if renamed else []


def is_sentencepiece(codec: Codec) -> bool:
    """Whether both tokenizers are sentencepiece models, whose ids are those of our vocabulary."""
    return all(isinstance(side, SENTENCEPIECE) and side.model for side in (codec.source, codec.target))


def write_tokenizers(codec: Codec, folder: Path) -> None:
    """Write tokenization.json and, where the tokenizers are sentencepiece models, source.spm and target.spm."""
    if is_sentencepiece(codec):
        for name, side in (("source", codec.source), ("target", codec.target)):
            assert isinstance(side, SENTENCEPIECE)
            (folder / f"{name}.spm").write_bytes(side.model)
    sides = {"joint": codec.source} if codec.is_joint else {"source": codec.source, "target": codec.target}
    description: dict[str, Any] = {
        "normalization": codec.normalization,
        "source_template": [*codec.source_template.prefix, "{text}", *codec.source_template.suffix],
        "target_template": [*codec.target_template.prefix, "{text}", *codec.target_template.suffix],
        "special": {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK, "decoder_start": BOS},
        "tokenizers": {name: describe_tokenizer(side) for name, side in sides.items()},
    }
    write_json(folder / "tokenization.json", description)


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """The kind of a tokenizer, its options, and its tokens in the order of their ids."""
    vocabulary = tokenizer.vocabulary
    options: dict[str, Any] = {"byte_fallback": tokenizer.byte_fallback}
    for name in ("lowercase", "features"):
        if getattr(tokenizer, name, False):
            options[name] = True
    return {"kind": tokenizer.kind, **options, "symbols": vocabulary.symbol_count, "tokens": unique_names(vocabulary)}


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def normalization_code(codec: Codec) -> str:
    """Python that normalizes `text` as our models expect it, for an example in a README."""
    if codec.normalization == "none":
        return "text"
    return f'unicodedata.normalize("{codec.normalization.upper()}", text)'


def tag_note(codec: Codec) -> str:
    """A sentence on the symbols before a source's tokens, for a README; "" if there are none in the vocabulary."""
    tags = codec.source.vocabulary.extra_symbols
    if not tags:
        return ""
    order = " ".join(codec.source_template.prefix)
    return f"\nBefore the tokens of a source stand its tags, in this order: {order} (known: {', '.join(tags[:20])}).\n"
