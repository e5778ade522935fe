"""Tokenizers of Hugging Face's folders: ids, texts and the symbols around a text are those of transformers."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tests.interop.importers import hf_models
from tests.interop.importers.conftest import ImportedCase

from dragoman.core.errors import ModelError
from dragoman.core.types import UNK, Example
from dragoman.interop.importers import ImportOptions
from dragoman.interop.importers.hf_tokenizers import ImportedText, read_text_side
from dragoman.interop.importers.huggingface import open_model

Find = Callable[[str], ImportedCase]
# One folder of each way to read a tokenizer; the others have the same files.
KINDS = ["marian", "marian with languages", "marian with two vocabularies", "bart", "pegasus", "mbart-50", "mbart-cc25",
         "m2m-100", "nllb", "t5", "byt5"]  # fmt: skip
EVERY = pytest.mark.parametrize("name", KINDS)


def without_symbols(case: ImportedCase, lines: list[str]) -> list[str]:
    """The lines in which no special token is spelled, which theirs would read as that token."""
    symbols = [symbol for symbol in case.theirs.tokenizer.all_special_tokens if symbol]
    return [line for line in lines if not any(symbol in line for symbol in symbols)]


@EVERY
def test_a_thousand_odd_strings_have_the_ids_of_transformers(name: str, imported: Find) -> None:
    case = imported(name)
    lines = without_symbols(case, hf_models.odd_texts(1000))
    assert len(lines) > 950
    rows, codec = case.source.rows, case.ours.codec
    ours = [[rows[id] for id in codec.encode_source(example)] for example in case.examples(lines)]
    assert ours == case.theirs.encode(lines)


@pytest.mark.parametrize("name", ["marian with two vocabularies", "mbart-50", "mbart-cc25", "m2m-100", "bart", "t5"])
def test_targets_have_the_ids_of_transformers_after_the_symbols_that_are_given(name: str, imported: Find) -> None:
    case = imported(name)
    tokenizer = case.theirs.tokenizer
    lines = without_symbols(case, hf_models.odd_texts(200))
    if name == "m2m-100":
        tokenizer.tgt_lang = case.theirs.target_lang
    theirs = [tokenizer(text_target=line)["input_ids"] for line in lines]
    if name == "mbart-cc25":  # X </s> xx, which its training shifts to xx X </s>: xx is where decoders start
        theirs = [ids[:-1] for ids in theirs]
    codec = case.ours.codec
    ours = [
        codec.encode_target(Example("", line, target_lang=case.theirs.target_lang or None, source_lang="en_XX"))
        for line in lines
    ]
    assert [[case.target.rows[id] for id in ids] for ids in ours] == theirs


@EVERY
def test_generated_ids_read_as_transformers_writes_them(name: str, imported: Find) -> None:
    case = imported(name)
    codec, tokenizer, rows = case.ours.codec, case.theirs.tokenizer, case.target.rows
    rng = random.Random(3)
    special = {i for i, id in enumerate(rows) if id in set(tokenizer.all_special_ids)} | {UNK}
    usual = [id for id in range(len(rows)) if id not in special or id > 3]
    if name.startswith(("marian", "m2m")):  # whose tags are no special tokens in transformers 5, and would be written
        written = ("<to:", "<lang:", "<pad:", "<unused:")
        usual = [id for id in usual if not codec.target.vocabulary.name(id).startswith(written)]
    samples = [[rng.choice(usual) for _ in range(rng.randrange(0, 12))] for _ in range(200)]
    samples += [codec.encode_phrase(line) for line in hf_models.texts(50, 9)]
    samples = [[id for id in ids if id != UNK] for ids in samples]  # ⁇ here, and nothing there
    ours = [codec.decode(ids) for ids in samples]
    theirs = tokenizer.batch_decode([[rows[id] for id in ids] for ids in samples], skip_special_tokens=True)
    if name == "byt5":  # bytes that are not UTF-8 are left out there
        ours = [text.replace("\ufffd", "") for text in ours]
    if codec.target.kind == "sentencepiece":  # spaces at the end are cut there; a model has no reason to write them
        ours = [text.rstrip(" ") for text in ours]
    assert ours == theirs


def read_text(folder: Path, **options: Any) -> ImportedText:
    return read_text_side(open_model(folder, ImportOptions(**options)))


def copy_without(case: ImportedCase, folder: Path, *files: str) -> Path:
    """A copy of a folder of theirs without some files."""
    shutil.copytree(case.theirs.folder, folder)
    for file in files:
        (folder / file).unlink()
    return folder


SENTENCEPIECE = {
    "t5": ("spiece.model", hf_models.T5_IDS, "unigram"),
    "pegasus": ("spiece.model", hf_models.T5_IDS, "unigram"),
    "mbart-50": ("sentencepiece.bpe.model", {}, "unigram"),
    "mbart-cc25": ("sentencepiece.bpe.model", {}, "unigram"),
    "nllb": ("sentencepiece.bpe.model", {}, "bpe"),
}


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_a_sentencepiece_model_alone_gives_the_ids_of_its_family(name: str, imported: Find, tmp_path: Path) -> None:
    case = imported(name)
    file, ids, kind = SENTENCEPIECE[name]
    model = hf_models.sentencepiece_model(kind, **ids)
    folder = copy_without(case, tmp_path / "theirs", "tokenizer.json")
    (folder / file).write_bytes(model)
    text = read_text(folder)
    assert text.options["source"] == "sentencepiece"
    assert (text.source.rows, text.source.extra_symbols) == (case.source.rows, case.source.extra_symbols)
    assert (text.codec.source_template, text.codec.target_template) == (
        case.ours.codec.source_template,
        case.ours.codec.target_template,
    )
    # Usual texts have the same ids. (transformers 5 emulates sentencepiece: it keeps spaces at the ends, leaves rare
    # combining marks out, and does not normalize mBART's texts; the file says otherwise, and is what is followed here.)
    lines = [line for line in hf_models.texts(200, 11) if name != "mbart-cc25" or not set(line) & set("\u0301ﬁ½“”")]
    expected = case.theirs.tokenizer(lines, add_special_tokens=False)["input_ids"]
    assert [[text.source.rows[id] for id in text.codec.source.encode(line)] for line in lines] == expected
    # Odd ones have those of the file itself.
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    shift = {"t5": 0, "pegasus": 103}.get(name, 1)
    unk = 3 if shift == 1 else processor.unk_id() + shift
    for line in without_symbols(case, hf_models.odd_texts(1000)):
        pieces = processor.encode(line)
        theirs = [unk if id == processor.unk_id() else id + shift for id in pieces]
        assert [text.source.rows[id] for id in text.codec.source.encode(line)] == theirs, line


def test_vocabulary_and_merges_of_a_byte_level_bpe_are_enough(imported: Find, tmp_path: Path) -> None:
    case = imported("bart")
    folder = copy_without(case, tmp_path / "theirs", "tokenizer.json")
    vocabulary, merges = hf_models.byte_level_bpe()
    hf_models.write_json(folder / "vocab.json", vocabulary)
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = read_text(folder)
    assert text.source == case.source
    odd = without_symbols(case, hf_models.odd_texts(1000))
    expected = case.theirs.tokenizer(odd)["input_ids"]
    ours = [text.codec.encode_source(Example(line)) for line in odd]
    assert [[text.source.rows[id] for id in ids] for ids in ours] == expected  # type: ignore[union-attr]
    assert [text.codec.decode(ids) for ids in ours] == odd  # type: ignore[arg-type]


def test_a_word_that_was_added_to_a_tokenizer_is_one_token(imported: Find, tmp_path: Path) -> None:
    case = imported("bart")
    folder = copy_without(case, tmp_path / "theirs")
    tokenizer = hf_models.bart_tokenizer()
    tokenizer.add_tokens(["dragoman", "東京塔"])
    tokenizer.save_pretrained(folder)
    rows = len(tokenizer)
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": rows}
    hf_models.write_json(folder / "config.json", config)
    case.theirs.model.__class__(case.theirs.model.config.__class__(**config)).save_pretrained(folder)
    text = read_text(folder)
    lines = ["a dragoman in 東京塔", "dragomandragoman", "東京 塔"]
    theirs = tokenizer(lines, add_special_tokens=False)["input_ids"]
    assert [[text.source.rows[id] for id in text.codec.source.encode(line)] for line in lines] == theirs
    assert [text.codec.source.decode(text.codec.source.encode(line)) for line in lines] == lines


def test_languages_that_a_folder_lists_in_another_order_have_the_usual_ids(imported: Find, tmp_path: Path) -> None:
    case = imported("mbart-cc25")
    folder = copy_without(case, tmp_path / "theirs", "tokenizer.json")
    (folder / "sentencepiece.bpe.model").write_bytes(hf_models.sentencepiece_model())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    languages = config.pop("extra_special_tokens")
    hf_models.write_json(folder / "tokenizer_config.json", config)
    hf_models.write_json(folder / "special_tokens_map.json", {"additional_special_tokens": languages[::-1]})
    assert read_text(folder).source == case.source
    (folder / "special_tokens_map.json").unlink()  # or lists none
    assert read_text(folder).source == case.source


@EVERY
def test_a_text_that_spells_a_special_symbol_is_a_text(name: str, imported: Find) -> None:
    codec = imported(name).ours.codec
    symbols = codec.source.vocabulary.symbol_count
    for text in ("</s>", "a <s> b", "<pad>", "<unk>", "<extra_id_0> ab", "<mask>", "en_XX ab", ">>deu<< ab"):
        for tokenizer in (codec.source, codec.target):
            assert all(id == UNK or id >= symbols for id in tokenizer.encode(text)), text
    if codec.source.kind == "huggingface":  # the vocabulary has letters for it
        assert codec.source.decode(codec.source.encode("ab</s>")).startswith("ab")
        assert "ad" in codec.source.decode(codec.source.encode("<pad>"))


def test_languages_are_those_of_the_vocabulary(imported: Find) -> None:
    assert imported("marian with languages").ours.codec.target_languages == ["deu", "fra"]
    nllb = imported("nllb").ours.codec
    assert sorted(nllb.source_languages) == sorted(nllb.target_languages) == sorted(hf_models.LANGUAGES)
    assert "ro_RO" in imported("mbart-50").ours.codec.target_languages
    assert {"de", "fr", "zu"} <= set(imported("m2m-100").ours.codec.target_languages)


def test_a_language_that_is_always_the_same_need_not_be_given(imported: Find) -> None:
    folder = imported("nllb").theirs.folder
    text = read_text(folder, source_lang="eng_Latn", target_lang="fra_Latn")
    ids = text.codec.encode_source(Example("ab"))
    assert text.codec.source.pieces(ids)[0] == "<lang:eng_Latn>"  # type: ignore[arg-type]
    assert text.codec.target.pieces(text.codec.target_prefix(Example("ab"))) == ["<lang:fra_Latn>"]
    with pytest.raises(ModelError, match="its languages are deu_Latn, eng_Latn, fra_Latn"):
        read_text(folder, target_lang="klingon")


def test_a_decoder_without_a_start_symbol_starts_from_the_language_of_the_targets(
    imported: Find, tmp_path: Path
) -> None:
    case = imported("mbart-cc25")
    folder = copy_without(case, tmp_path / "theirs")
    for file in ("config.json", "generation_config.json"):
        value = json.loads((folder / file).read_text())
        value.pop("decoder_start_token_id", None)
        hf_models.write_json(folder / file, value)
    with pytest.raises(ModelError, match="must be given with --to"):
        read_text(folder)
    assert read_text(folder, target_lang="ro_RO").target == case.target


def test_rows_without_a_token_are_symbols_that_no_text_shows(imported: Find) -> None:
    codec = imported("t5").ours.codec
    unused = [id for id in range(len(codec.target)) if codec.target.vocabulary.name(id).startswith("<unused:")]
    assert len(unused) == 12
    assert codec.decode([*codec.encode_phrase("ab ba"), *unused]) == "ab ba"


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("tokenizer.json", "{}", "has no model"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": "b"}}}', "is no mapping from tokens"),
        ("tokenizer.json", '{"model": {"type": "Unigram", "vocab": [1, 2]}}', "is no list of tokens and scores"),
        (
            "tokenizer.json",
            '{"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": 3}',
            "added_tokens are no list",
        ),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 0}}}', "no symbol for unknown text"),
        ("tokenizer.json", '{"model": {"type": "Odd", "vocab": {"<unk>": 3, "a": 4}}}', "cannot be read"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"<unk>": 3, "a": 99999}}}', "contradict each other"),
        ("tokenizer.json", "[", "is not valid JSON"),
        ("tokenizer_config.json", "[1]", "holds no JSON object"),
        ("spiece.model", "odd", "is no sentencepiece model"),
    ],
)
def test_a_damaged_tokenizer_is_refused_in_one_sentence(
    file: str, content: str, problem: str, imported: Find, tmp_path: Path
) -> None:
    folder = copy_without(imported("t5"), tmp_path / "theirs")
    if file == "spiece.model":
        (folder / "tokenizer.json").unlink()
    (folder / file).write_text(content)
    with pytest.raises(ModelError, match=problem):
        read_text(folder)


def test_a_folder_without_a_tokenizer_is_refused(imported: Find, tmp_path: Path) -> None:
    folder = copy_without(imported("t5"), tmp_path / "theirs", "tokenizer.json")
    with pytest.raises(ModelError, match="has no tokenizer"):
        read_text(folder)
