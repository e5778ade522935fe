"""dragoman recipe: ready systems for tasks, from a data set to a score that can be checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import AllowChange, Set, console, plain_table, print_text, print_to_stderr, split_commas
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown

    from dragoman.recipes.recipe import Recipe, RecipeRun, TrainingJob
    from dragoman.recipes.scoring import JobResult, ScoreValue

app = typer.Typer(help="Ready systems for tasks, with the scores they reach.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="A recipe; `dragoman recipe list` shows them.", metavar="NAME")]


@app.command("list")
def list_recipes() -> None:
    """List every recipe with its task, its data and its systems."""
    from rich.table import Column

    from dragoman import recipes

    columns = (Column(name, overflow="fold") for name in ("what", "data", "systems"))
    table = plain_table(Column("recipe", no_wrap=True), *columns)
    for name in recipes.recipe_names():
        recipe = recipes.load_recipe(name).recipe
        table.add_row(name, recipe.title, ", ".join(recipe.data), ", ".join(recipe.systems))
    console().print(table)


@app.command()
def show(name: Name) -> None:
    """Print a recipe's page: the task, the data and how to get it, the command, the scores."""
    from dragoman import recipes

    text, out = recipes.load_recipe(name).readme, console()
    if out.is_terminal:
        out.print(_render_markdown(text), crop=False)
    else:
        print(text, end="")


def _render_markdown(text: str) -> Markdown:
    """Build the Markdown of a text for a terminal; lines of code are not wrapped, so that they can be copied."""
    from rich.markdown import CodeBlock, Markdown
    from rich.segment import Segment

    class UnwrappedCode(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield from (Segment(f"    {line}\n") for line in str(self.text).rstrip().split("\n"))

    class Page(Markdown):
        elements = Markdown.elements | {"fence": UnwrappedCode, "code_block": UnwrappedCode}

    return Page(text)


@app.command("run")
def run_recipe(
    name: Name,
    data: Annotated[
        Path | None, typer.Option(help="The folder of the data set, or the one that holds it. Nothing is downloaded.")
    ] = None,
    only: Annotated[str, typer.Option(help="Systems, parts or system/part, separated by commas. Default: all.")] = "",
    seed: Annotated[str, typer.Option(help="Seeds, separated by commas. Default: the recipe's.")] = "",
    set: Set = [],
    run: Annotated[Path | None, typer.Option(help="The folder for data and runs. Default: runs/<recipe>.")] = None,
    allow_change: AllowChange = [],
    jobs: Annotated[int, typer.Option(help="Trainings that run in parallel, each in a process.", min=1)] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the expected scores; exit code 4 if below.")
    ] = False,
    ensemble: Annotated[
        bool, typer.Option("--ensemble", help="Also score the models of several seeds, or systems, as an ensemble.")
    ] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Try the recipe: a few steps on a hundred generated pairs.")
    ] = False,
) -> None:
    """Prepare the data, train, score and show the scores; the same command again resumes."""
    from dragoman import recipes

    loaded = recipes.load_recipe(name)
    if data is not None and not loaded.recipe.data:
        raise UserError(f"the recipe '{name}' generates its data; leave out --data")
    if data is not None and example:
        raise UserError("--data and --example exclude each other: --example generates its data; leave out one of them")
    if check and example:
        raise UserError("--check expects scores of full trainings on the real data; leave out --check or --example")
    if loaded.recipe.data and data is None and not example:
        raise UserError(
            f"recipe run needs --data DIR, the folder with {', '.join(loaded.recipe.data)} (or --example, without data)"
        )
    seeds = _parse_seeds(seed) or (loaded.recipe.seeds[:1] if example else ())
    selected = loaded.select_jobs(split_commas(only), seeds)
    if data is not None:
        loaded.find_data_sets(data)
    from dragoman.recipes import parallel_jobs, runner, scoring
    from dragoman.recipes.recipe import RecipeRun

    out = run or Path("runs") / (f"{name}-example" if example else name)
    recipe_run = RecipeRun(loaded, data, out, example, set, allow_change)
    runner.check_configs(recipe_run, selected)
    if jobs > 1 and len(selected) > 1:
        parallel_jobs.run_jobs(recipe_run, selected, jobs, print_to_stderr)
    else:
        for job in selected:
            _run_job(recipe_run, job)
    ensembles = scoring.score_ensembles(recipe_run, selected) if ensemble else []
    results = [*scoring.load_results(recipe_run, selected), *ensembles]
    _print_results(loaded.recipe, results)
    if ensemble and not ensembles:
        print_to_stderr("--ensemble needs several models of a system; name several seeds, as in --seed 1,2,3")
    if check:
        _check_scores(loaded.recipe, scoring.average_scores(results))


def _parse_seeds(text: str) -> list[int]:
    """Parse a comma-separated list of seeds, without duplicates; anything but whole numbers raises UserError."""
    words = split_commas(text)
    if not all(word.isdecimal() for word in words):
        raise UserError(f"--seed is '{text}'; it must be whole numbers, separated by commas")
    return list(dict.fromkeys(int(word) for word in words))  # a repeated seed is one training


def _run_job(run: RecipeRun, job: TrainingJob) -> None:
    from dragoman.cli import progress
    from dragoman.recipes import runner, scoring

    console(error=True).print(f"{run.loaded.name}: {job.name}", markup=False, style="bold")
    progress.show_training(runner.train(run, job))
    if run.recipe.systems[job.system].scored and not scoring.is_scored(run, job):
        scoring.score_job(run, job)


def _print_results(recipe: Recipe, results: Sequence[JobResult]) -> None:
    """Print a table with one line for each job and test and for each baseline, then the overlaps of test and train."""
    from rich.table import Column

    from dragoman.recipes.recipe import ENSEMBLE, TrainingJob

    labels = {name: spec.label or name for name, spec in recipe.scores.items()}
    table = plain_table(Column("job", overflow="fold"), "test", "score", "minutes", "parameters")
    baselines: set[str] = set()
    for result in results:
        seed = 1 if result["system"].endswith(ENSEMBLE) else result["seed"]  # an ensemble has no seed of its own
        job = TrainingJob(result["system"], result["part"], seed).name
        minutes, parameters = f"{result['minutes']:.1f}", f"{result['parameters']:,}"
        for test, scored in result["tests"].items():
            table.add_row(job, test, _format_scores(scored["scores"], labels), minutes, parameters)
        for name, scores in result.get("baselines", {}).items():
            if (line := f"{result['part']} {name}".strip()) not in baselines:
                baselines.add(line)
                table.add_row(line, "", _format_scores(scores, labels), "", "")
    console().print(table)
    overlaps = (f"{result['part']} {message}".strip() for result in results for message in result["overlap"].values())
    for message in dict.fromkeys(overlaps):
        print_text(message)


def _format_scores(scores: Mapping[str, ScoreValue], labels: Mapping[str, str]) -> str:
    return ", ".join(
        f"{labels.get(name, name)} {score['value']:.2f}"
        + (f" ({score['interval'][0]:.1f}–{score['interval'][1]:.1f})" if "interval" in score else "")
        for name, score in scores.items()
    )


def _check_scores(recipe: Recipe, scores: Mapping[str, Mapping[str, float]]) -> None:
    from dragoman.recipes.recipe import check_expected_scores

    checks = check_expected_scores(recipe, scores)
    for check in checks:
        verdict = "pass" if check.passed else "FAIL"
        expected = f"expected {check.expected.value:g} with a tolerance of {check.expected.tolerance:g}"
        print_text(f"{verdict}  {check.system}: {check.score} {check.value:.2f}, {expected}")
    if not checks:
        print_text("the recipe expects no scores of these jobs, so there is nothing to check")
    if not all(check.passed for check in checks):
        raise typer.Exit(4)
