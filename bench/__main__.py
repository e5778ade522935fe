"""python -m bench train|decode|loader|startup|growth|serve: measure, print a table, and say the ratio last."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from bench import task, timing
from dragoman.core.errors import UserError

COMMANDS = {
    "train": "tokens a second of training, against a plain Hugging Face loop",
    "decode": "sentences a second of searching, against Hugging Face generate and CTranslate2",
    "loader": "tokens a second of the batches alone",
    "startup": "seconds until something happens",
    "growth": "tokens a second and memory against length, batch, depth and vocabulary",
    "serve": "requests a second of the server, against a loop without batching; and what it does when too many come",
}


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help in COMMANDS.items():
        command = commands.add_parser(name, help=help, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        _shared(command)
        importlib.import_module(f"bench.{name}").arguments(command)
    return parser.parse_args(arguments)


def _shared(command: argparse.ArgumentParser) -> None:
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
    chosen = options(arguments)
    try:
        found, lines = importlib.import_module(f"bench.{chosen.command}").run(chosen)
    except UserError as error:
        raise SystemExit(str(error)) from None
    given = {name: value for name, value in vars(chosen).items() if name not in ("json", "folder", "command")}
    about = timing.facts(arguments, **given)
    if chosen.json:
        chosen.json.write_text(json.dumps({"about": about, "found": found}, indent=1, default=_plain) + "\n")
    print(*(f"{key}: {value}" for key, value in about.items()), "", *lines, sep="\n")


def _plain(value: Any) -> Any:
    return {"median": value.median, "samples": value.samples} if isinstance(value, timing.Figure) else str(value)


if __name__ == "__main__":
    main(sys.argv[1:])
