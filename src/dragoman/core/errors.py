"""The errors that users see, and their exit codes.

Messages are one or a few plain sentences: where, what was found, what is allowed. They never contain a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path


class DragomanError(Exception):
    """The base class of all errors, never raised itself; `code` is the exit code of the command line."""

    code = 1


class UserError(DragomanError):
    """An error that the user can fix."""

    code = 2


class ConfigError(UserError):
    """All problems of a config, each a sentence that starts with its key."""

    def __init__(self, where: str | Path, problems: Sequence[str]) -> None:
        self.where, self.problems = str(where), list(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"{where}: {count}", *(f"  {problem}" for problem in problems)]))


class PartError(UserError):
    """A part that cannot be built, or two parts that are incompatible; raised by the part."""


class DataError(UserError):
    """A problem in a data file: `file:line: what was found. The remedy.`"""

    def __init__(self, message: str, file: str | Path | None = None, line: int | None = None) -> None:
        self.file, self.line = None if file is None else str(file), line
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(where + message)


class ModelError(UserError):
    """A model folder that is incomplete, changed or not ours."""


class FormatError(ModelError):
    """A model or run folder of another format version."""


class BaseModelError(ModelError):
    """The model that an adapter was trained on is missing or has changed."""


class RunError(UserError):
    """A run folder that cannot be used: locked, unwritable, with another config, or on a full disk."""


class MissingExtra(UserError):
    """A feature needs an optional package; the message has the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}'. Install it with: pip install 'dragoman[{extra}]'")


class TrainingDiverged(DragomanError):
    """The loss or gradient of a training was not finite several times in a row."""

    code = 3


class CheckFailed(DragomanError):
    """A check that the user requested did not pass."""

    code = 4


class Stopped(DragomanError):
    """A signal stopped a command; the message says what is kept. The code is 128 plus the signal's number."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class TrainingStopped(Stopped):
    """A signal stopped the training; the last checkpoint is complete."""


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """A hint such as "; did you mean 'rnn'?" if an allowed name is similar, else ''."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
