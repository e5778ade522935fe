"""dragoman demo: train, score and show, on data that comes with the project or its extra."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import choice, console, program

if TYPE_CHECKING:
    from dragoman.demo import Shown


def demo(
    kind: Annotated[
        str, typer.Argument(help="pronunciation (English spelling → phonemes) or dates (any → ISO).")
    ] = "pronunciation",
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/demo or runs/demo-dates.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long to train. Default: about two minutes.")] = None,
) -> None:
    """Train a small model in about two minutes, score it on held-out data, and show what it looked at."""
    choice(kind, ("pronunciation", "dates"), "demo")
    from dragoman import demo as demos
    from dragoman.cli import progress

    chosen = demos.DEMOS[kind]
    folder = run or Path("runs") / chosen.name
    out = console()
    out.print(f"{chosen.title}. {chosen.story}", soft_wrap=True)
    config = demos.prepare(chosen, folder, seconds)
    # What the data doctor noticed is well known of these data, and would only puzzle a newcomer.
    progress.show(report for report in demos.train(config, folder) if report.kind != "notice")
    _show(demos.show(chosen, config, folder), folder, chosen)


def _show(shown: Shown, folder: Path, chosen: object) -> None:
    from rich.table import Table

    from dragoman.demo import Demo
    from dragoman.inspection.render.terminal import heat_map

    assert isinstance(chosen, Demo)
    out = console()
    table = Table(
        "",
        "source",
        "model says",
        "reference",
        box=None,
        pad_edge=False,
        title="Some of the held-out words",
        title_justify="left",
    )
    for right, source, result, reference in shown.rows:
        table.add_row(
            "✓" if right else "✗", source, result, "" if right else reference, style=None if right else "yellow"
        )
    out.print()
    out.print(table)
    out.print()
    prediction = shown.example
    if prediction.attention is not None:
        out.print(f"What it looked at for “{chosen.example}”:")
        labels = prediction.source_tokens, [*prediction.tokens, "</s>"]
        out.print(heat_map(prediction.attention, *labels, color=out.color_system is not None))
    out.print()
    out.print(f"On {shown.count:,} held-out sources ({shown.seconds:.1f} s to decode):")
    for line in shown.scores:
        out.print(line, markup=False, soft_wrap=True)
    out.print()
    out.print(f"run folder  {folder}", soft_wrap=True)
    if shown.picture is not None:
        out.print(f"picture     {shown.picture}", soft_wrap=True)
    out.print("try next:")
    for command in (
        f'echo "{chosen.example}" | {program()} predict {folder}',
        f'{program()} inspect {folder} "{chosen.example}" --png looked-at.png',
        f"{program()} train --preset {chosen.preset} --set data.train=your-pairs.tsv --run runs/mine",
    ):
        out.print(f"  {command}", markup=False, soft_wrap=True)
