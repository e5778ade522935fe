"""dragoman demo: train, score and show a small model, on data that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import check_choice, console, program_name

if TYPE_CHECKING:
    from dragoman.demo import Demo, DemoResult


def demo(
    kind: Annotated[
        str, typer.Argument(help="pronunciation (English spelling → phonemes) or dates (any format → ISO).")
    ] = "pronunciation",
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/demo or runs/demo-dates.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long to train. Default: about two minutes.")] = None,
) -> None:
    """Train a small model in about two minutes, score it on held-out data, and show its attention."""
    check_choice(kind, ("pronunciation", "dates"), "demo")
    from dragoman import demo as demos
    from dragoman.cli import progress

    demo = demos.DEMOS[kind]
    folder = run or Path("runs") / demo.name
    out = console()
    out.print(f"{demo.title}. {demo.description}", soft_wrap=True)
    config = demos.prepare(demo, folder, seconds)
    # Notices about the quality of these data are well known, and would only confuse a newcomer.
    progress.show_training(report for report in demos.train(config, folder) if report.kind != "notice")
    _print_result(demos.evaluate(demo, folder), folder, demo)


def _print_result(result: DemoResult, folder: Path, demo: Demo) -> None:
    """Print example results, the attention over one source, the scores, the paths and the commands to try next."""
    from rich.table import Table

    from dragoman.inspection.render.terminal import render_heat_map

    out = console()
    table = Table(
        "",
        "source",
        "model output",
        "reference",
        box=None,
        pad_edge=False,
        title="Some of the held-out words",
        title_justify="left",
    )
    for is_correct, source, output, reference in result.rows:
        table.add_row(
            "✓" if is_correct else "✗",
            source,
            output,
            "" if is_correct else reference,
            style=None if is_correct else "yellow",
        )
    out.print()
    out.print(table)
    out.print()
    prediction = result.example
    if prediction.attention is not None:
        out.print(f"Attention for “{demo.example}”:")
        labels = prediction.source_tokens, [*prediction.tokens, "</s>"]
        out.print(render_heat_map(prediction.attention, *labels, color=out.color_system is not None))
    out.print()
    out.print(f"On {result.count:,} held-out sources ({result.seconds:.1f} s to decode):")
    for line in result.scores:
        out.print(line, markup=False, soft_wrap=True)
    out.print()
    out.print(f"run folder  {folder}", soft_wrap=True)
    if result.picture is not None:
        out.print(f"picture     {result.picture}", soft_wrap=True)
    out.print("try next:")
    for command in (
        f'echo "{demo.example}" | {program_name()} predict {folder}',
        f'{program_name()} inspect {folder} "{demo.example}" --png attention.png',
        f"{program_name()} train --preset {demo.preset} --set data.train=your-pairs.tsv --run runs/mine",
    ):
        out.print(f"  {command}", markup=False, soft_wrap=True)
