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


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the questions and queries of the database and split that `part` names as DATABASE-SPLIT."""
    name, _, split = part.rpartition("-")
    rows = list(tables.read_rows(data_sets["text2sql"] / f"{name}.tsv", num_columns=6))
    for theirs, ours in FILES.items():
        chosen = (row for row in rows if row[SPLITS[split]] == theirs)
        tables.write_rows(
            folder / f"{ours}.tsv", ((separate_signs(row[QUESTION]), separate_signs(row[SQL])) for row in chosen)
        )


def separate_signs(text: str) -> str:
    """Put spaces around each of the signs " % . ( )."""
    return re.sub(r'(["%.()])', r" \1 ", text)


# -- generated example data --------------------------------------------------------------------------------------------

VALUES = ("oslo", "new delhi", "lima", "quito", "accra", "la paz", "tunis", "hanoi")
FIELDS = ("AREA", "MAYOR", "POPULATION", "FOUNDED")
TEMPLATES = ("what is the {field} of {value}", "tell me {value} 's {field}", "{field} of {value} ?")
QUERY = 'SELECT TOWNalias0.{field} FROM TOWN AS TOWNalias0 WHERE TOWNalias0.TOWN_NAME = "{value}" ;'


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write questions about towns with their SQL for each of the three databases, in random order."""
    every = [(template, field, value) for template in TEMPLATES for field in FIELDS for value in VALUES]
    for name in ("geography", "atis", "advising"):
        rows = [generate_row(rng, *one) for one in rng.sample(every, len(every))]
        tables.write_data_set(data_sets["text2sql"] / f"{name}.tsv.gz", rows)


def generate_row(rng: random.Random, template: str, field: str, value: str) -> tuple[str, ...]:
    """One line of a database file: split by question, split by query, question, SQL, and both with a variable."""
    by_question = rng.choices(("train", "dev", "test", "exclude"), (16, 2, 2, 1))[0]
    by_query = {"FOUNDED": "test", "MAYOR": "dev"}.get(field, "train")
    filled = [text.format(field=field.lower(), value=value) for text in (template,)]
    filled.append(QUERY.format(field=field, value=value))
    return by_question, by_query, *filled, *(text.replace(value, "town_name0") for text in filled)
