"""Seconds from a command to its result, each time in a new process: to see help, to import, to answer one line.

The competitor imports Hugging Face transformers, loads a model of the same sizes from its folder and answers one
source. It is given ids, so that it needs no tokenizer. Ours answers with a beam of 5: by the converted copy that an
earlier prediction has left, and by the model itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import competitors, task, timing
from bench.texts import write_model
from bench.timing import Measurement

HF = """
import sys, torch
from transformers import MarianMTModel
model = MarianMTModel.from_pretrained(sys.argv[1]).eval()
print(model.generate(torch.tensor([[5, 6, 7, 8, 2]]), min_length=21, max_length=21, num_beams=1, do_sample=False))
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument("--competitors", nargs="*", default=["hf"], help="hf")


def run(options: argparse.Namespace) -> timing.CommandResult:
    """Measure every command; the results for the record, and the lines to print."""
    shape = task.SHAPES[options.shape]
    python = sys.executable
    with tempfile.TemporaryDirectory() as temporary:
        folder, left_out = Path(temporary), []
        os.environ["XDG_CACHE_HOME"] = temporary  # of the converted copy, which the first turn writes
        write_model(folder / "model", shape)
        ours = [python, "-m", "dragoman", "predict", str(folder / "model"), "--device", "cpu"]
        commands: dict[str, Sequence[str]] = {
            "python, nothing else": [python, "-c", ""],
            "dragoman --help": [python, "-m", "dragoman", "--help"],
            "import dragoman": [python, "-c", "import dragoman"],
            "import torch": [python, "-c", "import torch"],
            "dragoman predict, one line": ours,
            "the same, importing torch": [*ours, "--reference"],
        }
        if "hf" in options.competitors:
            try:
                competitors.build_marian(shape, shape.vocabulary).save_pretrained(folder / "hf")
                commands["import transformers, MarianMTModel"] = [
                    python,
                    "-c",
                    "from transformers import MarianMTModel",
                ]
                commands["Hugging Face, one source"] = [python, "-c", HF, str(folder / "hf")]
            except competitors.Unavailable as reason:
                left_out.append(f"hf is left out: {reason}")
        figures = measure(commands, options.repeats)
    rows = [{"command": name, "seconds": figure} for name, figure in figures.items()]
    lines = [*left_out, timing.markdown_table(rows)]
    if "Hugging Face, one source" in figures:
        ratio = timing.ratio(figures["Hugging Face, one source"], figures["dragoman predict, one line"])
        lines.append(f"one answer, Hugging Face's seconds / Dragoman's: {ratio}")
    return {"figures": figures, "left_out": left_out}, lines


def measure(commands: dict[str, Sequence[str]], repeats: int) -> dict[str, Measurement]:
    """Seconds of each command, in turns after one that only fills the caches of files."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(1 + repeats):
        for name, command in commands.items():
            start = time.perf_counter()
            done = subprocess.run(command, input="abc de fghi\n", capture_output=True, text=True, check=False)
            spent = time.perf_counter() - start
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stderr}")
            if number:
                seconds[name].append(spent)
    return {name: Measurement(tuple(samples)) for name, samples in seconds.items()}
