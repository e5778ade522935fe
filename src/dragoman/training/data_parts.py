"""The files of a training whose pairs are divided here: train, valid and test, in one form whatever they came from.

    pairs, and parts that are held out already ─split_pairs→ data/train.tsv, valid.tsv, test.tsv

In the held-out parts every target of a source is accepted: those are its references, in one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.types import Example
from dragoman.data.selection.split import DEFAULT_SHARES, split_pairs

SEED = 1
ROLES = ("source", "second_source", "target", "source_lang", "target_lang")


@dataclass(frozen=True)
class Parts:
    """The files of the parts, how many pairs each has, the columns of them all, and a sentence on all of it."""

    files: dict[str, str]
    counts: dict[str, int]
    columns: list[str]
    sentence: str


def write_parts(examples: Sequence[Example], held_out: Mapping[str, Sequence[Example]], folder: Path) -> Parts:
    """Divide pairs into those parts that are not `held_out` already, and write them all into a folder."""
    shares = {name: share for name, share in DEFAULT_SHARES.items() if name not in held_out}
    rows, sentence = {"train": list(examples)}, f"{len(examples):,} to learn from"
    if len(shares) > 1:
        split = split_pairs(examples, None if shares == DEFAULT_SHARES else shares, SEED)
        rows = {name: [examples[i] for i in numbers] for name, numbers in split.items()}
        sentence = split.sentence
    if held_out:
        sentence += "; " + ", ".join(f"{len(pairs):,} of your own for {name}" for name, pairs in held_out.items())
    rows |= {name: list(pairs) for name, pairs in held_out.items()}
    roles = [role for role in ROLES if any(getattr(example, role) for example in examples)]
    suffix = ".jsonl" if any("\t" in _text(example) for example in chain.from_iterable(rows.values())) else ".tsv"
    files.make_folder(folder)
    written = {}
    for name in (name for name in DEFAULT_SHARES if name in rows):
        written[name] = str(folder / f"{name}{suffix}")
        pairs = rows[name] if name == "train" else merge_references(rows[name])
        lines = (_to_json(pair, roles) if suffix == ".jsonl" else _to_columns(pair, roles) for pair in pairs)
        files.write_file(Path(written[name]), "".join(f"{line}\n" for line in lines).encode())
    return Parts(written, {name: len(pairs) for name, pairs in rows.items()}, roles, sentence)


def split_references(example: Example) -> list[Example]:
    """One pair for each target of an example."""
    if len(example.references) < 2:
        return [example]
    return [replace(example, target=target, references=()) for target in dict.fromkeys(example.references)]


def merge_references(examples: Sequence[Example]) -> list[Example]:
    """One example for each source, in which every target that is given for it is accepted."""
    merged: dict[tuple[str | None, ...], tuple[Example, dict[str, None]]] = {}
    for example in examples:
        key = (example.source, example.second_source, example.source_lang, example.target_lang)
        _, targets = merged.setdefault(key, (example, {}))
        targets.update(dict.fromkeys(example.accepted if example.target is not None else ()))
    return [replace(example, references=tuple(targets)) for example, targets in merged.values()]


def _text(example: Example) -> str:
    return "".join((example.source, example.second_source, *example.accepted))


def _to_columns(example: Example, roles: Sequence[str]) -> str:
    """A line of the columns `roles`, and one more for each further reference."""
    return "\t".join([*(getattr(example, role) or "" for role in roles), *example.references[1:]])


def _to_json(example: Example, roles: Sequence[str]) -> str:
    values: dict[str, Any] = {role: getattr(example, role) or "" for role in roles}
    if len(example.references) > 1:
        values["target"] = list(example.references)
    return json.dumps(values, ensure_ascii=False)
