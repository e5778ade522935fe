"""python -m bench train|decode|texts|loader|startup|growth|serve|shards|browser: measure, print a table."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from bench import task, timing
from dragoman.core.errors import UserError

COMMANDS = {
    "train": "tokens a second of training, against a plain Hugging Face loop",
    "decode": "sentences a second of searching, against Hugging Face generate and CTranslate2",
    "texts": "sentences a second from texts to texts on a CPU, against CTranslate2 fed by sentencepiece",
    "loader": "tokens a second of the batches alone",
    "startup": "seconds until something happens",
    "growth": "tokens a second and memory against length, batch, depth and vocabulary",
    "browser": "a model in Chromium: exactness, sizes, seconds and memory of each precision",
    "shards": "bulk work: speed and memory beside plain predict, and how a ledger grows",
    "serve": "requests a second of the server, against a loop without batching; and what it does when too many come",
}


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line of every benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help in COMMANDS.items():
        command = commands.add_parser(name, help=help, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        _add_shared_arguments(command)
        importlib.import_module(f"bench.{name}").add_arguments(command)
    return parser.parse_args(arguments)


def _add_shared_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--shape", choices=tuple(task.SHAPES), default="tiny")
    add("--precision", default="float32", help="float32, bfloat16; int8 where it is served")
    add("--repeats", type=int, default=5, help="turns that count")
    add("--seconds", type=float, default=2.0, help="of one turn, where a turn is not a number of steps")
    add("--threads", type=int, default=1, help="of the CPU, for everyone")
    add("--seed", type=int, default=1)
    add("--folder", type=Path, help="where generated data is kept for the next time; default: nowhere")
    add("--json", type=Path, metavar="FILE", help="write every sample, with all that is known of the machine")


def main(arguments: list[str]) -> None:
    """Run a benchmark, print its table, and write --json."""
    options = parse_arguments(arguments)
    try:
        results, lines = importlib.import_module(f"bench.{options.command}").run(options)
    except UserError as error:
        raise SystemExit(str(error)) from None
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "folder", "command")}
    about = timing.describe_environment(arguments, **settings)
    if options.json:
        options.json.write_text(json.dumps({"about": about, "results": results}, indent=1, default=_to_json) + "\n")
    print(*(f"{key}: {value}" for key, value in about.items()), "", *lines, sep="\n")


def _to_json(value: object) -> object:
    return {"median": value.median, "samples": value.samples} if isinstance(value, timing.Measurement) else str(value)


if __name__ == "__main__":
    main(sys.argv[1:])
