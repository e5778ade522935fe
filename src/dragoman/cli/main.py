"""The command line: every command, and what becomes of errors.

Exit codes: 0 fine · 1 our bug · 2 your config, data or files · 3 training diverged · 4 a check did not pass ·
130/143 training stopped by a signal.
"""

from __future__ import annotations

import errno
import os
import sys

import typer

from dragoman.cli import (
    compare,
    config,
    data,
    demo,
    evaluate,
    inspect,
    list_parts,
    predict,
    probe,
    recipe,
    score,
    serve,
    tokenizer,
    train,
)
from dragoman.cli.options import console
from dragoman.core.errors import DragomanError, RunError, Stopped
from dragoman.version import __version__

app = typer.Typer(
    name="dragoman",
    help="Sequence-to-sequence models: give it pairs; it gives back a trained model, an honest score and a picture.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(train.train)
app.command()(predict.predict)
app.command()(score.score)
app.command()(evaluate.evaluate)
app.command()(inspect.inspect)
app.command()(compare.compare)
app.command()(serve.serve)
app.command()(probe.probe)
app.add_typer(recipe.app, name="recipe")
app.add_typer(data.app, name="data")
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(config.app, name="config")
app.command("list")(list_parts.show)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        print(f"dragoman {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; a user's mistake is one message on the standard error and an exit code, no traceback."""
    code: int | str | None = 0
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone (| head): nothing is wrong
        _drop_output()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _drop_output()
        print("error: the standard output cannot be written: the disk is full", file=sys.stderr)
        code = RunError.code
    sys.exit(code)


def _drop_output() -> None:
    """What could not be written is not tried again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run() -> int | str | None:
    """The exit code of what the command line asks for."""
    try:
        app()
    except SystemExit as exit:
        if isinstance(exit.__context__, BrokenPipeError):  # typer would call this an error
            raise exit.__context__ from None
        return exit.code
    except DragomanError as error:
        text, style = (str(error), None) if isinstance(error, Stopped) else (f"error: {error}", "red")
        console(error=True).print(text, style=style, markup=False, soft_wrap=True)
        return error.code
    except KeyboardInterrupt:
        return 130
    return 0
