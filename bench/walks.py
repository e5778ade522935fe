"""The modules that one training, one prediction and one HTTP request pass through, in the order of their first call.

    python bench/walks.py            three counts, and the list of modules of each walk
    python bench/walks.py --json F   the same as JSON

Each command runs in processes of its own with a profiler that notes every module of the package in which a function is
called; module and class bodies do not count. docs/architecture.md shows the three walks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "dragoman"
PROFILER = """
import os, sys, threading
seen = set()
def note(frame, event, argument):
    code = frame.f_code
    if event != "call" or not code.co_flags & 2 or code.co_filename in seen or not code.co_filename.startswith(ROOT):
        return  # without the flag it is the body of a module or a class
    seen.add(code.co_filename)
    with open(os.path.join(FOLDER, str(os.getpid())), "a") as file:
        print(code.co_filename, file=file)
threading.setprofile(note)
sys.setprofile(note)
"""
PAIRS = "".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefgh" for b in "abcdefgh")
CONFIG = """
data: {train: pairs.tsv, valid: pairs.tsv}
tokenizer: {source: characters, joint: true}
model: {width: 16, encoder: {name: transformer, layers: 1, heads: 2}, decoder: {name: transformer, layers: 1, heads: 2}}
training: {steps: 4, validate_every: 2, save_every: 2, batch_tokens: 64, schedule: {name: inverse_sqrt, warmup: 1}}
runtime: {device: cpu, threads: 1}
"""


def count_modules(folder: Path, walk: str, command: list[str], request: bool = False) -> list[str]:
    """Run a command with the profiler; return the modules that it called, in the order of their first call."""
    calls = folder / walk
    calls.mkdir()
    hook = folder / f"{walk}-hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(f"ROOT, FOLDER = {str(PACKAGE)!r}, {str(calls)!r}\n{PROFILER}")
    environment = {**os.environ, "PYTHONPATH": f"{hook}:{PACKAGE.parent}", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    main = "import sys; from dragoman.cli.main import main; sys.argv[0] = 'dragoman'; main()"
    arguments = [sys.executable, "-c", main, *command]
    if request:
        _send_request(arguments, folder, environment)
    else:
        subprocess.run(arguments, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    files = [line for file in sorted(calls.iterdir()) for line in file.read_text().splitlines()]
    return list(dict.fromkeys(str(Path(file).relative_to(PACKAGE)) for file in files))


def _send_request(arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Start the server, send one predict request, and stop it."""
    with subprocess.Popen(
        arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if address := re.search(r"http://[\d.]+:\d+", line):
                body = json.dumps({"inputs": ["ab"]}).encode()
                headers = {"Content-Type": "application/json"}
                urllib.request.urlopen(urllib.request.Request(f"{address[0]}/v1/predict", body, headers)).read()
                break
        server.terminate()
        server.stdout.read()


def main(arguments: list[str]) -> None:
    """Count the three walks and print them."""
    parser = argparse.ArgumentParser(prog="python bench/walks.py", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pairs.tsv").write_text(PAIRS)
        (folder / "config.yaml").write_text(CONFIG)
        (folder / "source.txt").write_text("ab\n")
        training = count_modules(folder, "training", ["train", "config.yaml", "--run", "run"])
        prediction = count_modules(folder, "prediction", ["predict", "run", "source.txt"])
        request = count_modules(folder, "request", ["serve", "run", "--port", "0"], request=True)
    more = [module for module in request if module not in prediction]
    walks = {"training": training, "prediction": prediction, "request, beyond a prediction": more}
    for walk, modules in walks.items():
        print(f"{walk}: {len(modules)} modules")
        print(*(f"  {i}. {module}" for i, module in enumerate(modules, 1)), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(walks, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
