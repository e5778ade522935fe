"""The card of a packed model: what it does, what it was trained on, how good it is, and how to use it.

    ModelCard ─→ card.json, for machines       card_building.py makes one from a run
              └→ MODEL.md, for people

A card names files without their folders. One that is read may be a stranger's: it is checked as strictly as a config.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from dragoman.checkpoint import archive, model_folder
from dragoman.core.errors import ModelError
from dragoman.evaluation.significance import format_score

CARD, DOCUMENT = "card.json", "MODEL.md"
MAX_CARD_BYTES = 2**20


class CardEntry(BaseModel):
    """A part of a card: its keys are checked, and those of later versions are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class DataPart(CardEntry):
    """One file of pairs, and what it was for."""

    role: str  # training, validation, test
    file: str
    pairs: int | None = None  # None: the file was not there when the model was packed


class CardScore(CardEntry):
    """A metric with its 95 % bootstrap interval."""

    label: str
    name: str
    value: float
    low: float
    high: float
    unit: str
    higher_is_better: bool
    signature: str | None = None

    def __str__(self) -> str:
        return format_score(self.label, self.value, self.low, self.high, self.unit)


class CardExample(CardEntry):
    """A source that the model was not trained on, its target, and what the model makes of it."""

    source: str
    target: str
    output: str
    second_source: str = ""


class ModelCard(CardEntry):
    """All that a card says."""

    name: str
    task: str
    license: str | None = None
    notes: str = ""
    architecture: str
    parameters: int
    tokenizers: str
    languages: list[str] = []
    columns: str
    seed: int
    data: list[DataPart]
    division: str = ""  # how the pairs were divided into these parts
    scores: list[CardScore]
    headline: str = ""  # the result in one sentence
    measured: str  # how, and on what
    examples: list[CardExample]
    versions: dict[str, str]
    plugins: list[str] = []  # modules with parts of the maker's own, which are not in the zip
    reads_files: bool = False  # its sources are images, sounds …

    def to_json(self) -> bytes:
        """The card as a file of JSON."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def read_card(model: Path) -> ModelCard | None:
    """Read the card of a packed model, or of a folder that it was unpacked to; None if there is none."""
    path = model / CARD
    if not (archive.has_member(path) if archive.is_archive(model) else path.is_file()):
        return None
    with model_folder.open_model_file(path) as (file, size):
        if size > MAX_CARD_BYTES:
            raise ModelError(f"{path}: has {size:,} bytes; a card has {MAX_CARD_BYTES:,} at most")
        data = file.read(MAX_CARD_BYTES)
    try:
        return ModelCard.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ModelError(f"{path}: is no card of a model: {where}: {first['msg']}"[:400]) from None


# -- for people --------------------------------------------------------------------------------------------------------


def render_card(card: ModelCard, file: str) -> str:
    """Render a card as Markdown; `file` is the name of the zip."""
    return "\n".join(_card_lines(card, shlex.quote(file), file))


def _card_lines(card: ModelCard, argument: str, file: str) -> Iterator[str]:
    yield f"# {one_line(card.name)}"
    yield from ("", card.task, "")
    license = one_line(card.license) if card.license else "not stated; ask whoever gave you this file"
    yield f"- License: {license}"
    yield f"- Model: {card.architecture}, {card.parameters:,} parameters; {card.tokenizers}"
    if card.languages:
        yield f"- Target languages: {', '.join(card.languages)}"
    yield f"- Made with: {', '.join(f'{name} {version}' for name, version in card.versions.items())}"
    if card.plugins:
        yield f"- Needs parts that are not in this file: {', '.join(card.plugins)}; name them with `--plugin`"
    if card.notes.strip():
        yield from ("", card.notes.strip())
    division = f" Divided: {one_line(card.division)}." if card.division else ""
    yield from ("", "## Data", "", f"Columns: {card.columns}; seed {card.seed}.{division}", "")
    yield from ("| part | file | pairs |", "|---|---|--:|")
    for part in card.data:
        count = "not known" if part.pairs is None else f"{part.pairs:,}"
        yield f"| {part.role} | `{one_line(part.file)}` | {count} |"
    headline = f"{one_line(card.headline)}." if card.headline else ""
    yield from ("", "## Scores", "", f"{headline} {card.measured}".strip())
    if card.scores:
        yield from ("", "| score | value | 95 % interval | better is |", "|---|--:|---|---|")
    for score in card.scores:
        direction = "higher" if score.higher_is_better else "lower"
        unit = " %" if score.unit == "%" else ""
        title = score.name if score.label.lower() == score.name.lower() else f"{score.label}: {score.name}"
        yield f"| {title} | {score.value:.1f}{unit} | {score.low:.1f} to {score.high:.1f} | {direction} |"
    signatures = [f"{score.label} `{score.signature}`" for score in card.scores if score.signature]
    if signatures:
        yield from ("", f"Signatures: {', '.join(signatures)}")
    yield from _example_lines(card)
    yield from _usage_lines(card, argument, file)


def _example_lines(card: ModelCard) -> Iterator[str]:
    if not card.examples:
        return
    yield from ("", "## Examples", "", "Sources that the model was not trained on, and its outputs:", "")
    for example in card.examples:
        source = " + ".join(one_line(text) for text in (example.source, example.second_source) if text)
        wrong = "" if example.output == example.target else f"   (expected: {one_line(example.target)})"
        yield f"    {source} → {one_line(example.output)}{wrong}"


def _usage_lines(card: ModelCard, argument: str, file: str) -> Iterator[str]:
    example = card.examples[0].source if card.examples else "some source"
    plugin = " --plugin FILE.py" if card.plugins else ""
    languages = f" --target-lang {shlex.quote(card.languages[0])}" if card.languages else ""
    start, end = ("", " FILE") if card.reads_files else (f"echo {shlex.quote(one_line(example))} | ", "")
    yield from ("", "## How to use", "", "Install Dragoman, then use this file as it is:", "")
    yield f"    {start}dragoman predict {argument}{end}{languages}{plugin}"
    yield f"    dragoman evaluate {argument} PAIRS.tsv{plugin}"
    yield f"    dragoman serve {argument}{plugin}"
    yield from ("", "From Python:", "")
    yield from ("    import dragoman", f"    model = dragoman.load({file!r})")
    yield f"    print(model.predict([{one_line(example)!r}])[0].text)"
    yield from ("", f"Unpacked, it is a model folder. `{CARD}` has this page for machines.", "")


def one_line(text: str) -> str:
    """A text without line breaks and control characters, which are spelled as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
