"""The data of a recipe as pairs.

    OUT/data[/PART]/{train,valid,test}.tsv       written once, and anew where the set changed before a training began

Nothing is fetched: a set is read where the user points.
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
from dragoman.recipes.provenance import Origin
from dragoman.recipes.recipe import Job, Setting

DONE = "prepared"  # beside the prepared files: all are there, and what they were made of (origin.py)


def prepare(setting: Setting, part: str) -> Path:
    """The files of a part, written where they are not there yet, and anew where the set's files have changed since."""
    folder = setting.prepared(part)
    if not _current(setting, part):
        sets = _made_up(setting) if setting.example else _pointed_to(setting)
        with _alone(folder):  # another command may be at the same data
            if not _current(setting, part):
                files.make_folder(folder)
                (folder / DONE).unlink(missing_ok=True)
                with tables.reading() as read:
                    setting.opened.code.prepare(sets, part, folder)
                _require_some(setting, folder, read, sets)
                made = Origin(_places(setting)) if setting.example or not sets else provenance.of(sets, read)
                files.write(folder / DONE, made.text().encode())
    return folder


def _current(setting: Setting, part: str) -> bool:
    """Whether a part is prepared from the data as it is; an error where it must not be prepared anew."""
    folder = setting.prepared(part)
    if not (folder / DONE).exists():
        return False
    before, here = provenance.load(folder / DONE), _places(setting)
    if before is None:
        return False
    if not {*before.places} <= {*here}:
        remedy = f"choose another folder with --run, or remove {folder} to prepare it again"
        raise RunError(f"{folder}: was prepared from {', '.join(before.places)}, not from {here[0]}; {remedy}")
    changed = before.changed()
    if changed and (begun := _begun(setting, part)):
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise RunError(
            f"{changed[0]}{more}: is not what it was when {', '.join(begun)} began in {setting.out}; "
            "choose another folder with --run, or put the old file back"
        )
    return not changed


def _places(setting: Setting) -> list[str]:
    """Where the data comes from: what --data names, and the folder of each set there; or a phrase."""
    if setting.data is not None:
        return [str(path.resolve()) for path in (setting.data, *_pointed_to(setting).values())]
    return ["a hundred made-up items (--example)" if setting.example else "what the recipe makes up"]


def _begun(setting: Setting, part: str) -> list[str]:
    """The trainings of a part that have begun, with any seed."""
    names = "|".join(re.escape(Job(system, part, 1).name) for system in setting.opened.recipe.systems)
    return sorted(
        place.parent.name
        for place in setting.out.glob("*/config.yaml")
        if re.fullmatch(rf"({names})(-seed\d+)?", place.parent.name)
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A folder for one command at a time; where filling it fails, what is new of it goes again."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    files.make_folder(folder)
    with (folder / ".lock").open("ab") as lock:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        except BaseException:
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            for place in new[1:]:
                with suppress(OSError):  # something else is in it by now
                    place.rmdir()
            raise


def _require_some(setting: Setting, folder: Path, read: Mapping[Path, int | None], sets: Mapping[str, Path]) -> None:
    """That nothing which is trained on, validated on or tested is empty; else the set's file is named."""
    systems = setting.opened.recipe.systems.values()
    wanted = [*(one.train for one in systems), *(f"{test}.tsv" for test in setting.opened.recipe.tests)]
    wanted += [one.valid for one in systems if one.valid is not None and (folder / one.valid).exists()]
    for name in dict.fromkeys(wanted):
        if (folder / name).exists() and (folder / name).read_bytes().strip():
            continue
        tabled = [
            path for path, n in read.items() if n is not None and any(provenance.within(path, s) for s in sets.values())
        ]
        for path in tabled:
            if not read[path]:
                raise DataError(f"has not one line, and nothing is left for {name}; {tables.AGAIN}", path)
        found = f"of {', '.join(path.name for path in tabled)} nothing is left for {name}"
        raise DataError(f"{found}; {tables.AGAIN}", next(iter(sets.values()), folder))


def _pointed_to(setting: Setting) -> dict[str, Path]:
    return {} if setting.data is None else setting.opened.sets(setting.data)


def _made_up(setting: Setting) -> dict[str, Path]:
    """Folders with a hundred items each, in the form of the recipe's data sets.

    Where `prepare` makes the data up, a single one called "example" tells it that a hundred items are enough.
    """
    sets = {name: setting.out / "example" / name for name in setting.opened.recipe.data or ["example"]}
    for folder in sets.values():
        files.make_folder(folder)
    setting.opened.code.example(sets, random.Random(1))
    return sets
