"""The tokenizers of Hugging Face's folders: their files, vocabularies and the symbols around a text.

    files                                        of                          our tokenizer
    vocab.json, source.spm, target.spm           Marian                      sentencepiece
    vocab.json, sentencepiece.bpe.model          M2M-100                     sentencepiece
    tokenizer.json                               BART, T5, NLLB, mBART, …    huggingface
    vocab.json, merges.txt                       BART                        huggingface
    spiece.model or sentencepiece.bpe.model      T5, Pegasus; NLLB, mBART    sentencepiece
    none                                         ByT5                        bytes

Their special symbols are extra symbols here, language codes under the names <lang:xx> or (of Marian, >>xx<<) <to:xx>.
Rows of the embeddings that no symbol has are <unused:ID>, and left out of texts, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import ModelError
from dragoman.core.registry import Part
from dragoman.core.types import SPECIALS
from dragoman.interop.importers import checkpoint_files, hf_languages
from dragoman.interop.importers.contents import VocabularyMap, load_tokenizer, map_vocabulary, rename_specials
from dragoman.text.codec import Codec
from dragoman.text.templates import SequenceTemplate
from dragoman.text.tokenizers import Tokenizer, tokenizers
from dragoman.text.tokenizers.bytes import Bytes
from dragoman.text.vocabulary import BYTE_TOKENS, Vocabulary

if TYPE_CHECKING:
    from dragoman.interop.importers.huggingface import HuggingFaceModel

LANGUAGE = re.compile(r"__([A-Za-z_]{2,8})__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")  # of M2M-100; of mBART and NLLB
MARIAN_LANGUAGE = re.compile(r">>([^<>\s]+)<<")
MODEL_FILES = ("spiece.model", "sentencepiece.bpe.model", "sentencepiece.model")
HIDDEN = "\ufdd0"  # no character: a piece that begins with it is in no text
PEGASUS_OFFSET = 103  # ids of pretraining that PegasusTokenizer has before the pieces


@dataclass
class ImportedText:
    """Both vocabularies in our order, the codec, and what a config says of them."""

    source: VocabularyMap
    target: VocabularyMap
    codec: Codec
    options: dict[str, Any]  # the section tokenizer of a config
    limits: dict[str, Any] = field(default_factory=dict)  # max_source and max_target of the section data
    limitations: list[str] = field(default_factory=list)


@dataclass
class TokenizerContents:
    """A tokenizer of theirs: its kind here, its file, the name of each id, and which ids are no text."""

    kind: str
    model: bytes
    names: dict[int, str]
    symbols: set[int]
    source_template: str = ""  # where the files say it, in their names
    limitations: list[str] = field(default_factory=list)


@dataclass
class Side:
    """The vocabulary of one side, and the names here of their symbols."""

    map: VocabularyMap
    tokenizer: Tokenizer
    names: dict[str, str]  # theirs to ours, of the special and extra symbols
    by_id: dict[int, str]


def read_text_side(model: HuggingFaceModel) -> ImportedText:
    """Read the tokenizer of a folder."""
    settings = read_settings(model.folder)
    rows = model.vocabulary_sizes()
    contents = [read_contents(model, settings, rows[0])]
    if model.model_type == "marian":
        contents.append(read_marian(model, settings, "target"))
    sides = [
        build_side(model, settings, each, size) for each, size in zip(contents, rows[: len(contents)], strict=True)
    ]
    source, target = sides[0], sides[-1]
    before = SequenceTemplate.parse(source_template(model, settings, contents[0], source))
    after = SequenceTemplate.parse(target_template(model, target))
    check_symbols(model, before, source)
    check_symbols(model, after, target)
    codec = Codec(source.tokenizer, target.tokenizer, "none", source_template=before, target_template=after)
    options: dict[str, Any] = {"source": source.tokenizer.kind, "joint": source is target}
    if source is not target:
        options["target"] = target.tokenizer.kind
    options |= {"source_template": template_text(before), "target_template": template_text(after)}
    limitations = dict.fromkeys(each for one in contents for each in one.limitations)
    return ImportedText(source.map, target.map, codec, options, model.length_limits(), list(limitations))


# -- files -------------------------------------------------------------------------------------------------------------


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json and added_tokens.json, which older folders have."""
    read = checkpoint_files.read_optional_json
    settings = read(folder / "special_tokens_map.json") | read(folder / "tokenizer_config.json")
    added = {str(id): {"content": name, "special": False} for name, id in read(folder / "added_tokens.json").items()}
    return {"added_tokens_decoder": added} | settings


def token_text(value: Any) -> str:
    """The text of a special token, which is a string or {"content": …}; "" if it is neither."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def read_contents(model: HuggingFaceModel, settings: Mapping[str, Any], rows: int) -> TokenizerContents:
    """Read the tokenizer of a folder, or of its sources."""
    folder = model.folder
    name = str(settings.get("tokenizer_class", ""))
    if model.model_type == "marian":
        return read_marian(model, settings, "source")
    if name.startswith("ByT5"):
        return read_bytes_tokenizer(rows)
    if (folder / "vocab.json").exists() and (folder / MODEL_FILES[1]).exists() and model.model_type == "m2m_100":
        return read_m2m(folder, settings, rows)
    if (folder / "tokenizer.json").exists():
        data = checkpoint_files.read_json(folder / "tokenizer.json")
        return read_tokenizer_json(folder / "tokenizer.json", data, settings)
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return read_byte_level_bpe(folder, settings)
    for file in MODEL_FILES:
        if (folder / file).exists():
            return read_sentencepiece(model, folder / file, settings, rows)
    raise ModelError(
        f"{folder}: has no tokenizer: neither tokenizer.json, {', '.join(MODEL_FILES)}, nor vocab.json and merges.txt; "
        "copy the whole model folder"
    )


def read_vocabulary(path: Path) -> dict[int, str]:
    """A vocab.json, as names by their ids."""
    return invert(path, checkpoint_files.read_json(path, needed_for="the ids of the tokens"))


def invert(path: Path, vocabulary: Any) -> dict[int, str]:
    """The names of a mapping from names to ids, by their ids; ModelError if it is none."""
    if isinstance(vocabulary, dict) and all(type(id) is int and id >= 0 for id in vocabulary.values()):
        names = {id: name for name, id in vocabulary.items()}
        if len(names) == len(vocabulary) > 0:
            return names
    raise ModelError(f"{path}: its vocabulary is no mapping from tokens to different ids; copy the file again")


def read_marian(model: HuggingFaceModel, settings: Mapping[str, Any], side: str) -> TokenizerContents:
    folder = model.folder
    separate = settings.get("separate_vocabs") is True
    names = read_vocabulary(folder / ("target_vocab.json" if separate and side == "target" else "vocab.json"))
    spm = checkpoint_files.read_bytes(
        folder / f"{side}.spm", checkpoint_files.MAX_MODEL_BYTES, f"the pieces of {side}s"
    )
    symbols = {id for id, name in names.items() if MARIAN_LANGUAGE.fullmatch(name)} | symbol_ids(names, settings)
    return TokenizerContents("sentencepiece", spm, names, symbols)


def read_m2m(folder: Path, settings: Mapping[str, Any], rows: int) -> TokenizerContents:
    """vocab.json, then the languages, which are in no file."""
    names = read_vocabulary(folder / "vocab.json")
    start = len(names)
    codes = hf_languages.WMT_21 if settings.get("language_codes") == "wmt21" else hf_languages.M2M_100
    languages = {start + i: f"__{code}__" for i, code in enumerate(codes) if start + i < rows}
    spm = checkpoint_files.read_bytes(folder / MODEL_FILES[1], checkpoint_files.MAX_MODEL_BYTES)
    return TokenizerContents("sentencepiece", spm, names | languages, {*languages, *symbol_ids(names, settings)})


def read_bytes_tokenizer(rows: int) -> TokenizerContents:
    """<pad> </s> <unk>, 256 bytes, and the rest is for pretraining."""
    names = dict(enumerate(["<pad>", "</s>", "<unk>", *BYTE_TOKENS, *(f"<extra_id_{i}>" for i in range(rows - 259))]))
    return TokenizerContents("bytes", b"", names, {id for id in names if not 3 <= id < 259})


def read_byte_level_bpe(folder: Path, settings: Mapping[str, Any]) -> TokenizerContents:
    """vocab.json and merges.txt of GPT-2's tokenizer, as the tokenizer.json that RobertaTokenizer makes of them."""
    vocabulary = checkpoint_files.read_json(folder / "vocab.json")
    text = checkpoint_files.read_bytes(folder / "merges.txt").decode("utf-8", errors="replace")
    merges = [line.split(" ") for line in text.split("\n") if line.strip() and not line.startswith("#version")]
    byte_level = {"type": "ByteLevel", "add_prefix_space": settings.get("add_prefix_space") is True}
    byte_level |= {"trim_offsets": True, "use_regex": True}
    data: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }
    return read_tokenizer_json(folder / "vocab.json", data, settings)


def read_tokenizer_json(path: Path, data: dict[str, Any], settings: Mapping[str, Any]) -> TokenizerContents:
    """A tokenizer.json, in which the special symbols are no text any more."""
    model = data.get("model")
    if not isinstance(model, dict):
        raise ModelError(f"{path}: has no model; copy the file again")
    vocabulary = model.get("vocab")
    is_unigram = isinstance(vocabulary, list)
    if isinstance(vocabulary, list):
        if not all(isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in vocabulary):
            raise ModelError(f"{path}: its vocabulary is no list of tokens and scores; copy the file again")
        names = {id: item[0] for id, item in enumerate(vocabulary)}
    else:
        names = invert(path, vocabulary)
    added = data.get("added_tokens") or []
    if not isinstance(added, list) or not all(
        isinstance(token, dict) and type(token.get("id")) is int and token_text(token) for token in added
    ):
        raise ModelError(f"{path}: its added_tokens are no list of tokens; copy the file again")
    names |= {token["id"]: token_text(token) for token in added}
    special = {token["id"] for token in added if token.get("special", True)}
    symbols = special | symbol_ids(names, settings)
    kept = [token for token in added if token["id"] not in symbols]
    changed = data | {"added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}
    if is_unigram:  # which would find a symbol in a text, as the most probable piece
        pieces = [[HIDDEN + item[0] if id in symbols else item[0], item[1]] for id, item in enumerate(vocabulary)]  # type: ignore[arg-type]
        changed["model"] = model | {"vocab": pieces}
    limitations = []
    if settings.get("clean_up_tokenization_spaces") is True and model.get("type") != "BPE":
        limitations.append("tokenizer setting clean_up_tokenization_spaces: spaces before punctuation stay")
    text = json.dumps(changed, ensure_ascii=False).encode("utf-8", errors="replace")
    return TokenizerContents("huggingface", text, names, symbols, processor_template(data), limitations)


def processor_template(data: Mapping[str, Any]) -> str:
    """The symbols that the post-processor of a tokenizer.json sets around a text; "" if there is none that is known."""
    processor = data.get("post_processor")
    if not isinstance(processor, dict):
        return ""
    if processor.get("type") == "Sequence":
        parts = [processor_template({"post_processor": part}) for part in processor.get("processors") or []]
        return next((part for part in parts if part), "")
    if processor.get("type") in ("RobertaProcessing", "BertProcessing"):
        ends = [processor.get(key) for key in ("cls", "sep")]
        if all(isinstance(end, list) and end and isinstance(end[0], str) for end in ends):
            return f"{ends[0][0]} {{text}} {ends[1][0]}"  # type: ignore[index]
    if processor.get("type") == "TemplateProcessing" and isinstance(processor.get("single"), list):
        items = [item for item in processor["single"] if isinstance(item, dict)]
        parts = [str(item["SpecialToken"].get("id")) if "SpecialToken" in item else "{text}" for item in items]
        return " ".join(parts)
    return ""


def read_sentencepiece(
    model: HuggingFaceModel, path: Path, settings: Mapping[str, Any], rows: int
) -> TokenizerContents:
    """A sentencepiece model alone: the ids of its pieces are shifted by each family in its own way."""
    data = checkpoint_files.read_bytes(path, checkpoint_files.MAX_MODEL_BYTES)
    pieces = sentencepiece_pieces(path, data)
    if model.model_type in ("mbart", "m2m_100"):  # fairseq's: <s> <pad> </s> <unk> instead of <unk> <s> </s>
        listed = [code for code in symbol_texts(settings) if LANGUAGE.fullmatch(code)]
        usual = default_languages(model.model_type, settings, rows - len(pieces) - 1)
        codes = listed if listed and set(usual) - set(listed) else usual  # usual: the order of the list may be another
        names = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:], *codes, "<mask>"]
        symbols = {0, 1, 2, 3, *range(len(pieces) + 1, len(names))}
    elif model.model_type == "pegasus":  # <pad> </s>, symbols of pretraining, and from <unk> on the pieces
        before = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, PEGASUS_OFFSET))]
        offset = settings.get("offset", PEGASUS_OFFSET)
        before = before[: offset + 2] if type(offset) is int and offset >= 0 else before
        names = [*before, *pieces[2:]]
        symbols = set(range(len(before) + 1))
    else:  # T5: <extra_id_0> is the last
        extra = settings.get("extra_ids", 100)
        count = min(extra if type(extra) is int else 100, rows - len(pieces))
        names = [*pieces, *(f"<extra_id_{i}>" for i in reversed(range(count)))]
        symbols = {*range(len(pieces), len(names))}
    found = dict(enumerate(names))
    return TokenizerContents("sentencepiece", data, found, symbols | symbol_ids(found, settings))


def sentencepiece_pieces(path: Path, data: bytes) -> list[str]:
    """The pieces of a sentencepiece model in the order of its ids; ModelError if it is none."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
    except RuntimeError:
        raise ModelError(f"{path}: is no sentencepiece model; copy the file again") from None
    return [processor.id_to_piece(id) for id in range(processor.vocab_size())]


def default_languages(model_type: str, settings: Mapping[str, Any], room: int) -> list[str]:
    """The languages of a family, which stand in no file of older folders; `room`: ids for them and <mask>."""
    if model_type == "m2m_100":
        return hf_languages.NLLB
    is_50 = "50" in str(settings.get("tokenizer_class", "")) or room > len(hf_languages.MBART_50)
    return hf_languages.MBART_50 if is_50 else hf_languages.MBART


def symbol_texts(settings: Mapping[str, Any]) -> list[str]:
    """The special tokens that the settings name, in their order."""
    texts: list[str] = []
    for key, value in settings.items():
        if key in ("additional_special_tokens", "extra_special_tokens"):
            values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
            texts += [token_text(each) for each in values]
        elif key.endswith("_token"):
            texts.append(token_text(value))
    return list(dict.fromkeys(text for text in texts if text))


def symbol_ids(names: dict[int, str], settings: Mapping[str, Any]) -> set[int]:
    """The ids of the special tokens that the settings name; those that they add are added to `names`."""
    added = settings.get("added_tokens_decoder")
    found: set[int] = set()
    for key, token in (added if isinstance(added, dict) else {}).items():
        if key.isdecimal() and (text := token_text(token)):
            names.setdefault(int(key), text)
            if not isinstance(token, dict) or token.get("special", True):
                found.add(int(key))
    texts = set(symbol_texts(settings))
    return found | {id for id, name in names.items() if name in texts}


# -- vocabularies ------------------------------------------------------------------------------------------------------


def build_side(model: HuggingFaceModel, settings: Mapping[str, Any], contents: TokenizerContents, rows: int) -> Side:
    """Arrange the vocabulary of a side, and build its tokenizer."""
    if max(contents.names) >= rows:
        beyond = contents.names[max(contents.names)]
        if max(contents.names) not in contents.symbols:
            raise ModelError(
                f"{model.folder}: its sizes contradict each other: the token {beyond[:30]!r} has the id "
                f"{max(contents.names)}, and the embeddings have {rows} rows"
            )
    names = [contents.names.get(id, f"<unused:{id}>") for id in range(rows)]
    symbols = {id for id in contents.symbols if id < rows} | {id for id in range(rows) if id not in contents.names}
    unk = find_unknown(model, settings, contents, rows)
    pad, eos, start = model.symbol_id("pad", rows), model.symbol_id("eos", rows), model.start_id(rows, contents.names)
    forced = model.forced_start()
    ours: dict[int, str] = {}
    taken: set[str] = set()
    for id in sorted(symbols):
        if id in (pad, eos, unk) or (id == start and id != forced and not symbol_language(names[id])):
            continue  # <s>, unless the symbol has another role
        name = our_name(names[id])
        while name in taken:
            name = f"{name[:-1]}:{id}>" if name.endswith(">") else f"{name}:{id}"
        ours[id] = name
        taken.add(name)
    mapped = map_vocabulary(names, pad=pad, start=start, eos=eos, unk=unk, symbols=ours)
    by_id = {id: SPECIALS[i] for i, id in reversed(list(enumerate((pad, start, eos, unk))))} | ours
    by_id |= {pad: SPECIALS[0], eos: SPECIALS[2], unk: SPECIALS[3]}
    tokenizer = tokenizers.build(Part(contents.kind))
    if isinstance(tokenizer, Bytes):
        tokenizer.vocabulary = Vocabulary((), mapped.extra_symbols, byte_fallback=True)
    else:
        try:
            load_tokenizer(tokenizer, contents.model, mapped)
        except ValueError as error:
            raise ModelError(f"{model.folder}: its tokenizer cannot be read: {error}") from None
    return Side(mapped, tokenizer, {names[id]: name for id, name in by_id.items()}, by_id)


def find_unknown(model: HuggingFaceModel, settings: Mapping[str, Any], contents: TokenizerContents, rows: int) -> int:
    """The id of the symbol for what the vocabulary lacks."""
    named = token_text(settings.get("unk_token")) or SPECIALS[3]
    for text in (named, SPECIALS[3], "[UNK]"):
        for id, name in contents.names.items():
            if name == text and id < rows:
                return id
    raise ModelError(f"{model.folder}: its tokenizer has no symbol for unknown text, such as <unk>")


def symbol_language(symbol: str) -> str:
    """The language of a symbol; "" for other symbols."""
    match = LANGUAGE.fullmatch(symbol) or MARIAN_LANGUAGE.fullmatch(symbol)
    return "" if match is None else next(group for group in match.groups() if group)


def our_name(symbol: str) -> str:
    """Our name of a symbol: language tags have a form of their own, and the names of special symbols are taken."""
    if match := MARIAN_LANGUAGE.fullmatch(symbol):
        return f"<to:{match[1]}>"
    if language := symbol_language(symbol):
        return f"<lang:{language}>"
    return rename_specials(symbol)


# -- the symbols around a text -----------------------------------------------------------------------------------------


def source_template(
    model: HuggingFaceModel, settings: Mapping[str, Any], contents: TokenizerContents, side: Side
) -> str:
    """The symbols around a source."""
    if model.model_type in ("mbart", "m2m_100"):
        tag = f"<lang:{model.source_lang or '{from}'}>"
        is_25 = model.model_type == "mbart" and not is_mbart_50(model, settings, contents)
        is_suffix = is_25 or settings.get("legacy_behaviour") is True
        return f"{{text}} </s> {tag}" if is_suffix else f"{tag} {{text}} </s>"
    if model.model_type == "marian":
        if not any(name.startswith("<to:") for name in side.names.values()):
            return "{text} </s>"
        return f"<to:{model.target_lang}> {{text}} </s>" if model.target_lang else "<to:{to}>? {text} </s>"
    if model.model_type == "bart":
        theirs = contents.source_template or "<s> {text} </s>"
        items = [item if item == "{text}" else side.names.get(item, item) for item in theirs.split()]
        return " ".join(items) if items.count("{text}") == 1 else f"{side.names.get('<s>', '<s>')} {{text}} </s>"
    return "{text} </s>"


def is_mbart_50(model: HuggingFaceModel, settings: Mapping[str, Any], contents: TokenizerContents) -> bool:
    """Whether the language stands before a source, as in mBART-50, and not after its </s>."""
    name = str(settings.get("tokenizer_class", "") or model.config.get("tokenizer_class", ""))
    if name.startswith("MBart"):
        return name.startswith("MBart50")
    return len({name for name in contents.names.values() if LANGUAGE.fullmatch(name)}) > len(hf_languages.MBART)


def target_template(model: HuggingFaceModel, side: Side) -> str:
    """The symbols around a target; those before its text are forced in every search."""
    forced = model.forced_start()
    if forced is not None:
        name = side.by_id.get(forced, "")
        if not name or name in (SPECIALS[0], SPECIALS[1], SPECIALS[2]):
            raise ModelError(f"{model.folder}: forced_bos_token_id is {forced}, which is no symbol of its tokenizer")
        return f"{name} {{text}} </s>"
    if model.model_type == "m2m_100" or (model.model_type == "mbart" and not model.starts_with_language(side.by_id)):
        return f"<lang:{model.target_lang or '{to}'}> {{text}} </s>"
    return "{text} </s>"


def check_symbols(model: HuggingFaceModel, template: SequenceTemplate, side: Side) -> None:
    """ModelError if a template names a symbol that the vocabulary lacks."""
    for symbol in (*template.prefix, *template.suffix):
        if "{" not in symbol and side.tokenizer.vocabulary.symbol_id(symbol) is None:
            raise ModelError(f"{model.folder}: its vocabulary lacks the symbol {symbol}{known_languages(side)}")


def known_languages(side: Side) -> str:
    """A hint with the languages of a vocabulary, if it has some."""
    tags: Sequence[str] = [name for name in side.by_id.values() if name.startswith(("<lang:", "<to:"))]
    languages = sorted(tag.split(":", 1)[1].rstrip(">") for tag in tags)
    return f"; its languages are {', '.join(languages[:20])}{', …' if len(languages) > 20 else ''}" if languages else ""


def template_text(template: SequenceTemplate) -> str:
    """A template as a config writes it."""
    return " ".join([*template.prefix, "{text}", *template.suffix])
