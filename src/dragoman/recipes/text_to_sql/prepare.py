"""Questions to SQL over one database: GeoQuery, ATIS and Advising, each divided by question and by query.

    question split   test questions are new, their queries may be known: another way to ask
    query split      test queries are new: something else is asked

Values are filled in on both sides ("new hampshire", not state_name0), so that they must be found and copied. Quotation
marks, %, dots and parentheses stand alone on both sides: a copied word must look the same in both, and a table and its
column that training never joined are two known tokens (of GeoQuery's test, 99 % can be said so, else 95 %). Two queries
are equal when their tokens are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path

from dragoman.recipes import tables

SPLITS = {"question": 0, "query": 1}  # the column that says where a pair belongs
QUESTION, SQL = 2, 3
FILES = {"train": "train", "dev": "valid", "test": "test"}  # and "exclude": in no part of the question split


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    name, _, split = part.rpartition("-")
    rows = list(tables.rows(sets["text2sql"] / f"{name}.tsv", exactly=6))
    for theirs, ours in FILES.items():
        chosen = (row for row in rows if row[SPLITS[split]] == theirs)
        tables.write(folder / f"{ours}.tsv", ((spread(row[QUESTION]), spread(row[SQL])) for row in chosen))


def spread(text: str) -> str:
    """The text with signs between spaces."""
    return re.sub(r'(["%.()])', r" \1 ", text)


# -- made-up data ------------------------------------------------------------------------------------------------------

VALUES = ("oslo", "new delhi", "lima", "quito", "accra", "la paz", "tunis", "hanoi")
FIELDS = ("AREA", "MAYOR", "POPULATION", "FOUNDED")
ASKING = ("what is the {field} of {value}", "tell me {value} 's {field}", "{field} of {value} ?")
QUERY = 'SELECT TOWNalias0.{field} FROM TOWN AS TOWNalias0 WHERE TOWNalias0.TOWN_NAME = "{value}" ;'


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    every = [(asking, field, value) for asking in ASKING for field in FIELDS for value in VALUES]
    for name in ("geography", "atis", "advising"):
        rows = [row(rng, *one) for one in rng.sample(every, len(every))]
        tables.write_set(sets["text2sql"] / f"{name}.tsv.gz", rows)


def row(rng: random.Random, asking: str, field: str, value: str) -> tuple[str, ...]:
    """One line: both splits, question and SQL, and the same with a variable for the value."""
    by_question = rng.choices(("train", "dev", "test", "exclude"), (16, 2, 2, 1))[0]
    by_query = {"FOUNDED": "test", "MAYOR": "dev"}.get(field, "train")
    filled = [text.format(field=field.lower(), value=value) for text in (asking,)]
    filled.append(QUERY.format(field=field, value=value))
    return by_question, by_query, *filled, *(text.replace(value, "town_name0") for text in filled)
