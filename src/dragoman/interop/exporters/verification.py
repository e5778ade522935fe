"""The check of an export: greedy outputs of the other side's own program, from the written folder alone, against ours.

    sources   the examples that the model keeps, then texts made of random tokens of its vocabulary
    ours      the reference equations with greedy search
    theirs    foreign_programs.py in a process of its own that cannot import Dragoman

Two outputs are equal if all their tokens are. Where they differ first, the two tokens may be as probable as each other
within rounding: such outputs are counted as ties, beside the equal ones. Quantized weights are rounded more.

argostranslate has no option for the length of an output, and replaces <unk> by a word of the source: only sources whose
outputs by us end with </s>, and have no <unk>, are compared there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch

from dragoman.checkpoint import kept_examples
from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.registry import Part
from dragoman.core.types import BOS, EOS, UNK, Example, Hypothesis
from dragoman.engines.length_batches import pad_ids
from dragoman.engines.reference import decode_with_reference
from dragoman.interop.exporters.contents import Exported, ends_with_eos, unique_names
from dragoman.search import SearchConstraints, searches
from dragoman.text.normalization import normalize

SCRIPT = Path(__file__).with_name("foreign_programs.py")
MAX_SOURCE = 12  # tokens of a made-up source
MAX_ROUNDS = 4  # in which as many sources are made up as are wanted


@dataclass
class Check:
    """The outcome of a check."""

    status: str  # "passed", "failed" or "not run"
    sources: int = 0
    equal: int = 0
    ties: int = 0  # outputs that differ first where two tokens are equally probable
    tokenized_equally: int | None = None  # sources of which the other side's tokenizer made our ids
    program: str = ""
    version: str = ""
    note: str = ""

    def summary(self) -> str:
        """The outcome as a sentence."""
        if self.status == "not run":
            return f"not checked: {self.note}"
        if self.note:
            return self.note
        ties = f", and {self.ties} differ where two tokens are equally probable within rounding" if self.ties else ""
        inputs = ""
        if self.tokenized_equally not in (None, self.sources):
            inputs = f"; its tokenizer makes our ids of {self.tokenized_equally} sources alone"
        return f"{self.equal} of {self.sources} outputs of {self.program} {self.version} equal ours{ties}{inputs}"

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", None)}


@dataclass
class Cases:
    """The sources of a check in every form, and our outputs."""

    texts: list[str]
    before: list[list[str]]  # the names of the tags before each text
    ids: list[list[int]]
    outputs: list[list[int]]
    max_length: int


def check_export(loaded: LoadedModel, folder: Path, exported: Exported, wanted: int) -> Check:
    """Compare as many greedy outputs of the written folder with ours."""
    program = exported.program
    if wanted == 0:
        return Check("not run", program=program, note="--no-check was given")
    if not is_installed(program):
        note = f"{program} is not installed; install it with: pip install {program}, and export again"
        return Check("not run", program=program, note=note)
    cases = build_cases(loaded, exported, wanted)
    if not cases.ids:
        return Check("not run", program=program, note="no source was found for which the model's output ends")
    try:
        result = run_foreign_program(folder, exported, cases, loaded)
    except ForeignProgramFailed as error:
        return Check("failed", len(cases.ids), program=program, note=f"{program} stopped: {error}")
    theirs = result["outputs"]
    if exported.runner == "argos":
        ours = [loaded.codec.decode(ids).replace("_", " ") for ids in cases.outputs]
        equal = [comparable(found) == comparable(text) for found, text in zip(theirs, ours, strict=True)]
        ties = 0
    else:
        equal = [found == expected for found, expected in zip(theirs, cases.outputs, strict=True)]
        ties = sum(
            is_tie(loaded, source, found, expected, exported.tolerance)
            for source, found, expected, same in zip(cases.ids, theirs, cases.outputs, equal, strict=True)
            if not same
        )
    inputs, tokenized = result["inputs"], None
    if exported.reads == "text" and inputs is not None:
        expected_inputs = [strip_end(ids) for ids in cases.ids]
        tokenized = sum(strip_end(a) == b for a, b in zip(inputs, expected_inputs, strict=True))
    status = "passed" if sum(equal) + ties == len(equal) else "failed"
    return Check(status, len(equal), sum(equal), ties, tokenized, program, result["version"])


def comparable(text: str) -> str:
    """A text without outer spaces; for bytes that are no UTF-8, programs write one or several U+FFFD."""
    return re.sub("\ufffd+", "\ufffd", text.strip())


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def strip_end(ids: Sequence[int]) -> list[int]:
    """The ids without a last </s>, which some programs add themselves."""
    return list(ids[:-1] if ids and ids[-1] == EOS else ids)


def build_cases(loaded: LoadedModel, exported: Exported, wanted: int) -> Cases:
    """Sources from the kept examples and from the vocabulary, and our greedy outputs for them."""
    longest = exported.max_positions - 2
    cases = Cases([], [], [], [], min(exported.max_length, longest))
    sources = source_texts(loaded, longest)
    for _ in range(MAX_ROUNDS):
        found = [row for row in islice(sources, wanted) if 0 < len(row[2]) <= longest]
        ids = [row[2] for row in found]
        for (text, before, source), output in zip(
            found, greedy_outputs(loaded, ids, exported.min_length, cases.max_length), strict=True
        ):
            if exported.runner == "argos" and (output.finish_reason != "eos" or UNK in output.tokens):
                continue
            if len(cases.ids) < wanted:
                cases.texts.append(text)
                cases.before.append(before)
                cases.ids.append(source)
                cases.outputs.append(output.tokens)
        if len(cases.ids) == wanted:
            break
    return cases


def source_texts(loaded: LoadedModel, longest: int) -> Iterator[tuple[str, list[str], list[int]]]:
    """Sources without end, the kept examples first: the text, its tags and its ids; no ids for an empty text."""
    rng, codec, has_eos = random.Random(0), loaded.codec, ends_with_eos(loaded)
    is_folder = (loaded.path / "manifest.json").is_file() or loaded.path.is_file()
    kept = [replace(one, target=None) for one in kept_examples.read_examples(loaded.path)] if is_folder else []
    source_languages: list[str | None] = [*codec.source_languages] or [None]
    target_languages: list[str | None] = [*codec.target_languages] or [None]
    made_up = (
        Example(
            random_text(loaded, rng, min(MAX_SOURCE, longest)),
            source_lang=rng.choice(source_languages),
            target_lang=rng.choice(target_languages),
        )
        for _ in count()
    )
    for example in chain(kept, made_up):
        ids = [int(i) for i in codec.encode_source(example)]
        ids = ids if has_eos or not codec.source_template.ends_with_eos else ids[:-1]
        tags = codec.source_template.prefix_symbols(example)
        is_empty = len(ids) <= len(tags) + len(codec.source_template.suffix)  # an empty source has no output
        yield normalize(example.source, codec.normalization), tags, [] if is_empty else ids


def random_text(loaded: LoadedModel, rng: random.Random, longest: int) -> str:
    """A text of random tokens of the source's vocabulary."""
    vocabulary = loaded.codec.source.vocabulary
    first = len(vocabulary) - len(vocabulary.tokens) if vocabulary.tokens else vocabulary.symbol_count + 32
    last = len(vocabulary) - 1 if vocabulary.tokens else vocabulary.symbol_count + 126  # printable ASCII bytes
    return loaded.codec.source.decode([rng.randint(first, last) for _ in range(rng.randint(1, longest))])


@torch.inference_mode()
def greedy_outputs(loaded: LoadedModel, sources: list[list[int]], min_length: int, max_length: int) -> list[Hypothesis]:
    """The outputs of our own greedy search."""
    limits = SearchConstraints(torch.full((len(sources),), max_length), min_length)
    found = decode_with_reference(loaded.model, sources, searches.build(Part("greedy")), limits)
    return [hypotheses[0] for hypotheses in found]


@torch.inference_mode()
def is_tie(loaded: LoadedModel, source: list[int], found: list[int], expected: list[int], tolerance: float) -> bool:
    """Whether the first tokens in which two outputs differ are equally probable for our model."""
    n = next(
        (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(map(len, (found, expected)))
    )
    memory = loaded.model.encode(*pad_ids([source]))
    o = loaded.model.decode(torch.tensor([[BOS, *expected[:n]]]), memory).o
    log_p = torch.log_softmax(loaded.model.logits(o)[0, -1].double(), -1)
    a, b = (tokens[n] if n < len(tokens) else EOS for tokens in (found, expected))
    return bool((log_p[a] - log_p[b]).abs() < tolerance)


class ForeignProgramFailed(Exception):
    """The other side's program ended with an error; the message is its last line."""


def run_foreign_program(folder: Path, exported: Exported, cases: Cases, loaded: LoadedModel) -> dict[str, Any]:
    """What the other side's program makes of the cases, in a process of its own."""
    names = unique_names(loaded.codec.source.vocabulary)
    sources = {
        "text": cases.texts,
        "tokens": [[names[i] for i in strip_end(ids)] for ids in cases.ids],
        "ids": cases.ids,
    }[exported.reads]
    with tempfile.TemporaryDirectory() as scratch:
        request = {
            "runner": exported.runner,
            "folder": str(folder.absolute()),
            "reads": exported.reads,
            "sources": sources,
            "before": cases.before,
            "max_length": cases.max_length,
            "scratch": scratch,
            "path": [entry for entry in sys.path if entry and entry != str(SCRIPT.parents[3])],
        }
        output = Path(scratch) / "result.json"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(
            [sys.executable, "-I", str(SCRIPT), "--output", str(output)],
            input=json.dumps(request).encode(),
            capture_output=True,
            env=environment,
            cwd=scratch,
            check=False,
        )
        if done.returncode or not output.exists():
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise ForeignProgramFailed(lines[-1][:300] if lines else f"exit code {done.returncode}")
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return result
