"""Does a sweep beat the preset? 30 trials of 30 s, the first of which is the preset, on the demo's pronunciations.

    python bench/sweep.py --out OUT [--trials 30] [--seconds 30] [--workers 1] [--seed 1]

The sweep is that of the command line, with the preset space for recurrent networks. Its best trial and its first, which
has the preset's own values and as much time, are compared on the demo's test set, which no trial has seen; the test is
the paired one of `dragoman compare`. The last line of the output is a line of JSON. The same command again goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dragoman.demo import DEMOS


def run(*words: str) -> str:
    """The output of a command line."""
    command = [sys.executable, "-m", "dragoman", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def sweep(out: Path, trials: int, seconds: float, workers: int, seed: int) -> dict[str, Any]:
    """The results of the sweep, as in its sweep.json."""
    demo, data = DEMOS["pronunciation"], out / "data"
    if not (data / "test.tsv").exists():
        data.mkdir(parents=True, exist_ok=True)
        demo.write_data(data)
    sets = [f"data.train={data / 'train.tsv'}", f"data.valid={data / 'valid.tsv'}"]
    words = ["--preset", demo.preset, "--space", "rnn", "--run", str(out / "sweep"), "--trials", str(trials)]
    words += ["--trial-minutes", str(seconds / 60), "--workers", str(workers), "--seed", str(seed), "--json"]
    found: dict[str, Any] = json.loads(run("sweep", *words, *(word for text in sets for word in ("--set", text))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each trial")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = sweep(options.out, options.trials, options.seconds, options.workers, options.seed)
    runs = {name: options.out / "sweep" / "trials" / f"{found[name]:04d}" for name in ("own", "best")}
    values = {trial["number"]: trial for trial in found["trials"]}
    facts = {name: values[found[name]] for name in runs}
    for name, facts_of_trial in facts.items():
        shown = ", ".join(f"{key} {value}" for key, value in facts_of_trial["params"].items())
        print(f"{name}: trial {facts_of_trial['number']}, {found['metric']} {facts_of_trial['value']:.4f}: {shown}")
    pairs = str(options.out / "data" / "test.tsv")
    scores = {}
    for name, path in runs.items():
        metrics = json.loads(run("evaluate", str(path), pairs, "--metrics", "per,ser", "--json"))["metrics"]
        scores[name] = {key: [metric["value"], *metric["interval"]] for key, metric in metrics.items()}
    if runs["own"] != runs["best"]:
        print(run("compare", str(runs["own"]), str(runs["best"]), "--data", pairs, "--metrics", "per,ser"))
    states = [trial["state"] for trial in found["trials"]]
    counts = {state: states.count(state) for state in sorted(set(states))}
    validation = {name: trial["value"] for name, trial in facts.items()}
    print(json.dumps({"trials": counts, "validation": validation, "test": scores}))


if __name__ == "__main__":
    main()
