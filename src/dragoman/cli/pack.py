"""dragoman pack: a trained model as one file to share, with a card that says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.core.errors import UserError

MAX_NOTES_BYTES = 100_000
MAX_LINE = 500  # characters of --name and --license


def pack(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, as in hungarian.zip.")],
    name: Annotated[str | None, typer.Option(help="The title of the card. Default: the run's name.")] = None,
    license: Annotated[
        str | None, typer.Option(help="What others may do with the model, as in 'CC BY 4.0'.", metavar="TEXT")
    ] = None,
    notes: Annotated[
        Path | None, typer.Option(help="A Markdown file with more about the model, for the card.", metavar="FILE.md")
    ] = None,
    examples: Annotated[
        int, typer.Option(help="How many validation pairs the card shows; 0 keeps them private.", min=0, max=100)
    ] = 5,
    device: options.Device = "auto",
    plugins: options.Plugins = [],
    files: options.MediaFolders = [],
) -> None:
    """Pack a model into one zip to share: what is needed to use it, its scores on held-out pairs, and examples.

    Every command takes the zip as MODEL. It names your files without their folders.
    """
    texts = {"name": name, "license": license}
    for option, text in texts.items():
        if text is not None and (not text.strip() or len(text) > MAX_LINE or not text.isprintable()):
            raise UserError(f"--{option} must be one line of 1 to {MAX_LINE} characters, found {text[:60]!r}")
    more = None if notes is None else read_notes(notes)
    options.load_plugins(plugins)
    from dragoman.checkpoint import kept_examples, model_folder, packing
    from dragoman.inference import pipeline
    from dragoman.reports.card import CARD, DOCUMENT, render_card
    from dragoman.reports.card_building import build_card

    folder = model_folder.resolve(Path(model))  # one model, no ensemble
    loaded = pipeline.load(model, device).with_media_roots(files)
    card = build_card(loaded, Path(model), name=name, license=license, notes=more, examples=examples)
    documents = {CARD: card.to_json(), DOCUMENT: render_card(card, output.name).encode()}
    packing.pack(model, output, documents | kept_examples.keep_first(folder, examples))
    for score in card.scores:
        options.print_text(str(score))
    size = f" ({output.stat().st_size / 1e6:,.1f} MB)" if output.is_file() else ""
    missing = "" if card.license else "; its card states no license: say --license"
    options.print_to_stderr(f"wrote {output}{size}{missing}")
    options.print_to_stderr(f"try it: {options.predict_command(output, plugins, takes_text=not loaded.reads_media)}")


def read_notes(path: Path) -> str:
    """Return the text of the notes; UserError if it cannot be read."""
    from dragoman.core.files import read_file

    try:
        return read_file(path, MAX_NOTES_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise UserError(f"--notes {path}: cannot be read: {reason}") from None
