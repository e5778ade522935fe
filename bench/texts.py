"""Sentences a second from texts to texts on a CPU: our `predict` beside CTranslate2 fed by sentencepiece.

    lines ─tokenizer→ ids ─search→ ids ─tokenizer→ lines        outputs end by themselves

Both have the same weights and vocabularies: CTranslate2's model is written by `dragoman export --format ct2`, and is
called as its documentation does it, with its own defaults: its beam stops when k hypotheses have finished, ours when 2k
have; `--patience 2` gives both the same search. ×1 is one line after the other, ×64 are 64 lines in a call. --threads
are threads or processes of ours and one-thread workers of theirs.

Without --model the weights are random, of --shape, with the probability of </s> set so that greedy outputs have about
20 tokens; sources are then words made of letters.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import dragoman
from bench import task, timing
from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.core.generation import GenerationOptions
from dragoman.core.types import BOS, EOS, PAD, UNK
from dragoman.inference import parallel
from dragoman.inference.pipeline import Pipeline
from dragoman.interop.exporters import ExportOptions, ct2
from dragoman.text import codec as codecs

Translate = Callable[[Sequence[str], int], list[str]]  # texts and the beam → texts
TARGET_TOKENS = 20  # of a greedy output, about, where weights are random


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = command.add_argument
    add("--model", type=Path, help="a trained Transformer with sentencepiece tokenizers; default: random weights")
    add("--sources", type=Path, help="its sources, a line each")
    add("--beams", type=int, nargs="+", default=[1, 5], help="sizes of the beam; 1 is greedy")
    add("--batches", type=int, nargs="+", default=[1, 64], help="lines in a call")
    add("--patience", type=float, default=1.0, help="CTranslate2's")


def run(options: argparse.Namespace) -> timing.CommandResult:
    """Measure every beam and batch; the results for the record, and the lines to print."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        path = options.model or Path(temporary) / "model"
        if options.model is None:
            write_model(path, task.SHAPES[options.shape])
        ours = dragoman.load(path, "cpu", precision=options.precision)
        rng = random.Random(options.seed)
        texts = options.sources.read_text().split("\n")[:-1] if options.sources else some_texts(rng, 2000)
        rng.shuffle(texts)
        contenders = {
            f"Dragoman, {options.precision}": our_translate(ours, options.threads),
            f"CTranslate2 and sentencepiece, {options.precision}": their_translate(path, Path(temporary), options),
        }
        cases = [
            measure(contenders, options, texts, beam, batch) for beam in options.beams for batch in options.batches
        ]
    rows = [{"search": case["search"], "batch": case["batch"], **case["figures"]} for case in cases]
    lines = [*(case["agreement"] for case in cases), timing.markdown_table(rows)]
    for case in cases:
        ratios = timing.format_ratios(case["figures"], next(iter(contenders)))
        lines += [f"{case['search']} × {case['batch']}: {line}" for line in ratios]
    return {"cases": cases}, lines


def measure(
    contenders: dict[str, Translate], options: argparse.Namespace, texts: list[str], beam: int, batch: int
) -> dict[str, Any]:
    """Sentences a second of each contender for one beam and batch, and how many results agree."""
    used = texts[: batch * options.threads] if batch > 1 else texts[:16]
    calls = [used] if batch > 1 else [[text] for text in used]
    ours, theirs = ([line for call in calls for line in each(call, beam)] for each in contenders.values())

    def translate_all(translate: Translate) -> float:
        return float(sum(len(translate(call, beam)) for call in calls))

    turns = {
        name: timing.repeat_for(lambda each=each: translate_all(each), options.seconds)  # type: ignore[misc]
        for name, each in contenders.items()
    }
    named = "greedy" if beam == 1 else f"beam {beam}"
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    words = sum(len(line.split()) for line in ours) / len(ours)
    return {
        "search": named,
        "batch": batch,
        "figures": timing.measure_in_turns(turns, options.repeats),
        "unit": "sentences/s",
        "agreement": f"{named} × {batch}: {same} of {len(ours)} texts are the same, of {words:.1f} words",
    }


def our_translate(pipeline: Pipeline, workers: int) -> Translate:
    """`dragoman predict`, from the lines on."""

    def translate(texts: Sequence[str], beam: int) -> list[str]:
        options = GenerationOptions(beam=beam)
        count = workers if len(texts) > 1 else 1
        found = parallel.predict_stream(pipeline, texts, options, workers=count, token_log_probs=False)
        return [prediction.text for prediction in found]

    return translate


def their_translate(path: Path, folder: Path, options: argparse.Namespace) -> Translate:
    """CTranslate2's Translator between two sentencepiece processors."""
    import ctranslate2
    import sentencepiece

    (folder / "ct2").mkdir()
    ct2.export_ct2(model_folder.load(path), folder / "ct2", ExportOptions(options.precision, "", ""))
    translator = ctranslate2.Translator(
        str(folder / "ct2"), compute_type=options.precision, inter_threads=options.threads, intra_threads=1
    )
    torch.set_num_threads(options.threads)  # it sets its own number for all of OpenMP
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / "ct2" / f"{side}.spm"))
        for side in ("source", "target")
    )

    def translate(texts: Sequence[str], beam: int) -> list[str]:
        pieces = source.encode(list(texts), out_type=str)
        patience = options.patience if beam > 1 else 1.0
        results = translator.translate_batch(
            pieces, beam_size=beam, max_batch_size=64, min_decoding_length=0, patience=patience
        )
        return [target.decode(result.hypotheses[0]) for result in results]  # type: ignore[no-any-return]

    return translate


def some_texts(rng: random.Random, count: int) -> list[str]:
    """Sentences of 10 to 20 made-up words."""
    words = ["".join(rng.choices("abcdefghijklmnoprstuvw", k=rng.randint(2, 6))) for _ in range(3000)]
    return [" ".join(rng.choices(words, k=rng.randint(10, 20))) for _ in range(count)]


def write_model(folder: Path, shape: task.ModelShape) -> None:
    """A model folder with random weights whose outputs end after about TARGET_TOKENS."""
    value = {
        "data": {"train": "none.tsv"},
        "tokenizer": {"source": {"name": "bpe", "size": 8000}, "joint": True},
        "model": task.model_section(shape, "transformer"),
    }
    config = configs.validate(value, "the benchmark")
    tokenizer = config.tokenizer.source
    learner = codecs.CodecLearner(codecs.build_codec(tokenizer, tokenizer, True, "nfc"))
    for text in some_texts(random.Random(0), 3000):
        learner.add_source(text)
    codec = learner.finish([])
    model = configs.build_model(config, len(codec.source), len(codec.target)).eval()
    with torch.no_grad():
        model.output.bias[[PAD, BOS, UNK]] = -1e4
    pipeline = Pipeline(model, codec, config, torch.device("cpu"))
    texts, low, high = some_texts(random.Random(1), 32), -5.0, 20.0
    for _ in range(8):  # bisection
        model.output.bias.data[EOS] = (low + high) / 2
        found = pipeline.predict(texts, beam=1)
        is_long = sum(len(one.ids) for one in found) > TARGET_TOKENS * len(found)
        low, high = ((low + high) / 2, high) if is_long else (low, (low + high) / 2)
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, {})
