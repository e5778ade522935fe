"""Lets a file call of a new process fail: Python imports this at its start, where PYTHONPATH names the folder.

DRAGOMAN_PRELOAD is JSON: the word in the command by which the process is known, the folder, the number of the call, the
fault, and a file for the list of calls.
"""

import atexit
import importlib.util
import json
import os
import sys
from pathlib import Path

spec = json.loads(os.environ.get("DRAGOMAN_PRELOAD", "null"))
if spec and spec["process"] in " ".join(sys.orig_argv):
    module = importlib.util.spec_from_file_location("faulty_disk", Path(__file__).parents[1] / "disk.py")
    assert module is not None
    assert module.loader is not None
    disk = importlib.util.module_from_spec(module)
    sys.modules["faulty_disk"] = disk
    module.loader.exec_module(disk)
    fault = disk.Fault(spec["n"], spec["fault"])
    log = open(spec["log"], "a", encoding="utf-8")  # noqa: SIM115 - until the process ends

    def hook(call):
        log.write(f"{call.kind}\t{call.path}\n")
        log.flush()
        return fault(call)

    interposed = disk.interpose(Path(spec["folder"]), hook)
    interposed.__enter__()
    atexit.register(interposed.__exit__, None, None, None)
