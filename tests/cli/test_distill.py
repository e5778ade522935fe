"""A student learns from what its teacher says to the training sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.inference import pipeline

from .conftest import Done

Run = Callable[..., Done]
STUDENT = """
data: {{train: {train}, valid: valid.tsv, columns: {columns}}}
model: {{width: 8, encoder: {{name: rnn, cell: gru}}, decoder: {{name: rnn, cell: gru}}}}
training: {{steps: 2, validate_every: 2, save_every: 2}}
runtime: {{device: cpu, threads: 1}}
"""


@pytest.fixture
def student(work: Path, tmp_path: Path) -> Path:
    """The config of a student of "runs/copy", in the folder of that model."""
    path = tmp_path / "student.yaml"
    path.write_text(STUDENT.format(train=work / "train.tsv", columns="[source, target]"))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def test_a_student_is_trained_on_the_teachers_outputs(student: Path, work: Path, here: Run, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("d d c b\n\nb a\nd d c b\n")
    command = ("distill", "runs/copy", student, "--run", tmp_path / "run", "--sources", tmp_path / "more.txt")
    done = here(*command, "--beam", "2")
    assert done.code == 0, done.err
    pairs = rows(tmp_path / "run/data/distilled.jsonl")
    sources = [line.split("\t")[0] for line in (work / "train.tsv").read_text().split("\n")[:-1]] + ["d d c b", "b a"]
    assert [pair["source"] for pair in pairs] == list(dict.fromkeys(source for source in sources if source.strip()))
    said = pipeline.load(work / "runs/copy", "cpu").predict([pair["source"] for pair in pairs], beam=2)
    assert [pair["target"] for pair in pairs] == [prediction.text for prediction in said]
    assert pipeline.load(tmp_path / "run").config.data.train[0].path == str(tmp_path / "run/data/distilled.jsonl")
    # The same command goes on with what is there; another teacher or beam is another student.
    before = (tmp_path / "run/data/teacher.jsonl").stat().st_mtime_ns
    assert here(*command, "--beam", "2").code == 0
    assert (tmp_path / "run/data/teacher.jsonl").stat().st_mtime_ns == before
    other = here(*command, "--beam", "3")
    assert (other.code, other.err) == (
        2,
        f"error: {tmp_path}/run: was distilled with another beam; choose another --run\n",
    )


def test_columns_keep_their_names_and_gold_pairs_may_be_learned_from_too(
    student: Path, work: Path, here: Run, tmp_path: Path
) -> None:
    lines = (work / "train.tsv").read_text().split("\n")[:20]
    for name in ("train.tsv", "valid.tsv"):
        (tmp_path / name).write_text("word\tspelled\n" + "".join(f"{line}\n" for line in lines))
    config = STUDENT.format(train=tmp_path / "train.tsv", columns="{source: word, target: spelled}")
    student.write_text(config.replace("valid.tsv", str(tmp_path / "valid.tsv")))
    done = here("distill", "runs/copy", student, "--run", tmp_path / "run", "--with-gold")
    assert done.code == 0, done.err
    pairs = rows(tmp_path / "run/data/distilled.jsonl")
    assert {tuple(pair) for pair in pairs} == {("word", "spelled")}
    train = pipeline.load(tmp_path / "run").config.data.train
    assert [corpus.path for corpus in train] == [
        str(tmp_path / "run/data/distilled.jsonl"),
        str(tmp_path / "train.tsv"),
    ]


def test_what_cannot_be_distilled_is_one_sentence(student: Path, here: Run, tmp_path: Path) -> None:
    def error(*args: str | Path) -> str:
        done = here("distill", *args, "--run", tmp_path / "run")
        assert done.code == 2
        assert not (tmp_path / "run").exists()
        return done.err

    assert "there is no such model" in error("runs/nothing", student)
    assert "distill needs the student's config" in error("runs/copy")
    objective = ("--set", "training.objective=denoising", "--set", "tokenizer.joint=true")
    assert "distill needs a student that learns from pairs" in error("runs/copy", student, *objective)
    columns = ("--set", "data.columns=[source,source,target]")
    assert "distill needs one column of sources" in error("runs/copy", student, *columns)
