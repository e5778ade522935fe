"""Prepare the data of a recipe as files of pairs.

    OUT/data[/PART]/{train,valid,test}.tsv       written once; written again if the data set changed before any training

Nothing is downloaded: a data set is read from the folder that the user names.
"""

from __future__ import annotations

import fcntl
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.core import files
from dragoman.core.errors import DataError, RunError
from dragoman.recipes import provenance, tables
from dragoman.recipes.provenance import DataOrigin
from dragoman.recipes.recipe import RecipeRun, TrainingJob

ORIGIN_FILE = "prepared"  # beside the prepared files, written last: what they were made from (provenance.py)


def prepare_data(run: RecipeRun, part: str) -> Path:
    """Return the folder with the prepared files of a part; write them first if missing or out of date."""
    folder = run.data_folder(part)
    if not _is_current(run, part):
        data_sets = _make_example_sets(run) if run.example else _user_data_sets(run)
        with _lock_folder(folder):  # another command may prepare the same data
            if not _is_current(run, part):
                files.make_folder(folder)
                (folder / ORIGIN_FILE).unlink(missing_ok=True)
                with tables.record_files_read() as line_counts:
                    run.loaded.recipe_module.prepare(data_sets, part, folder)
                _require_nonempty(run, folder, line_counts, data_sets)
                if run.example or not data_sets:
                    origin = DataOrigin(_data_sources(run))
                else:
                    origin = provenance.record_origin(data_sets, line_counts)
                files.write_file(folder / ORIGIN_FILE, origin.to_json().encode())
    return folder


def _is_current(run: RecipeRun, part: str) -> bool:
    """Whether a part is prepared from the current data; raises if it is not and must not be prepared again."""
    folder = run.data_folder(part)
    if not (folder / ORIGIN_FILE).exists():
        return False
    origin, sources = provenance.load_origin(folder / ORIGIN_FILE), _data_sources(run)
    if origin is None:
        return False
    if not {*origin.sources} <= {*sources}:
        remedy = f"choose another folder with --run, or remove {folder} to prepare it again"
        raise RunError(f"{folder}: was prepared from {', '.join(origin.sources)}, not from {sources[0]}; {remedy}")
    changed = origin.changed_files()
    if changed and (started := _started_jobs(run, part)):
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise RunError(
            f"{changed[0]}{more}: has changed since {', '.join(started)} started in {run.out}; "
            "choose another folder with --run, or put the old file back"
        )
    return not changed


def _data_sources(run: RecipeRun) -> list[str]:
    """The resolved paths of the --data folder and of each data set in it; or a phrase for generated data."""
    if run.data is not None:
        return [str(path.resolve()) for path in (run.data, *_user_data_sets(run).values())]
    return ["a hundred generated items (--example)" if run.example else "what the recipe generates"]


def _started_jobs(run: RecipeRun, part: str) -> list[str]:
    """The names of the run folders of a part whose training has started, with any seed."""
    names = "|".join(re.escape(TrainingJob(system, part, 1).name) for system in run.recipe.systems)
    return sorted(
        file.parent.name
        for file in run.out.glob("*/config.yaml")
        if re.fullmatch(rf"({names})(-seed\d+)?", file.parent.name)
    )


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let one command at a time write into a folder; if writing fails, remove the folders that this created."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    files.make_folder(folder)
    with (folder / ".lock").open("ab") as lock:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        except BaseException:
            if created:
                shutil.rmtree(folder, ignore_errors=True)
            for path in created[1:]:
                with suppress(OSError):  # something else is in it by now
                    path.rmdir()
            raise


def _require_nonempty(
    run: RecipeRun, folder: Path, line_counts: Mapping[Path, int | None], data_sets: Mapping[str, Path]
) -> None:
    """Raise a DataError if a prepared training, validation or test file is missing or empty; it names the cause."""
    systems = run.recipe.systems.values()
    names = [*(system.train for system in systems), *(f"{test}.tsv" for test in run.recipe.tests)]
    names += [system.valid for system in systems if system.valid is not None and (folder / system.valid).exists()]
    for name in dict.fromkeys(names):
        if (folder / name).exists() and (folder / name).read_bytes().strip():
            continue
        text_files = [
            path
            for path, count in line_counts.items()
            if count is not None and any(provenance.is_within(path, data_set) for data_set in data_sets.values())
        ]
        for path in text_files:
            if not line_counts[path]:
                raise DataError(f"has no lines, so nothing is left for {name}; {tables.DOWNLOAD_AGAIN}", path)
        problem = f"of {', '.join(path.name for path in text_files)} nothing is left for {name}"
        raise DataError(f"{problem}; {tables.DOWNLOAD_AGAIN}", next(iter(data_sets.values()), folder))


def _user_data_sets(run: RecipeRun) -> dict[str, Path]:
    """The folder of each data set below the --data folder, by name; empty without --data."""
    return {} if run.data is None else run.loaded.find_data_sets(run.data)


def _make_example_sets(run: RecipeRun) -> dict[str, Path]:
    """Write generated data sets of about a hundred items each in the recipe's own form; return their folders.

    Where `prepare` generates the data itself, a single set called "example" tells it to generate a hundred items.
    """
    data_sets = {name: run.out / "example" / name for name in run.recipe.data or ["example"]}
    for folder in data_sets.values():
        files.make_folder(folder)
    run.loaded.recipe_module.make_example(data_sets, random.Random(1))
    return data_sets
