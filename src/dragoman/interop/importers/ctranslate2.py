"""CTranslate2's folders: model.bin, config.json, and vocabularies; encoder-decoder Transformers.

    model.bin    u32 version  [string spec  u32 revision]  u32 n  n variables  [u32 m  m aliases]
    variable     string name  u8 rank  u32 × rank  u8 type  u32 bytes  values      below version 4: u8 item size, u32 n
    string       u16 length, the zero at its end included; all numbers little-endian

A linear layer has W (out, in) as we do; those of self-attention's queries, keys and values are one, and so are those of
the keys and values of cross-attention. Weights of int8 are w / scale with a scale for each row, those of int16 with one
for all. A folder without a table of positions has those of OpenNMT-tf: sines, then cosines, from position 1.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core import files
from dragoman.core.errors import ModelError
from dragoman.interop.importers import checkpoint_files
from dragoman.interop.importers.contents import (
    ABSENT_BIAS,
    Imported,
    VocabularyMap,
    Weights,
    map_vocabulary,
    transformed,
    zeros,
)
from dragoman.interop.importers.token_lists import (
    TokenList,
    append_row,
    make_codec,
    plain_list,
    read_sentencepiece,
    read_text,
)
from dragoman.nn.positions import SinusoidalPositions
from dragoman.text.normalization import replace_surrogates
from dragoman.text.templates import LANGUAGE_TAG

if TYPE_CHECKING:
    from dragoman.interop.importers import ImportOptions

MAX_VERSION, MAX_VARIABLES, MAX_RANK = 6, 100_000, 8
CONFIG_VERSION = 6  # from which on CTranslate2 reads config.json
TYPES = {0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16, 5: torch.bfloat16}
OLD_TYPES = {4: torch.float32, 2: torch.int16, 1: torch.int8}  # by the size of an item, below version 4
GLOBAL_INT16_SCALE = 1000.0  # of files without a scale
DEFAULT_HEADS = {"": 8, "TransformerBase": 8, "TransformerBig": 16}  # of specifications below revision 3
WHISPER = "WhisperSpec"
SPECS = ("TransformerSpec", WHISPER, *DEFAULT_HEADS)
ACTIVATIONS = {0: "relu", 1: "gelu_tanh", 2: "swish", 3: "gelu"}
GATED = {"gelu_tanh": "geglu_tanh", "swish": "swiglu", "gelu": "geglu"}
NEUTRAL = {  # flags that a model of ours cannot state, and the value that is none
    "alibi": 0,
    "alibi_use_positive_positions": 0,
    "scale_alibi": 0,
    "multi_query_attention": 0,
    "embeddings_merge": 0,
    "pre_post_layer_norm": 0,
}
IGNORED = ("alignment_layer", "alignment_heads")  # they change no output
FIRST_POSITIONS = range(3)
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 2e-2}  # of a table of sines; of float32 10⁻⁴
PADS = ("<blank>", "<pad>")
SENTENCEPIECE_FILES = ("{}.spm", "{}.model", "sentencepiece.model", "sentencepiece.bpe.model", "spm.model")
DEFAULT_BEAM, DEFAULT_LENGTH = 2, 256  # of CTranslate2's translate_batch


class Variable(NamedTuple):
    """Where the values of a variable are."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class BinaryFile:
    """A model.bin: what it says of itself, and its variables by name, aliases included."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with files.open_plain(path.resolve()) as file:
                self.read(file, path.stat().st_size)
        except FileNotFoundError:
            raise ModelError(f"{path}: is missing; copy the whole model folder") from None
        except struct.error:
            raise ModelError(f"{path}: is cut off, or no model of CTranslate2; copy it again") from None
        except UnicodeDecodeError:
            raise ModelError(f"{path}: is damaged, or no model of CTranslate2; copy it again") from None
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror}") from None

    def read(self, file: IO[bytes], length: int) -> None:
        """Read all headers."""

        def number(kind: str) -> int:
            value: int = struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))[0]
            return value

        def string() -> str:
            size = number("H")
            data = file.read(size)
            if len(data) < size:
                raise struct.error
            return data.split(b"\0")[0].decode()

        self.version = number("I")
        if not 1 <= self.version <= MAX_VERSION:
            raise ModelError(
                f"{self.path}: has format version {self.version:,}, but 1 to {MAX_VERSION} can be read; "
                "is it a model of CTranslate2?"
            )
        self.spec, self.revision = (string(), number("I")) if self.version >= 2 else ("", 1)
        self.variables: dict[str, Variable] = {}
        count = number("I")
        if count > MAX_VARIABLES:
            raise ModelError(f"{self.path}: claims {count:,} variables; it is damaged, or no model of CTranslate2")
        for _ in range(count):
            name, rank = string(), number("B")
            if rank > MAX_RANK:
                raise ModelError(f"{self.path}: claims {rank} dimensions of '{name[:60]}'; copy it again")
            shape = tuple(number("I") for _ in range(rank))
            kind, size = number("B"), number("I")
            dtype = (TYPES if self.version >= 4 else OLD_TYPES).get(kind)
            if dtype is None:
                raise ModelError(f"{self.path}: '{name[:60]}' has the unknown type {kind}")
            size *= 1 if self.version >= 4 else kind
            variable = Variable(shape, dtype, file.tell())
            if variable.size != size or file.tell() + size > length:
                raise ModelError(f"{self.path}: is cut off or damaged at '{name[:60]}'; copy it again")
            self.variables[name] = variable
            file.seek(size, 1)
        if self.version >= 3:
            for _ in range(number("I")):
                alias, name = string(), string()
                for suffix in ("", "_scale"):
                    if name + suffix in self.variables:
                        self.variables[alias + suffix] = self.variables[name + suffix]

    def load(self, variable: Variable) -> Tensor:
        """The values of a variable as they are stored."""
        try:
            with files.open_plain(self.path.resolve()) as file:
                file.seek(variable.offset)
                data = bytearray(file.read(variable.size))
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read: {error.strerror}") from None
        if len(data) < variable.size:
            raise ModelError(f"{self.path}: is cut off; copy it again")
        return (
            torch.frombuffer(data, dtype=variable.dtype).view(variable.shape) if data else torch.zeros(variable.shape)
        )


class CTranslate2Model:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        checkpoint_files.check_folder(folder)
        self.folder, self.file = folder, BinaryFile(folder / "model.bin")
        has_config = self.file.version >= CONFIG_VERSION
        self.config = checkpoint_files.read_optional_json(folder / "config.json") if has_config else {}
        if self.file.spec not in SPECS:
            raise ModelError(
                f"{folder}/model.bin: is a '{self.file.spec[:40]}', which cannot be imported; a TransformerSpec "
                f"can, and a {WHISPER}"
            )
        if self.file.revision == 1:
            raise ModelError(f"{folder}/model.bin: has the variable names of CTranslate2 1.0, which cannot be imported")
        self.used: set[str] = set()

    def scalar(self, *names: str, default: float = 0) -> float:
        """The first of these variables that there is, a number."""
        for name in names:
            if (variable := self.file.variables.get(name)) is not None:
                self.used.add(name)
                if math.prod(variable.shape) != 1:
                    raise ModelError(f"{self.file.path}: '{name}' is {variable.shape}, but must be a number")
                value = float(self.file.load(variable).reshape(()))
                if not math.isfinite(value):
                    raise ModelError(f"{self.file.path}: '{name}' is {value}, but must be a number")
                return value
        return default

    def has(self, name: str) -> bool:
        return name in self.file.variables

    def weight(self, name: str) -> LazyTensor:
        """A variable in float32, divided by its scale if it is quantized; ModelError if there is none."""
        variable = self.file.variables.get(name)
        if variable is None:
            raise ModelError(f"{self.file.path}: has no variable '{name}'")
        rank = 2 if name.endswith(("/weight", "/encodings")) else 1
        if self.file.spec != WHISPER and len(variable.shape) != rank:
            raise ModelError(f"{self.file.path}: '{name}' is {variable.shape}, but must have {rank} dimensions")
        self.used |= {name, f"{name}_scale"}
        scale = self.file.variables.get(f"{name}_scale")
        if variable.dtype is torch.int32 or (variable.dtype is torch.int8 and scale is None):
            raise ModelError(f"{self.file.path}: '{name}' is quantized in a way that cannot be imported")
        rows = variable.shape[0] if variable.shape else 1
        if scale is not None and math.prod(scale.shape) not in (1, rows):
            raise ModelError(f"{self.file.path}: '{name}' has {rows} rows, and its scale is {scale.shape}")

        def load() -> Tensor:
            x = self.file.load(variable)
            if x.is_floating_point():
                return x.float()
            by = torch.tensor(GLOBAL_INT16_SCALE) if scale is None else self.file.load(scale).float()
            return x.float() / (by.reshape(()) if by.numel() == 1 else by.view(-1, *(1,) * (x.dim() - 1)))

        return LazyTensor(variable.shape, load)

    def linear(self, theirs: str, ours: list[str]) -> Weights:
        """A linear layer, split into as many of ours; without a bias it has zeros."""
        weight = self.weight(f"{theirs}/weight")
        bias = self.weight(f"{theirs}/bias") if self.has(f"{theirs}/bias") else zeros(weight.shape[0])
        if len(weight.shape) != 2 or weight.shape[0] % len(ours) or bias.shape != weight.shape[:1]:
            raise ModelError(f"{self.file.path}: '{theirs}' is {weight.shape}, with a bias of {bias.shape}")
        weights: Weights = {}
        for i, name in enumerate(ours):
            for kind, x in (("weight", weight), ("bias", bias)):
                weights[f"{name}.{kind}"] = transformed(x, lambda x, i=i: x.chunk(len(ours))[i])  # type: ignore[misc]
        return weights

    def norm(self, theirs: str, ours: str) -> Weights:
        """A layer norm, or an RMS norm, which has no beta."""
        weights = {f"{ours}.weight": self.weight(f"{theirs}/gamma")}
        return weights | ({f"{ours}.bias": self.weight(f"{theirs}/beta")} if self.has(f"{theirs}/beta") else {})

    def symbol(self, key: str, default: str) -> str:
        """The name of a special symbol in config.json."""
        value = self.config.get(key)
        return value if isinstance(value, str) and value else default

    def flag(self, key: str, old: str) -> bool:
        """A setting of config.json, which old folders have as a variable."""
        value = self.config.get(key)
        return bool(self.scalar(old)) if value is None else bool(value)


def read_model(folder: Path, options: ImportOptions) -> Imported:
    """Read a folder that a converter of CTranslate2 wrote."""
    from dragoman.interop.importers import whisper

    model = CTranslate2Model(folder)
    if model.file.spec == WHISPER:
        return whisper.read_ctranslate2(model, options.source_lang, options.target_lang)
    sides: dict[str, Any] = {}
    weights: Weights = {}
    for side in ("encoder", "decoder"):
        section, own = convert_stack(model, side)
        sides[side], weights = section, weights | own
    source, target, template = read_vocabularies(model)
    codec, tokenizer = make_codec(source, target, template)
    tables, tie = convert_tables(model, source[1], target[1])
    scales = {side: uses_scale(model, side, tables_width(model)) for side in ("encoder", "decoder")}
    left = model.file.variables.keys() - model.used
    left = {name for name in left if name.rpartition("/")[2] not in IGNORED}
    if left:
        raise ModelError(f"{model.file.path}: has the variable '{min(left)[:80]}', which cannot be imported")
    limitations = []
    if not source[0].model:
        how = {"characters": "into characters", "symbols": "at spaces"}[source[0].kind]
        limitations.append(f"how texts become tokens, which the folder does not say: here they are split {how}")
    return Imported(
        f"CTranslate2 {model.file.spec or 'Transformer'}",
        {
            "tokenizer": tokenizer,
            "data": {"train": "pairs.tsv", "normalization": "none", **position_limits(sides)},
            "model": {
                "width": tables_width(model),
                "frontend": {"name": "tokens", "scale": scales["encoder"]},
                "scale": scales["decoder"],
                "tie": tie,
                "output_bias": True,
                **sides,
            },
            "generation": {
                "search": "beam",
                "beam": DEFAULT_BEAM,
                "early_stopping": True,
                "patience": 1.0,
                "max_new_tokens": DEFAULT_LENGTH,
                "min_new_tokens": 1,
            },
        },
        {**weights, **tables},
        codec,
        limitations=limitations,
    )


# -- layers ------------------------------------------------------------------------------------------------------------


def convert_stack(model: CTranslate2Model, side: str) -> tuple[dict[str, Any], Weights]:
    """The encoder or decoder of the model section, and its weights."""
    for flag, neutral in NEUTRAL.items():
        if model.scalar(f"{side}/{flag}", flag, default=neutral) != neutral:
            raise ModelError(f"{model.file.path}: {side}/{flag} is set, which cannot be imported")
    layers = next(i for i in itertools.count() if not model.has(f"{side}/layer_{i}/ffn/linear_0/weight"))
    if not layers:
        raise ModelError(f"{model.file.path}: has no {side}/layer_0; only encoder-decoder Transformers can be imported")
    activation = ACTIVATIONS.get(int(model.scalar(f"{side}/activation", "activation")))
    is_gated = model.has(f"{side}/layer_0/ffn/linear_0_noact/weight")
    if activation is None or (is_gated and activation not in GATED):
        raise ModelError(f"{model.file.path}: the {side}'s activation cannot be imported; {', '.join(GATED)}, relu can")
    is_pre_norm = bool(model.scalar(f"{side}/pre_norm", "pre_norm", default=1))
    has_beta = model.has(f"{side}/layer_0/ffn/layer_norm/beta")
    epsilon = model.config.get("layer_norm_epsilon")
    if epsilon is None:
        epsilon = 1e-5 if has_beta else 1e-6
    position, weights = convert_positions(model, side)
    ours = f"{side}.stack"
    section = {
        "name": "transformer",
        "layers": layers,
        "heads": int(model.scalar(f"{side}/num_heads", "num_heads", default=DEFAULT_HEADS.get(model.file.spec, 8))),
        "feedforward": model.weight(f"{side}/layer_0/ffn/linear_0/weight").shape[0],
        "activation": GATED[activation] if is_gated else activation,
        "position": position,
        "norm": {"name": "layer" if has_beta else "rms", "eps": epsilon},
        "norm_order": "pre" if is_pre_norm else "post",
        "embedding_norm": model.has(f"{side}/layernorm_embedding/gamma"),
    }
    for i in range(layers):
        weights |= convert_block(model, f"{side}/layer_{i}", f"{ours}.blocks.{i}", side == "decoder", is_gated)
    if is_pre_norm:
        weights |= model.norm(f"{side}/layer_norm", f"{ours}.norm")
    if section["embedding_norm"]:
        weights |= model.norm(f"{side}/layernorm_embedding", f"{ours}.embedding_norm")
    return section, weights


def convert_block(model: CTranslate2Model, theirs: str, ours: str, is_decoder: bool, is_gated: bool) -> Weights:
    """The weights of a block."""
    weights = model.linear(f"{theirs}/self_attention/linear_0", [f"{ours}.mixer.W{letter}" for letter in "qkv"])
    weights |= model.linear(f"{theirs}/self_attention/linear_1", [f"{ours}.mixer.Wo"])
    weights |= model.norm(f"{theirs}/self_attention/layer_norm", f"{ours}.mixer_norm")
    if is_decoder:
        cross, own = f"{theirs}/attention", f"{ours}.cross_attention"
        weights |= model.linear(f"{cross}/linear_0", [f"{own}.Wq"])
        weights |= model.linear(f"{cross}/linear_1", [f"{own}.Wk", f"{own}.Wv"])
        weights |= model.linear(f"{cross}/linear_2", [f"{own}.Wo"])
        weights |= model.norm(f"{cross}/layer_norm", f"{ours}.cross_norm")
    weights |= model.linear(f"{theirs}/ffn/linear_0", [f"{ours}.feedforward.W1"])
    weights |= model.linear(f"{theirs}/ffn/linear_1", [f"{ours}.feedforward.W2"])
    if is_gated:
        weights |= model.linear(f"{theirs}/ffn/linear_0_noact", [f"{ours}.feedforward.W3"])
    return weights | model.norm(f"{theirs}/ffn/layer_norm", f"{ours}.feedforward_norm")


def convert_positions(model: CTranslate2Model, side: str) -> tuple[dict[str, Any], Weights]:
    """The position scheme of a stack: sinusoidal if its table is one of sines, else learned."""
    name = f"{side}/position_encodings/encodings"
    if not model.has(name):
        return {"name": "sinusoidal", "layout": "halves", "endpoint": True, "first": 1}, {}
    table = model.weight(name)
    if len(table.shape) != 2:
        raise ModelError(f"{model.file.path}: '{name}' is {table.shape}, but must be a table")
    length, width = table.shape
    if width % 2 == 0 and width >= 4:
        tolerance = TOLERANCES.get(model.file.variables[name].dtype, 1e-4)
        values, t = table.load(), torch.arange(length)[None]
        for layout, endpoint, first in itertools.product(("interleaved", "halves"), (False, True), FIRST_POSITIONS):
            scheme = SinusoidalPositions(width, None, layout=layout, endpoint=endpoint, first=first)  # type: ignore[arg-type]
            if (scheme(torch.zeros(1, length, width), t)[0] - values).abs().max() < tolerance * max(1, length / 1024):
                return {"name": "sinusoidal", "layout": layout, "endpoint": endpoint, "first": first}, {}
    return {"name": "learned", "length": length}, {f"{side}.stack.positions.0.table.weight": table}


def position_limits(sides: dict[str, Any]) -> dict[str, int]:
    """max_source and max_target of learned positions, which end."""
    names = {"max_source": "encoder", "max_target": "decoder"}
    lengths = {name: sides[side]["position"].get("length") for name, side in names.items()}
    return {name: length for name, length in lengths.items() if length is not None}


def tables_width(model: CTranslate2Model) -> int:
    """The width of the decoder's embeddings."""
    shape = model.weight("decoder/embeddings/weight").shape
    if len(shape) != 2:
        raise ModelError(f"{model.file.path}: 'decoder/embeddings/weight' is {shape}, but must be a table")
    return shape[1]


def uses_scale(model: CTranslate2Model, side: str, width: int) -> bool:
    """Whether embeddings are multiplied by √D; ModelError if they are by another number."""
    value = model.scalar(f"{side}/scale_embeddings", default=1)
    if value not in (0, 1) and not math.isclose(value, math.sqrt(width), rel_tol=1e-3):
        raise ModelError(f"{model.file.path}: multiplies embeddings by {value:g}; here they can be by √{width} or not")
    return value != 0


def convert_tables(model: CTranslate2Model, source: VocabularyMap, target: VocabularyMap) -> tuple[Weights, str]:
    """Embeddings and output layer, and which of their tables are one (model.tie)."""
    variables = model.file.variables
    encoder = "encoder/embeddings_0/weight" if model.has("encoder/embeddings_0/weight") else "encoder/embeddings/weight"
    decoder, output = "decoder/embeddings/weight", "decoder/projection/weight"
    tables = {name: append_row(model.weight(name)) for name in (encoder, decoder, output)}
    bias = "decoder/projection/bias"
    known = model.weight(bias) if model.has(bias) else zeros(variables[decoder].shape[0])
    weights = {
        "output.bias": target.output_bias(append_row(known, ABSENT_BIAS)),
        "frontend.table.weight": source.pick(tables[encoder]),
    }
    is_shared = variables[encoder] == variables[decoder] and source.rows == target.rows
    is_tied = variables[output] == variables[decoder]
    if not is_shared:
        weights["embedding.table.weight"] = target.pick(tables[decoder])
    if not is_tied:
        weights["output.weight"] = target.pick(tables[output])
    return weights, {(1, 1): "all", (1, 0): "embeddings", (0, 1): "output", (0, 0): "none"}[is_shared, is_tied]


# -- vocabularies ------------------------------------------------------------------------------------------------------

Side = tuple[TokenList, VocabularyMap]


def read_vocabularies(model: CTranslate2Model) -> tuple[Side, Side, str]:
    """Source and target, each as it is in the file and in our order, and the template of sources."""
    bos, eos, unk = (model.symbol(f"{name}_token", default) for name, default in
                     (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>")))  # fmt: skip
    starts_with_bos = model.scalar("with_target_bos", default=1)
    start = model.symbol("decoder_start_token", bos if starts_with_bos else eos)
    adds_bos, adds_eos = (
        model.flag("add_source_bos", "with_source_bos"),
        model.flag("add_source_eos", "with_source_eos"),
    )
    starts_from_zeros = bool(model.scalar("decoder/start_from_zero_embedding"))
    if starts_from_zeros and adds_bos:
        raise ModelError(
            f"{model.folder}: has both add_source_bos and start_from_zero_embedding, which cannot be imported"
        )
    if model.has("encoder/embeddings_1/weight"):
        raise ModelError(f"{model.folder}: has sources with several features, which cannot be imported")
    found = []
    for side, table in (("source", "encoder/embeddings"), ("target", "decoder/embeddings")):
        names = read_names(model.folder, side)
        if unk not in names:
            names.append(unk)
        name = f"{table}_0/weight" if model.has(f"{table}_0/weight") else f"{table}/weight"
        rows = model.weight(name).shape[0]
        if rows < len(names) - 1:
            raise ModelError(
                f"{model.folder}: the {side} vocabulary has {len(names):,} tokens, and its table {rows:,} rows"
            )
        first = bos if side == "source" else start
        found.append(arrange(model, side, names[:rows], rows, "" if starts_from_zeros else first, eos, unk))
    tags = (
        "<from:{from}>? <to:{to}>? " if any(s.startswith(("<from:", "<to:")) for s in found[0][1].extra_symbols) else ""
    )
    template = f"{'<s> ' if adds_bos else ''}{tags}{{text}}{' </s>' if adds_eos else ''}"
    if found[0][0] == found[1][0] and found[0][1] != found[1][1] and not adds_bos:
        found[0] = found[1]  # one vocabulary, whose <s> no source has
    return found[0], found[1], template


def arrange(
    model: CTranslate2Model, side: str, names: list[str], rows: int, start: str, eos: str, unk: str
) -> tuple[TokenList, VocabularyMap]:
    """A side's vocabulary in our order; what it lacks of our special symbols is a row after the last one."""
    ids = {name: i for i, name in reversed(list(enumerate(names)))}
    if eos not in ids:
        raise ModelError(f"{model.folder}: the {side} vocabulary has no '{eos}'")
    if start and start not in ids and side == "target":
        raise ModelError(f"{model.folder}: the target vocabulary has no '{start}', from which its decoder starts")
    pad = next((ids[name] for name in PADS if name in ids), rows)
    symbols = {i: name for name, i in ids.items() if LANGUAGE_TAG.fullmatch(name)}
    special = {*PADS, start, eos, unk, *symbols.values(), "<s>"}
    sentencepiece = find_sentencepiece(model.folder, side)
    tokens = plain_list(names, [name for name in names if name not in special]) if sentencepiece is None else TokenList(
        names, "sentencepiece", sentencepiece.model
    )  # fmt: skip
    tokens = tokens.resized(rows)
    vocabulary = map_vocabulary(
        tokens.names, pad=pad, start=ids.get(start, rows), eos=ids[eos], unk=ids.get(unk, rows), symbols=symbols
    )
    return tokens, vocabulary


def find_sentencepiece(folder: Path, side: str) -> TokenList | None:
    """The sentencepiece model of a side, if the folder has one."""
    for name in SENTENCEPIECE_FILES:
        if (path := folder / name.format(side)).exists():
            return read_sentencepiece(path)
    return None


def read_names(folder: Path, side: str) -> list[str]:
    """The names of a side's tokens by id."""
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        for suffix in (".json", ".txt"):
            path = folder / f"{name}{suffix}"
            if path.exists():
                return parse_names(path)
    raise ModelError(f"{folder}: has no {side}_vocabulary.json; copy the whole model folder")


def parse_names(path: Path) -> list[str]:
    """A vocabulary file: a list in JSON, or a token in each line."""
    text = read_text(path)
    if path.suffix == ".txt":
        lines = text.replace("\r\n", "\n").split("\n")
        return lines[:-1] if lines[-1] == "" else lines
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: is not valid JSON; copy the file again") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{path}: is no list of tokens; copy the file again")
    return [replace_surrogates(name) for name in names]
