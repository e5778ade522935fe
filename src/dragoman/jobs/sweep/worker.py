"""A worker as a process of its own: one trial, then it ends. A killed one takes no other with it.

Its standard input is a pipe from the driver. When that closes, the driver wants it to stop, or is gone: the worker
saves a checkpoint and ends. It prints one line of JSON: what it did, or the error that the driver raises.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from dragoman.core.errors import DragomanError
from dragoman.core.plugins import load_plugin


def main() -> None:
    """Train one trial of the sweep that the first argument describes."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    threading.Thread(target=_stop_with_driver, daemon=True).start()
    try:
        result = {"result": run_order(order)}
        code = 0
    except DragomanError as error:
        result, code = {"error": str(error)}, error.code
    print(json.dumps(result), flush=True)
    sys.exit(code)


def run_order(order: dict[str, Any]) -> str:
    """Train one trial: the folder, the number of trials, the plugins and the driver are in the order."""
    for plugin in order["plugins"]:
        load_plugin(plugin)
    from dragoman.jobs.sweep.folder import SweepFolder
    from dragoman.jobs.sweep.trial import claim_and_train

    return claim_and_train(SweepFolder(Path(order["folder"])), order["trials"], order["driver"])


def _stop_with_driver() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock a thread may hold as the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
