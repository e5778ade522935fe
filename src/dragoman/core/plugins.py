"""Import plugins: Python modules, or .py files, that register parts of their own.

The user names them on the command line (`--plugin`). A config or a model folder never does: a downloaded model must not
choose what code runs.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from dragoman.core.errors import UserError


def load_plugin(name: str) -> None:
    """Import a module by its name, or a file by its path if that ends with .py; UserError if that fails.

    For a module the working directory is put first on sys.path. Without one it is not there: a file of somebody's
    folder must not run because it is called as a module that we import.
    """
    try:
        if name.endswith(".py"):
            _import_file(Path(name).resolve())
        else:
            sys.path[:] = ["", *(path for path in sys.path if path)]
            importlib.import_module(name)
    except (ImportError, UserError) as error:
        raise UserError(f"--plugin {name}: {error}") from None
    except Exception as error:  # whatever the user's own code raises
        raise UserError(f"--plugin {name}: {_describe(error)}") from None


def _describe(error: Exception) -> str:
    """The line of a user's own file that raised an error, and what the error says."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return reason  # which has file and line
    frames = [
        (os.path.basename(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("dragoman", "importlib")
        and not frame.f_code.co_filename.startswith("<")
    ]
    return f"{frames[-1][0]}:{frames[-1][1]}: {reason}" if frames else reason


def _import_file(path: Path) -> None:
    """Import a file as a module of its name, so that processes started from this one can import it, too."""
    if not path.is_file():
        raise ImportError("there is no such file")
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if module.__file__ is None or Path(module.__file__).resolve() != path:
        raise ImportError(f"the name '{path.stem}' belongs to another module, {module.__file__}; rename the file")
