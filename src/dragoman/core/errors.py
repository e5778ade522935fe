"""Every error a user can cause, as a tree; the exit code of the command line belongs to the class.

    DragomanError        1   never raised itself: an error of this name is our bug
      UserError          2   the user's config, data or files; the message names the place, what was found, the remedy
        ConfigError          every problem of a config file at once
        PartError            a part of a model that cannot be built or combined as asked
        DataError            a file of pairs, with its line
        ModelError           a model folder that is incomplete, changed or not ours
          FormatError        a model or run folder that another version of Dragoman wrote
        RunError             a run folder that cannot be used (locked, changed config, unwritable, full disk)
        MissingExtra         an optional package that a feature needs
      Diverged           3   training produced no finite number three times in a row
      CheckFailed        4   a check that was asked for did not pass
      Stopped      130/143   training was stopped by a signal, after saving

Messages are one or a few plain sentences: where, what was found, what is allowed. A traceback is never part of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path


class DragomanError(Exception):
    """The root; `code` is the exit code of the command line."""

    code = 1


class UserError(DragomanError):
    """Something the user can mend."""

    code = 2


class ConfigError(UserError):
    """All problems of one config, each a sentence that starts with its key."""

    def __init__(self, where: str | Path, problems: Sequence[str]) -> None:
        self.where, self.problems = str(where), list(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"{where}: {count}", *(f"  {problem}" for problem in problems)]))


class PartError(UserError):
    """A part that cannot be built, or two that do not go together; raised by the part itself."""


class DataError(UserError):
    """A place in a user's file: `file:line: what was found. The remedy.`"""

    def __init__(self, message: str, file: str | Path | None = None, line: int | None = None) -> None:
        self.file, self.line = None if file is None else str(file), line
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(where + message)


class ModelError(UserError):
    """A model folder that cannot be trusted or read."""


class FormatError(ModelError):
    """A model or run folder of another format."""


class RunError(UserError):
    """A run folder that cannot be used."""


class MissingExtra(UserError):
    """An optional package is needed: says which, and the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}'. Install it with: pip install 'dragoman[{extra}]'")


class Diverged(DragomanError):
    """Training left the finite numbers."""

    code = 3


class CheckFailed(DragomanError):
    """A check that the user asked for did not pass."""

    code = 4


class Stopped(DragomanError):
    """Training ended early because a signal asked for it; the checkpoint is whole."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def nearest(word: str, allowed: Iterable[str]) -> str:
    """ "; did you mean 'rnn'?" where a valid name is near, else ''."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
