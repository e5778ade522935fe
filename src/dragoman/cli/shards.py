"""dragoman shards: how far a bulk job is, its results as one file, and its failures tried again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options

app = typer.Typer(help="Bulk work: status, merge and retry of a folder of shards.", no_args_is_help=True)

Folder = Annotated[str, typer.Argument(help="The folder of --shards.", metavar="DIR")]


@app.command()
def status(folder: Folder, as_json: options.AsJSON = False) -> None:
    """Print lines, shards, speed, time left, and what was set aside. Exit code 4 if a shard is set aside."""
    from dragoman.cli.bulk import status_lines
    from dragoman.core.errors import CheckFailed
    from dragoman.jobs.ledger import Ledger
    from dragoman.jobs.status import read_status

    found = read_status(Ledger.read(folder))
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        for line in status_lines(found):
            options.print_text(line)
    if found.failures:
        raise CheckFailed(f"{len(found.failures):,} of {found.shards:,} shards are set aside")


@app.command()
def merge(
    folder: Folder,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write; it appears when it is complete.")],
) -> None:
    """Write the results of `dragoman predict --shards DIR` into one file, in order, when all shards are done."""
    from dragoman.core.errors import UserError
    from dragoman.jobs import merge as merging
    from dragoman.jobs.ledger import Ledger

    ledger = Ledger.read(folder)
    if ledger.job.command != "predict":
        raise UserError(
            f"{folder}: holds scores of dragoman {ledger.job.command}; run the same command again, which reads them"
        )
    merging.merge(ledger, output)
    options.print_to_stderr(f"wrote {ledger.job.lines:,} lines of input, {ledger.job.shards:,} shards, to {output}")


@app.command()
def retry(folder: Folder) -> None:
    """Forget which shards were set aside, so that the same command tries them again."""
    from dragoman.jobs.ledger import Ledger

    count = Ledger.read(folder).clear_failures()
    options.print_to_stderr(f"{count:,} shards will be tried again by the same command")
