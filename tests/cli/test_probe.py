"""dragoman probe on a model that was trained to copy: what it finds, prints, writes and exits with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from dragoman.cli import probe
from dragoman.inspection.views.probes import LIMITS

from .conftest import Done

RUN = "runs/copy"
LOOSE = [f"--limit={name}=1" for name in LIMITS]  # nothing can fail


def checks_of(done: Done) -> dict[str, dict[str, Any]]:
    assert "Traceback" not in done.err
    return {check["name"]: check for check in json.loads(done.out)["checks"]}


def test_a_model_that_copies_fails_where_copying_is_wrong_and_passes_where_it_is_right(
    work: Path, tmp_path: Path, here: Callable[..., Done]
) -> None:
    sources = [line.split("\t")[0] for line in (work / "test.tsv").read_text(encoding="utf-8").split("\n") if line]
    other = tmp_path / "other.tsv"
    other.write_text("".join(f"{source}\tquite another\n" for source in sources), encoding="utf-8")
    results = here("predict", RUN, input="\n".join(sources).encode()).out.split("\n")
    copies = sum(a == b for a, b in zip(results, sources, strict=False))
    assert copies
    done = here("probe", RUN, *LOOSE, "--limit", "copying=0", "--data", other, "--json")
    assert (done.code, done.err) == (4, "error: 1 of 8 checks did not pass: copying\n")
    found = checks_of(done)["copying"]
    assert (found["failed"], found["of"], found["limit"]) == (True, 30, 0.0)
    assert copies <= found["count"] <= 30
    right = here("probe", RUN, *LOOSE, "--limit", "copying=0", "--data", "test.tsv", "--json")
    assert (right.code, right.err) == (0, "")
    found = checks_of(right)["copying"]
    assert (found["failed"], found["count"], found["of"]) == (False, 0, 30)
    assert checks_of(here("probe", RUN, *LOOSE, "--data", "test.tsv", "--count", "7", "--json"))["empty"]["of"] == 7
    assert checks_of(here("probe", RUN, *LOOSE, "--count", "9", "--json"))["empty"]["of"] == 9


def test_the_table_says_what_passed_and_shows_examples(here: Callable[..., Done], tmp_path: Path) -> None:
    pairs, neutral, items = tmp_path / "swaps.tsv", tmp_path / "neutral.txt", tmp_path / "items.txt"
    pairs.write_text("a\tb\tz\tz\nb\tc\n", encoding="utf-8")  # a copying model never says z
    neutral.write_text("a{}\n{}b\n", encoding="utf-8")
    items.write_text("a\nc\n", encoding="utf-8")
    asked = ["--pairs", pairs, "--neutral", neutral, "--items", items, "--pronouns", "zz,~ab", "--count", "20"]
    done = here("probe", RUN, *LOOSE, "--limit", "pairs=0.4", *asked)
    assert done.code == 4
    assert "pairs" in done.err
    rows = {line.split()[0]: line.split()[1:] for line in done.out.split("\n")[1 : len(LIMITS) + 1]}
    assert list(rows) == list(LIMITS)
    assert rows["pairs"][1:] == ["40.0%", "failed"]
    assert [row[-1] for name, row in rows.items() if name != "pairs"] == ["passed"] * (len(LIMITS) - 1)
    assert re.search(r"a → .*\('z' is missing and 'z' is missing\)|a → .*the same output", done.out)
    assert re.search(r"item +zz +ab +none", done.out)
    assert rows["neutral"][0] == "0.0%"


def test_the_page_holds_the_same_as_the_json(here: Callable[..., Done], tmp_path: Path) -> None:
    html = tmp_path / "probes.html"
    done = here("probe", RUN, *LOOSE, "--count", "5", "--html", html, "--json")
    assert done.code == 0
    assert str(html) in done.err.replace("\n", "")
    for check in checks_of(done).values():
        assert json.dumps(check["sentence"])[1:-1] in html.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--limit", "copying"], "'copying' is not NAME=FRACTION"),
        (["--limit", "copying=many"], "NAME=FRACTION"),
        (["--limit", "copyin=0.1"], "did you mean 'copying'"),
        (["--limit", "copying=10"], "from 0 to 1"),
        (["--pairs", "none.tsv"], "none.tsv: there is no such file"),
        (["--neutral", "copy.yaml"], "copy.yaml:2: found ["),
        (["--items", "test.tsv"], "need --neutral"),
        (["--data", "none.tsv"], "none.tsv"),
    ],
)
def test_what_cannot_be_used_is_said_and_the_exit_code_is_2(
    here: Callable[..., Done], given: list[str], found: str
) -> None:
    done = here("probe", RUN, *given)
    assert (done.code, done.out) == (2, "")
    assert found in done.err


def test_the_help_names_every_limit_as_it_is() -> None:
    text = str(get_type_hints(probe.probe, include_extras=True)["limit"].__metadata__[0].help)
    assert {name: float(share) for name, share in re.findall(r"([a-z-]+)=([0-9.]*[0-9])", text)} == LIMITS
