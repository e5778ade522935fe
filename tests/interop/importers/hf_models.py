"""Folders of Hugging Face transformers as its own classes write them: tiny models with random, peaked weights.

Their tokenizers are trained on a few hundred lines; the outputs of the models are clear, and end after some ten tokens.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = [
    "ab",
    "ba",
    "abc",
    "cab",
    "bac",
    "dada",
    "bcd",
    "add",
    "bad",
    "cad",
    "dab",
    "naïve",
    "café",
    "Straße",
    "東京",
    "привет",
    "don't",
    "x2",
    "(cad)",
    "ab,",
    "dab.",
    "Ab",
    "BA",
    "12",
    "3.5",
    "e\u0301t",
    "ﬁn",
    "½",
    "日本",
    "über",
    "Ölig",
    "--",
    "“quoted”",
    "ähm",
    "мир",
    "और",
    "ชา",
]
LANGUAGES = ("eng_Latn", "fra_Latn", "deu_Latn")


def texts(count: int, seed: int = 0, longest: int = 9) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, longest))) for _ in range(count)]


def odd_texts(count: int = 1000) -> list[str]:
    """Strings that tokenizers disagree about: spaces, tabs, emoji, combining marks, controls, nothing, very long."""
    rng = random.Random(7)
    odd = [
        "  ",
        "\t",
        "\n",
        " ",
        "\u00a0",
        "\u3000",
        "e\u0301",
        "e\u0301\u0323",
        "👩‍👩‍👧",
        "🇩🇪",
        "ﬁ",
        "Å",
        "½",
        "①",
        "㍿",
        "Ａ",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\u202e",
        "\x00",
        "\x7f",
        "\x1b",
        "\ufffd",
        "\u2028",
        "\r\n",
        "▁",
        "ー",
        "क्षि",
        "ำ",
        "ﷺ",
        "𝔘",
        "𐍈",
        "ß",
        "İ",
        "ı",
        "-",
        "--",
        "...",
        "“",
        "<",
        ">",
        "'s",
        "'ll",
        "0",
        "007",
        "１２",
        "a\u0300\u0301",
    ]
    fixed = [
        "",
        " ",
        "   ",
        "\t",
        "\n\n",
        " ab",
        "ab ",
        "  ab   ba  ",
        "▁",
        "▁▁ab",
        "ab▁ba",
        "⁇",
        "x" * 3000,
        "ab " * 2000,
    ]
    while len(fixed) < count:
        parts = [rng.choice(odd if rng.random() < 0.5 else WORDS) for _ in range(rng.randrange(1, 12))]
        if rng.random() < 0.3:
            parts.append(
                chr(
                    rng.choice(
                        [rng.randrange(32, 0xD800), rng.randrange(0xE000, 0x11000), rng.randrange(0x1F300, 0x1FA00)]
                    )
                )
            )
        fixed.append(rng.choice(["", " ", " ", "  "]).join(parts))
    return fixed


# -- tokenizers --------------------------------------------------------------------------------------------------------


@cache
def sentencepiece_model(kind: str = "unigram", **ids: int) -> bytes:
    """A sentencepiece model of some hundred pieces."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts(400)),
        model_writer=out,
        model_type=kind,
        vocab_size=160,
        hard_vocab_limit=False,
        character_coverage=0.995,
        minloglevel=2,
        num_threads=1,
        **ids,
    )
    return out.getvalue()


T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


def pieces(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return [processor.id_to_piece(id) for id in range(processor.vocab_size())]


@cache
def byte_level_bpe() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and merges of a byte-level BPE, with BART's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(400), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def marian_tokenizer(folder: Path, tags: Iterable[str] = (), separate: bool = False) -> Any:
    """MarianTokenizer over two sentencepiece models, with one vocabulary or two."""
    folder.mkdir(parents=True, exist_ok=True)
    spm = {"source": sentencepiece_model("unigram"), "target": sentencepiece_model("bpe")}
    names = {
        side: [piece for piece in pieces(model) if piece not in ("<unk>", "<s>", "</s>")] for side, model in spm.items()
    }
    for side, model in spm.items():
        (folder / f"{side}.spm").write_bytes(model)

    def vocabulary(own: list[str]) -> dict[str, int]:
        listed = dict.fromkeys(["</s>", "<unk>", *tags, *own[::-1], "<pad>"])
        return {name: id for id, name in enumerate(listed)}

    extra: dict[str, Any] = {}
    if separate:
        write_json(folder / "vocab.json", vocabulary(names["source"][:120]))
        write_json(folder / "target_vocab.json", vocabulary(names["target"]))
        extra = {"separate_vocabs": True, "target_vocab_file": str(folder / "target_vocab.json")}
    else:
        write_json(folder / "vocab.json", vocabulary([*names["source"], *names["target"]]))
    return transformers.MarianTokenizer(
        str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"), **extra
    )


def bart_tokenizer() -> Any:
    vocab, merges = byte_level_bpe()
    return transformers.RobertaTokenizer(vocab=dict(vocab), merges=list(merges))


def m2m_tokenizer(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    spm = sentencepiece_model("bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(spm)
    names = ["<s>", "<pad>", "</s>", "<unk>", *(piece for piece in pieces(spm)[3:] if piece != "▁x")]
    write_json(folder / "vocab.json", {name: id for id, name in enumerate(names)})
    return transformers.M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))


def from_sentencepiece(kind: str, file: str, model: bytes, folder: Path, **options: Any) -> Any:
    """A tokenizer of a class that reads a sentencepiece model and writes tokenizer.json."""
    own = folder / "sentencepiece"
    own.mkdir(parents=True, exist_ok=True)
    (own / file).write_bytes(model)
    tokenizer = getattr(transformers, kind).from_pretrained(own, **options)
    shutil.rmtree(own)
    return tokenizer


# -- models ------------------------------------------------------------------------------------------------------------


LAST_NORMS = (
    "decoder.layers.1.final_layer_norm.weight",
    "decoder.layer_norm.weight",
    "decoder.final_layer_norm.weight",
)


def peak(model: Any, seed: int, table: float) -> Any:
    """Give a model random weights whose outputs are clear; `table` is how large embeddings are beside positions."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" in name and not weight.requires_grad:
                continue  # sinusoids
            if weight.dim() > 1:
                std = 1.3 * weight.shape[1] ** -0.5
                if "embed_positions" in name or "relative_attention" in name:
                    std = 1.0
                elif "shared" in name or "embed_tokens" in name or "lm_head" in name:
                    std = table
                weight.copy_(torch.randn(weight.shape, generator=generator) * std)
            else:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
            if name.endswith(LAST_NORMS):  # a tied output layer would repeat the token that was read for ever
                weight.mul_(torch.randn(weight.shape, generator=generator).sign())
    return model


SIZES: dict[str, Any] = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 96,
}
T5_SIZES: dict[str, Any] = {
    "d_model": 24,
    "d_kv": 10,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 3,
}


@dataclass
class Case:
    """A folder, and how their model is asked the same as ours."""

    folder: Path
    model: Any
    tokenizer: Any
    source_lang: str = ""
    target_lang: str = ""
    source_text: Callable[[str], str] = field(default=lambda text: text)
    generate: dict[str, Any] = field(default_factory=dict)

    def encode(self, lines: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer([self.source_text(line) for line in lines])["input_ids"]
        return ids


LONGEST = 40  # tokens of an output, </s> included
GENERATION = {  # an n-gram that may come once keeps random models out of loops
    "num_beams": 4,
    "length_penalty": 0.7,
    "max_new_tokens": LONGEST,
    "no_repeat_ngram_size": 2,
}


def save(case: Case, generation: dict[str, Any]) -> Case:
    """Write model and tokenizer as transformers does."""
    for key, value in (GENERATION | generation).items():
        setattr(case.model.generation_config, key, value)
    case.model.eval().save_pretrained(case.folder)
    case.tokenizer.save_pretrained(case.folder)
    return case


def set_end(model: Any, eos: int, end: float, seed: int) -> None:
    """Make </s> as probable as others that are likely, by a bias, or by a longer row of the output layer."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        if hasattr(model, "final_logits_bias"):
            bias = torch.randn(model.final_logits_bias.shape, generator=generator)
            bias[0, eos] += end
            model.final_logits_bias.copy_(bias)
        else:
            model.lm_head.weight[eos] *= end


def marian(folder: Path, tags: bool = False, separate: bool = False) -> Case:
    tokenizer = marian_tokenizer(folder, [">>deu<<", ">>fra<<"] if tags else [], separate)
    rows = len(tokenizer.encoder), len(tokenizer.target_encoder if separate else tokenizer.encoder)
    pad = tokenizer.encoder["<pad>"]
    if separate:  # one id of <pad> for both sides
        rows = rows[0], max(rows)
        pad = min(rows) - 1
    config = transformers.MarianConfig(
        **{**SIZES, "decoder_attention_heads": 2},
        vocab_size=rows[0],
        decoder_vocab_size=rows[1],
        share_encoder_decoder_embeddings=not separate,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        scale_embedding=True,
        activation_function="swish",
    )
    model = peak(transformers.MarianMTModel(config), 12 if separate else 1, 0.5 if separate else 0.3)
    set_end(model, 0, 4.6 if tags else 6.0, 1)
    case = Case(folder, model, tokenizer)
    if tags:
        case.target_lang, case.source_text = "deu", lambda text: f">>deu<< {text}"
    return save(case, {"bad_words_ids": [[pad]], "early_stopping": "never", "length_penalty": 0.6})


def bart(folder: Path, forced: bool = True) -> Case:
    tokenizer = bart_tokenizer()
    config = transformers.BartConfig(
        **SIZES, vocab_size=len(tokenizer), pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2
    )
    model = peak(transformers.BartForConditionalGeneration(config), 2, 0.3)
    set_end(model, 2, 8.5, 2)
    case = Case(folder, model, tokenizer)
    return save(case, {"forced_bos_token_id": 0, "early_stopping": True, "length_penalty": 2.0} if forced else {})


def pegasus(folder: Path) -> Case:
    tokenizer = from_sentencepiece("PegasusTokenizer", "spiece.model", sentencepiece_model(**T5_IDS), folder)
    config = transformers.PegasusConfig(
        **{**SIZES, "activation_function": "relu"},
        vocab_size=len(tokenizer) + 3,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        scale_embedding=True,
    )
    model = peak(transformers.PegasusForConditionalGeneration(config), 3, 0.6)
    set_end(model, 1, 5.0, 3)
    return save(Case(folder, model, tokenizer), {})


def mbart(folder: Path, kind: str = "MBart50Tokenizer") -> Case:
    file = "sentencepiece.bpe.model"
    tokenizer = from_sentencepiece(kind, file, sentencepiece_model(), folder, src_lang="en_XX", tgt_lang="ro_RO")
    to = tokenizer.convert_tokens_to_ids("ro_RO")
    is_50 = kind == "MBart50Tokenizer"
    config = transformers.MBartConfig(
        **SIZES,
        vocab_size=len(tokenizer),
        pad_token_id=1,
        eos_token_id=2,
        bos_token_id=0,
        decoder_start_token_id=2 if is_50 else to,
        scale_embedding=True,
    )
    model = peak(transformers.MBartForConditionalGeneration(config), 4, 0.5)
    set_end(model, 2, 2.6 if is_50 else 5.5, 4)
    generate = {"forced_bos_token_id": to} if is_50 else {}
    return save(Case(folder, model, tokenizer, "en_XX", "ro_RO" if is_50 else "", generate=generate), {})


def m2m(folder: Path) -> Case:
    tokenizer = m2m_tokenizer(folder)
    tokenizer.src_lang = "de"
    config = transformers.M2M100Config(
        **SIZES, vocab_size=tokenizer.vocab_size + 100 + 8, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2
    )
    model = peak(transformers.M2M100ForConditionalGeneration(config), 5, 0.6)
    set_end(model, 2, 1.5, 5)
    generate = {"forced_bos_token_id": tokenizer.get_lang_id("fr")}
    return save(Case(folder, model, tokenizer, "de", "fr", generate=generate), {})


def nllb(folder: Path, legacy: bool = False) -> Case:
    first = from_sentencepiece("NllbTokenizer", "sentencepiece.bpe.model", sentencepiece_model("bpe"), folder)
    model = json.loads(first.backend_tokenizer.to_str())
    vocab = model["model"]["vocab"]
    vocab = {name: id for name, id in vocab.items() if name != "<mask>"}
    vocab |= {name: len(vocab) + i for i, name in enumerate([*LANGUAGES, "<mask>"])}
    charsmap = next(
        part["precompiled_charsmap"] for part in model["normalizer"]["normalizers"] if part["type"] == "Precompiled"
    )
    tokenizer = transformers.NllbTokenizer(
        vocab=vocab,
        merges=[tuple(merge) for merge in model["model"]["merges"]],
        extra_special_tokens=list(LANGUAGES),
        _spm_precompiled_charsmap=base64.b64decode(charsmap),
        src_lang="eng_Latn",
        legacy_behaviour=legacy,
    )
    config = transformers.M2M100Config(
        **SIZES, vocab_size=len(tokenizer) + 2, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2
    )
    built = peak(transformers.M2M100ForConditionalGeneration(config), 6, 0.3)
    set_end(built, 2, 2.6, 6)
    generate = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids("fra_Latn")}
    return save(Case(folder, built, tokenizer, "eng_Latn", "fra_Latn", generate=generate), {})


def t5(folder: Path, kind: str = "relu") -> Case:
    """relu, gated, mt5 or byt5."""
    if kind == "byt5":
        tokenizer = transformers.ByT5Tokenizer()
        rows = 384
    else:
        extra = {"extra_ids": 0} if kind == "mt5" else {"extra_ids": 10}
        model_file = sentencepiece_model(**T5_IDS)
        tokenizer = from_sentencepiece("T5Tokenizer", "spiece.model", model_file, folder, **extra)
        rows = len(tokenizer) + 12
    family = transformers.MT5Config if kind == "mt5" else transformers.T5Config
    gated = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    config = family(**T5_SIZES, vocab_size=rows, decoder_start_token_id=0, **({} if kind == "relu" else gated))
    classes = {"mt5": transformers.MT5ForConditionalGeneration}
    model = classes.get(kind, transformers.T5ForConditionalGeneration)(config)
    if kind != "relu":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    peak(model, 7, 0.5)
    if kind == "relu":
        with torch.no_grad():
            model.shared.weight.mul_(24**0.5)
    set_end(model, 1, {"byt5": 5.0, "gated": 2.0}.get(kind, 3.0), 7)
    return save(Case(folder, model, tokenizer), {"early_stopping": kind == "gated"})


CASES: dict[str, Callable[[Path], Case]] = {
    "marian": marian,
    "marian with languages": lambda folder: marian(folder, tags=True),
    "marian with two vocabularies": lambda folder: marian(folder, separate=True),
    "bart": bart,
    "bart without a forced <s>": lambda folder: bart(folder, forced=False),
    "pegasus": pegasus,
    "mbart-50": mbart,
    "mbart-cc25": lambda folder: mbart(folder, "MBartTokenizer"),
    "m2m-100": m2m,
    "nllb": nllb,
    "nllb, legacy": lambda folder: nllb(folder, legacy=True),
    "t5": t5,
    "t5 v1.1": lambda folder: t5(folder, "gated"),
    "mt5": lambda folder: t5(folder, "mt5"),
    "byt5": lambda folder: t5(folder, "byt5"),
}
