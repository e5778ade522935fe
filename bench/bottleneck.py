"""The bottleneck and its cure: four recurrent models copy strings of up to 20 letters, and are asked for up to 40.

    python bench/bottleneck.py FOLDER          # trains four small models on the CPU, then compares them

The first two know the source as one vector, at the beginning or at every step; the other two look at it, by content or
by content and the place looked at last. Data, configs and runs go into FOLDER; the picture is FOLDER/bottleneck.png.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import letters
from dragoman.data.samples import synthetic

CONFIG = """
name: {name}
seed: 1
data: {{train: train.tsv, cache: cache}}
tokenizer: {{source: symbols}}
model:
  width: 64
  tie: none
  encoder: {{name: rnn, cell: gru, width: 128, dropout: 0.0}}
  decoder: {{name: rnn, cell: gru, width: 128, dropout: 0.0, {decoder}}}
training:
  steps: 3000
  batch_tokens: 1024
  optimizer: {{name: adam, rate: 4.0e-3}}
  schedule: {{name: linear, warmup: 50}}
  clip: 0.3
  label_smoothing: 0.0
  save_every: 100000
generation: {{search: greedy}}
runtime: {{device: cpu, threads: 1}}
"""
MODELS = {
    "initial": "source: initial",
    "context": "source: context, reads: scy",
    "additive": "order: before, score: additive",
    "location": "order: before, score: location",
}


def main(folder: Path, workers: int) -> None:
    """Write the data, train the four models, and compare them."""
    folder.mkdir(parents=True, exist_ok=True)
    short = [pair for part in range(30) for pair in letters.generate_pairs("copy", 2000, part)]  # 1 to 20 letters each
    synthetic.write_tsv(folder / "train.tsv", short)
    # As many strings of each length as of any other: within one draw of `pairs` the lengths are even.
    synthetic.write_tsv(folder / "test.tsv", letters.generate_pairs("copy", 2000, 1, split="test", max_length=40))
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda name: train(folder, name), MODELS))
    run_dragoman(folder, "compare", *MODELS, "--data", "test.tsv", "--metrics", "exact,cer", "--png", "bottleneck.png")


def train(folder: Path, name: str) -> None:
    """Train one of the models."""
    (folder / f"{name}.yaml").write_text(CONFIG.format(name=name, decoder=MODELS[name]), encoding="utf-8")
    run_dragoman(folder, "train", f"{name}.yaml", "--run", name)


def run_dragoman(folder: Path, *arguments: str) -> None:
    """Run a dragoman command in a folder."""
    subprocess.run([sys.executable, "-m", "dragoman", *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2)
