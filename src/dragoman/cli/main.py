"""The command line: every command, and the exit code for each error.

Exit codes: 0 fine · 1 our bug · 2 your config, data or files · 3 training diverged · 4 a check did not pass ·
130/143 stopped by a signal.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence

import typer

from dragoman.cli import (
    blame,
    compare,
    config,
    data,
    demo,
    distill,
    evaluate,
    export,
    import_model,
    inspect,
    list_parts,
    pack,
    predict,
    probe,
    recipe,
    score,
    serve,
    shards,
    sweep,
    tokenizer,
    train,
)
from dragoman.cli.options import console
from dragoman.core.errors import DragomanError, RunError, Stopped, UserError
from dragoman.version import __version__


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Build the command line; `predict` gets its generated options only if it is among the arguments."""
    app = typer.Typer(
        name="dragoman",
        help="Sequence-to-sequence models: from pairs to a trained model, its scores and pictures of its attention.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_print_version)
    app.command()(demo.demo)
    app.command()(train.train)
    app.command()(sweep.sweep)
    app.command()(distill.distill)
    app.command("predict", help=predict.predict.__doc__)(_predict_command("predict" in arguments))
    app.command()(score.score)
    app.command()(evaluate.evaluate)
    app.command()(inspect.inspect)
    app.command()(blame.blame)
    app.command()(compare.compare)
    app.command()(serve.serve)
    app.command()(probe.probe)
    app.command()(pack.pack)
    app.command("import")(import_model.import_model)
    app.command()(export.export)
    app.add_typer(recipe.app, name="recipe")
    app.add_typer(data.app, name="data")
    app.add_typer(tokenizer.app, name="tokenizer")
    app.add_typer(config.app, name="config")
    app.add_typer(shards.app, name="shards")
    app.command("list")(list_parts.list_parts)
    return app


def _predict_command(is_called: bool) -> Callable[..., None]:
    """Return the command with its generated options, or, for the list of commands alone, a function without any."""
    if not is_called:
        return lambda: None
    from dragoman.cli.generation import generation_options

    return generation_options(predict.predict)


def _print_version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(f"dragoman {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line and exit; a user error prints one message on the standard error, without a traceback."""
    code: int | str | None = 0
    try:
        code = _run_command()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has closed it (| head)
        _discard_output()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _discard_output()
        print("error: cannot write to the standard output: the disk is full", file=sys.stderr)
        code = RunError.code
    sys.exit(code)


def _discard_output() -> None:
    """Redirect the standard output to the null device, so that Python's flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_command() -> int | str | None:
    """Run the command of sys.argv, print a DragomanError, and return the exit code."""
    try:
        build_app(sys.argv[1:])()
    except SystemExit as exit:
        if isinstance(exit.__context__, BrokenPipeError):  # typer would call this an error
            raise exit.__context__ from None
        return exit.code
    except DragomanError as error:
        text, style = (str(error), None) if isinstance(error, Stopped) else (f"error: {error}", "red")
        console(error=True).print(text, style=style, markup=False, soft_wrap=True)
        return error.code
    except OSError as error:  # a path of the user's that no part explained: too long a name, a folder not to be read
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; check the path and its permissions", file=sys.stderr)
        return RunError.code
    except (RuntimeError, MemoryError) as error:
        from dragoman.inference.device import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        print("error: memory ran out; use fewer workers, a smaller beam or shorter inputs", file=sys.stderr)
        return UserError.code
    except KeyboardInterrupt:
        return 130
    return 0
