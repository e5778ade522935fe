"""Sentences a second of searching: everyone has the same weights and inputs, ids in and ids out.

    source tokens → target tokens, as many as asked: no one may end sooner, so that everyone does the same work

A turn searches the same batch of random sources again until its seconds are over. Weights are random, too: what a
sentence is does not change the work. Ours is the engine that `predict` uses; with --texts, and on a CPU with several
threads, it is `predict` itself, from texts to texts, by as many processes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dragoman
from bench import competitors, task, timing
from bench.task import ModelShape
from bench.timing import Measurement
from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, PAD, SPECIALS
from dragoman.inference import parallel
from dragoman.inference.pipeline import Pipeline
from dragoman.search import SearchConstraints
from dragoman.text import codec as codecs


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = command.add_argument
    add("--beams", type=int, nargs="+", default=[1, 5], help="sizes of the beam; 1 is greedy")
    add("--batches", type=int, nargs="+", default=[1, 64], help="sentences searched at once")
    add("--source-tokens", type=int, default=20)
    add("--target-tokens", type=int, default=20)
    add("--texts", action="store_true", help="ours reads and writes texts, as `dragoman predict` does")
    add(
        "--competitors",
        nargs="*",
        default=["hf", "ct2-float32"],
        help="hf, ct2-int8, ct2-float32, reference (our reference equations)",
    )


def run(options: argparse.Namespace) -> timing.CommandResult:
    """Measure every beam and batch; the results for the record, and the lines to print."""
    if options.device == "cpu" and options.precision != "float32":
        raise SystemExit("so many tokens are forced on a CPU by our own step, in float32; see `bench texts`")
    shape = task.SHAPES[options.shape]
    if shape.preset == "pronunciation":
        raise SystemExit("decode compares Transformers; take --shape tiny or base")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder / "model", shape, options.target_tokens)
        ours = dragoman.load(folder / "model", options.device, precision=options.precision)
        workers = options.threads if options.device == "cpu" else 1
        use_texts = options.texts or workers > 1 or ours.engine is None
        own = text_searcher(ours, workers) if use_texts else engine_searcher(ours)
        contenders: dict[str, competitors.Searcher] = {f"Dragoman, {options.precision}": own}
        left_out = []
        if "reference" in options.competitors:
            reference = dragoman.load(folder / "model", options.device, reference=True)
            contenders["Dragoman, reference, float32"] = text_searcher(reference, workers)
        others = [name for name in options.competitors if name != "reference"]
        precision = "bfloat16" if options.precision == "bfloat16" else "float32"
        model = ours.model.cpu() if options.device == "cpu" else dragoman.load(folder / "model", "cpu").model
        for name, search in competitors.build_searchers(
            others, shape, model, folder, options.device, precision, options.threads
        ):
            if isinstance(search, competitors.Unavailable):
                left_out.append(f"{name} is left out: {search}")
            else:
                contenders[name] = search
        cases = [
            measure(contenders, options, shape, beam, batch) for beam in options.beams for batch in options.batches
        ]
    rows = [{"search": case["search"], "batch": case["batch"], **case["figures"]} for case in cases]
    lines = [*left_out, *(case["agreement"] for case in cases), timing.markdown_table(rows)]
    for case in cases:
        ratios = timing.format_ratios(case["figures"], next(iter(contenders)))
        lines += [f"{case['search']} × {case['batch']}: {line}" for line in ratios]
    return {"cases": cases, "left_out": left_out}, lines


def measure(
    contenders: dict[str, competitors.Searcher], options: argparse.Namespace, shape: ModelShape, beam: int, batch: int
) -> dict[str, Any]:
    """Sentences a second of each contender for one beam and batch, and how many results agree with ours."""
    rng = np.random.default_rng((options.seed, beam, batch))
    count = batch * options.threads if options.device == "cpu" else batch
    size = (count, options.source_tokens - 1)
    sources = [[*row, EOS] for row in rng.integers(len(SPECIALS), shape.vocabulary, size).tolist()]
    length = options.target_tokens
    results = {name: search(sources, beam, length) for name, search in contenders.items()}
    first = next(iter(results))
    same = {
        name: sum(a == b for a, b in zip(results[first], other, strict=True))
        for name, other in results.items()
        if name != first
    }
    synchronize = timing.device_synchronizer(options.device)
    turns = {
        name: timing.repeat_for(
            lambda search=search: float(len(search(sources, beam, length))), options.seconds, synchronize
        )  # type: ignore[misc]
        for name, search in contenders.items()
    }
    figures: dict[str, Measurement] = timing.measure_in_turns(turns, options.repeats)
    named = "greedy" if beam == 1 else f"beam {beam}"
    agreement = ", ".join(f"{number} of {count} with {name}" for name, number in same.items())
    return {
        "search": named,
        "batch": batch,
        "figures": figures,
        "unit": "sentences/s",
        "agreement": f"{named} × {batch}: {first} has the same tokens for {agreement or 'nobody to compare with'}",
    }


def text_searcher(pipeline: Pipeline, workers: int) -> competitors.Searcher:
    """Our search from texts to texts; ids are converted to texts before and back after."""

    def search(sources: list[list[int]], beam: int, length: int) -> list[list[int]]:
        texts = [" ".join(pipeline.codec.source.pieces(source[:-1])) for source in sources]
        options = GenerationOptions(beam=beam)
        return [prediction.ids for prediction in parallel.predict_stream(pipeline, texts, options, workers=workers)]

    return search


def engine_searcher(pipeline: Pipeline) -> competitors.Searcher:
    """Our engine from ids to ids."""
    engine = pipeline.engine
    assert engine is not None

    def search(sources: list[list[int]], beam: int, length: int) -> list[list[int]]:
        beam_search = pipeline.request(beam=beam).search
        constraints = SearchConstraints(torch.full((len(sources),), length), length)
        if not engine.serves(beam_search, constraints):
            raise SystemExit("the engine does not serve this search; take --texts")
        with torch.inference_mode():
            return [hypotheses[0].tokens for hypotheses in engine(sources, beam_search, constraints)]

    return search


def write_model(folder: Path, shape: ModelShape, length: int) -> None:
    """A model folder with random weights, whose results have exactly `length` tokens."""
    section = task.model_section(shape, "transformer")
    for side in ("encoder", "decoder"):  # as Marian has it, so that weights can be carried over
        section[side] = section[side] | {
            "norm_order": "post",
            "activation": "relu",
            "position": {"name": "sinusoidal", "layout": "halves"},
        }
    value = {
        "data": {"train": "none.tsv"},
        "tokenizer": {"source": "symbols", "joint": True},
        "model": section,
        "generation": {
            "length_rule": "none",
            "max_length_ratio": 0.0,
            "max_length_extra": length,
            "min_new_tokens": length,
        },
    }
    config = configs.validate(value, "the benchmark")
    # Every symbol once: its number then is its id.
    every = [" ".join(f"{i:06}" for i in range(len(SPECIALS), shape.vocabulary))]
    learner = codecs.CodecLearner(codecs.build_codec(Part("symbols"), Part("symbols"), True, "nfc"))
    for text in every:
        learner.add_source(text)
    codec = learner.finish([])
    model = configs.build_model(config, len(codec.source), len(codec.target))
    with torch.no_grad():
        model.output.bias[[PAD, BOS]] = -1e4  # our searches never choose these; so no competitor does
    model_folder.save(folder, config, model_folder.unique_weights(model), codec, {})
