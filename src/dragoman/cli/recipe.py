"""dragoman recipe: ready systems for tasks, from a data set to a score that can be checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import AllowChange, Set, console

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown

    from dragoman.recipes.recipe import Job, Recipe, Setting

app = typer.Typer(help="Ready systems for tasks, with the scores they reach.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="A recipe; `dragoman recipe list` shows them.", metavar="NAME")]


@app.command("list")
def show_all() -> None:
    """Every recipe: its task, the data it reads, its systems."""
    from rich.table import Column, Table

    from dragoman import recipes

    whole = [Column("recipe", no_wrap=True), *(Column(name, overflow="fold") for name in ("what", "data", "systems"))]
    table = Table(*whole, box=None, pad_edge=False)
    for name in recipes.names():
        recipe = recipes.open_recipe(name).recipe
        table.add_row(name, recipe.title, ", ".join(recipe.data), ", ".join(recipe.systems))
    console().print(table)


@app.command()
def show(name: Name) -> None:
    """A recipe's page: the task, the data and how to get it, the command, the scores."""
    from dragoman import recipes

    text, out = recipes.open_recipe(name).readme, console()
    if out.is_terminal:
        out.print(_rendered(text), crop=False)
    else:
        print(text, end="")


def _rendered(text: str) -> Markdown:
    """Markdown for a terminal; lines of code keep their length, for commands are there to be copied."""
    from rich.markdown import CodeBlock, Markdown
    from rich.segment import Segment

    class UnwrappedCode(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield from (Segment(f"    {line}\n") for line in str(self.text).rstrip().split("\n"))

    class Page(Markdown):
        elements = Markdown.elements | {"fence": UnwrappedCode, "code_block": UnwrappedCode}

    return Page(text)


@app.command()
def run(
    name: Name,
    data: Annotated[
        Path | None, typer.Option(help="The folder of the data set, or the one that holds it (nothing is fetched).")
    ] = None,
    only: Annotated[str, typer.Option(help="Systems, parts or system/part, separated by commas. Default: all.")] = "",
    seed: Annotated[str, typer.Option(help="Seeds, separated by commas. Default: the recipe's.")] = "",
    set: Set = [],
    run: Annotated[Path | None, typer.Option(help="Where to work. Default: runs/<recipe>.")] = None,
    allow_change: AllowChange = [],
    jobs: Annotated[int, typer.Option(help="Trainings side by side, each a process.", min=1)] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the expected scores; exit code 4 if below.")
    ] = False,
    together: Annotated[
        bool, typer.Option("--together", help="Score the models of several seeds, or systems, as one, besides.")
    ] = False,
    example: Annotated[
        bool, typer.Option("--example", help="A few steps on a hundred made-up pairs, to see the whole way.")
    ] = False,
) -> None:
    """Prepare the data, train, score and show; the same command again goes on where it was stopped."""
    from dragoman import recipes
    from dragoman.core.errors import UserError

    opened = recipes.open_recipe(name)
    if data is not None and not opened.recipe.data:
        raise UserError(f"the recipe '{name}' makes its data up and reads none; leave out --data")
    if data is not None and example:
        raise UserError("--data and --example exclude each other: --example makes its data up; leave one of them out")
    if check and example:
        raise UserError("--check expects scores of whole trainings on the real data; leave out --check, or --example")
    if opened.recipe.data and data is None and not example:
        raise UserError(
            f"recipe run needs --data DIR, the folder with {', '.join(opened.recipe.data)} (or --example, without it)"
        )
    chosen = opened.jobs(_words(only), _seeds(seed) or (opened.recipe.seeds[:1] if example else ()))
    if data is not None:
        opened.sets(data)
    from dragoman.recipes import processes, scoring
    from dragoman.recipes import runner as running
    from dragoman.recipes.recipe import Setting

    where = Path("runs") / (f"{name}-example" if example else name)
    setting = Setting(opened, data, run or where, example, set, allow_change)
    running.check_configs(setting, chosen)
    if jobs > 1 and len(chosen) > 1:
        processes.side_by_side(setting, chosen, jobs, _say)
    else:
        for job in chosen:
            _one(setting, job)
    found, as_one = scoring.results(setting, chosen), scoring.together(setting, chosen) if together else []
    _table(opened.recipe, found + as_one)
    if together and not as_one:
        _say(
            "--together: one model of each system is no group to answer as one; name several seeds, as in --seed 1,2,3"
        )
    if check:
        _check(opened.recipe, scoring.summary(found + as_one))


def _say(text: str) -> None:
    console(error=True).print(text, markup=False, soft_wrap=True)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _seeds(text: str) -> list[int]:
    from dragoman.core.errors import UserError

    if not all(word.isdecimal() for word in _words(text)):
        raise UserError(f"--seed is '{text}'; it must be whole numbers, separated by commas")
    return list(dict.fromkeys(int(word) for word in _words(text)))  # a seed that is named twice is one training


def _one(setting: Setting, job: Job) -> None:
    from dragoman.cli import progress
    from dragoman.recipes import runner as running
    from dragoman.recipes import scoring

    console(error=True).print(f"{setting.opened.name}: {job.name}", markup=False, style="bold")
    progress.show(running.train(setting, job))
    if setting.opened.recipe.systems[job.system].scored and not scoring.scored(setting, job):
        scoring.score(setting, job)


def _table(recipe: Recipe, found: list[dict[str, Any]]) -> None:
    """One line for each job and test, and one for each baseline of a part."""
    from rich.table import Column, Table

    from dragoman.recipes.recipe import TOGETHER, Job

    labels = {name: figure.label or name for name, figure in recipe.scores.items()}
    table = Table(Column("job", overflow="fold"), "test", "score", "minutes", "parameters", box=None, pad_edge=False)
    told: set[str] = set()
    for one in found:
        seed = 1 if one["system"].endswith(TOGETHER) else one["seed"]  # several have no seed of their own
        job = Job(one["system"], one["part"], seed).name
        for test, scored in one["tests"].items():
            table.add_row(
                job, test, _figures(scored["scores"], labels), f"{one['minutes']:.1f}", f"{one['parameters']:,}"
            )
        for name, scores in one.get("baselines", {}).items():
            if (line := f"{one['part']} {name}".strip()) not in told:
                told.add(line)
                table.add_row(line, "", _figures(scores, labels), "", "")
    console().print(table)
    shared = (f"{one['part']} {message}".strip() for one in found for message in one["overlap"].values())
    for message in dict.fromkeys(shared):
        console().print(message, markup=False, soft_wrap=True)


def _figures(scores: dict[str, Any], labels: dict[str, str]) -> str:
    return ", ".join(
        f"{labels.get(name, name)} {one['value']:.2f}"
        + (f" ({one['interval'][0]:.1f}–{one['interval'][1]:.1f})" if "interval" in one else "")
        for name, one in scores.items()
    )


def _check(recipe: Recipe, scores: dict[str, dict[str, float]]) -> None:
    from dragoman.recipes.recipe import passed

    rows = passed(recipe, scores)
    for where, name, reached, wanted, good in rows:
        verdict = "pass" if good else "FAIL"
        expected = f"expected {wanted.value:g} with a tolerance of {wanted.tolerance:g}"
        console().print(f"{verdict}  {where}: {name} {reached:.2f}, {expected}", markup=False, soft_wrap=True)
    if not rows:
        console().print("nothing was expected of these jobs, so there is nothing to check", markup=False)
    if not all(good for *_, good in rows):
        raise typer.Exit(4)
