"""C code that is loaded before a process's own libraries (LD_PRELOAD), to change what the system answers it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "preload"


def compile_shim(name: str, folder: Path) -> Path:
    """Compile preload/NAME.c into the folder; skips the test where that is not possible."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("no C compiler on Linux")
    library = folder / f"{name}.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, SOURCES / f"{name}.c", "-ldl"]
    built = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return library
