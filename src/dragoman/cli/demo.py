"""dragoman demo: train, score and show a small model, on data that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.options import console, plain_table, print_text, program_name

if TYPE_CHECKING:
    from dragoman.demo import Demo, DemoResult


def demo(
    kind: Annotated[
        Literal["pronunciation", "dates"],
        typer.Argument(help="pronunciation (English spelling → phonemes) or dates (any format → ISO)."),
    ] = "pronunciation",
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/demo or runs/demo-dates.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long to train. Default: about two minutes.")] = None,
) -> None:
    """Train a small model in about two minutes, score it on held-out data, and show its attention."""
    from dragoman import demo as demos
    from dragoman import training
    from dragoman.cli import progress

    demo = demos.DEMOS[kind]
    folder = run or Path("runs") / demo.name
    print_text(f"{demo.title}. {demo.description}")
    config = demos.prepare(demo, folder, seconds)
    # Notices about the quality of these data are well known, and would only confuse a newcomer.
    progress.show_training(report for report in training.run(config, folder) if report.kind != "notice")
    _print_result(demos.evaluate(demo, folder), folder, demo)


def _print_result(result: DemoResult, folder: Path, demo: Demo) -> None:
    from dragoman.inspection.render.terminal import print_heat_map

    out = console()
    table = plain_table("", "source", "model output", "reference", title="Some of the held-out words")
    for is_correct, source, output, reference in result.rows:
        if is_correct:
            table.add_row("✓", source, output, "")
        else:
            table.add_row("✗", source, output, reference, style="yellow")
    out.print("", table, "")
    prediction = result.example
    if prediction.attention is not None:
        out.print(f"Attention for “{demo.example}”:")
        print_heat_map(out, prediction.attention, prediction.source_tokens, [*prediction.tokens, "</s>"])
    print_text(f"\nOn {result.count:,} held-out sources ({result.seconds:.1f} s to decode):")
    for line in result.scores:
        print_text(line)
    print_text(f"\nrun folder  {folder}")
    if result.picture is not None:
        print_text(f"picture     {result.picture}")
    print_text(f"page        {result.page}: the model itself; open it in a browser, or send it to somebody")
    print_text("try next:")
    for command in (
        f'echo "{demo.example}" | {program_name()} predict {folder}',
        f'{program_name()} inspect {folder} "{demo.example}" --png attention.png',
        f"{program_name()} train --preset {demo.preset} --set data.train=your-pairs.tsv --run runs/mine",
    ):
        print_text(f"  {command}")
