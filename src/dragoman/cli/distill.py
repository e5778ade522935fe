"""dragoman distill: a student is trained on what a teacher says to its training sources.

    sources of data.train ─teacher's beam search→ RUN/data/distilled.jsonl ─train→ RUN

Sequence-level knowledge distillation (Kim and Rush 2016): a teacher's outputs are more regular than people's, so a
small model learns them better.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import options
from dragoman.cli.options import load_plugins, print_to_stderr
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.core.types import Example

ROLES = ("source", "second_source", "source_lang", "target_lang")  # of an example's fields, as JSON lines name them


def distill(
    teacher: Annotated[str, typer.Argument(help="A trained MODEL, or MODEL+MODEL.", metavar="TEACHER")],
    config: Annotated[str | None, typer.Argument(help="The student's config (.yaml).", metavar="[CONFIG]")] = None,
    preset: Annotated[str | None, typer.Option(help="A named config to build on; see `dragoman list presets`.")] = None,
    set: options.Set = [],
    run: Annotated[Path | None, typer.Option(help="The student's run folder. Default: runs/<name>.")] = None,
    sources: Annotated[
        list[str], typer.Option("--sources", help="Further texts for the teacher, a line each; may be repeated.")
    ] = [],
    with_gold: Annotated[
        bool, typer.Option("--with-gold", help="The student learns from the pairs of data.train, too.")
    ] = False,
    beam: Annotated[int, typer.Option(help="The teacher's beam.", min=1)] = 5,
    device: options.Device = "auto",
    workers: options.Workers = None,
    precision: options.Precision = None,
    plugins: options.Plugins = [],
) -> None:
    """Train a student on a teacher's outputs. The same command again resumes what was stopped or killed."""
    if config is None and preset is None:
        raise UserError("distill needs the student's config file or --preset NAME (see `dragoman list presets`)")
    load_plugins(plugins)
    from dragoman import config as configs
    from dragoman import training
    from dragoman.checkpoint import manifest, model_paths
    from dragoman.cli import progress
    from dragoman.cli.predict import predict
    from dragoman.core import files
    from dragoman.core.generation import GenerationOptions

    student = configs.load(config, preset, set).config
    check_student(student)
    folder = (run or Path("runs") / student.name).absolute()
    data = folder / "data"
    made_of = {
        "teacher": [manifest.fingerprint(path) for path in model_paths.parse_model_paths(teacher)],
        "train": [corpus.path for corpus in student.data.train],
        "sources": sources,
        "beam": beam,
    }
    check_same(data / "distilled.json", made_of)
    if not (data / "distilled.jsonl").exists():
        files.make_folder(data)
        files.write_file(data / "distilled.json", json.dumps(made_of).encode())
        count = write_lines(data / "sources.jsonl", source_lines(student, sources))
        print_to_stderr(f"the teacher predicts {count:,} sources")
        given = GenerationOptions.model_validate({"beam": beam})
        output = data / "teacher.jsonl"
        predict(
            teacher,
            [str(data / "sources.jsonl")],
            output=output,
            device=device,
            workers=workers,
            precision=precision,
            generation=given,
        )
        kept = write_lines(data / "distilled.jsonl", pair_lines(output, student))
        if kept < count:
            print_to_stderr(f"{count - kept:,} sources have no output and are left out")
    corpora = [str(data / "distilled.jsonl"), *([c.model_dump() for c in student.data.train] if with_gold else [])]
    changed = student.model_copy(update={"data": student.data.model_copy(update={"train": []})})
    value = changed.model_dump(mode="json")
    value["data"]["train"] = corpora
    progress.show_training(training.run(configs.validate(value, str(config or preset)), folder))
    print_to_stderr(f"try it: {options.predict_command(folder, plugins)}")


def check_student(student: Config) -> None:
    """Raise UserError unless a student learns from pairs of texts with one column of sources."""
    from dragoman.data.columns import Columns

    if student.training.objective.name != "pairs" or student.model.frontend.name != "tokens":
        raise UserError("distill needs a student that learns from pairs of texts (training.objective: pairs)")
    if Columns.parse(student.data.columns).roles.count("source") > 1:
        raise UserError("distill needs one column of sources: join them in a file of their own")


def check_same(path: Path, made_of: dict[str, Any]) -> None:
    """Raise UserError if a folder has been distilled from something else."""
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name, value in made_of.items() if before.get(name) != value]
        if changed:
            raise UserError(f"{path.parent.parent}: was distilled with another {changed[0]}; choose another --run")


def source_lines(student: Config, sources: Iterable[str]) -> Iterator[str]:
    """Each distinct source of the training pairs and of further files, as a JSON line."""
    from dragoman.core.types import Example
    from dragoman.data.lines import read_lines
    from dragoman.data.readers import read_pairs

    def examples() -> Iterator[Example]:
        for corpus in student.data.train:
            yield from read_pairs(corpus.path, columns=student.data.columns, on_error=student.data.on_error)
        for path in sources:
            yield from (Example(line.text, file=path, line=line.number) for line in read_lines(path))

    seen: set[tuple[str | None, ...]] = set()
    for example in examples():
        values = tuple(getattr(example, role) for role in ROLES)
        if example.source.strip() and values not in seen:
            seen.add(values)
            yield json.dumps(
                {role: value for role, value in zip(ROLES, values, strict=True) if value}, ensure_ascii=False
            )


def pair_lines(output: Path, student: Config) -> Iterator[str]:
    """The teacher's pairs as JSON lines with the names that the student's columns have; without blank outputs."""
    from dragoman.data.columns import Columns

    columns = Columns.parse(student.data.columns)
    names = dict(zip(columns.roles, columns.names or columns.roles, strict=True))
    with output.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            row = json.loads(line)
            if row["prediction"].strip():
                row["target"] = row.pop("prediction")
                yield json.dumps({names.get(role, role): value for role, value in row.items()}, ensure_ascii=False)


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a file, which appears as a whole; returns how many there are."""
    from dragoman.core import files

    count = 0
    with files.open_atomic(path) as file:
        for count, line in enumerate(lines, 1):  # noqa: B007 - the last number
            file.write(f"{line}\n".encode())
    return count
