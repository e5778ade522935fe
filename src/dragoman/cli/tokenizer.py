"""dragoman tokenizer explain: how words are split, merge by merge, by a model or by what a text teaches."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Imports, choice, console, import_all

if TYPE_CHECKING:
    from dragoman.text.bpe_trace import Explanation, Merge, Step

FEW = 10  # merges learned from a text where no limit is given

app = typer.Typer(help="Look into tokenizers.", no_args_is_help=True)


@app.callback()
def root() -> None:
    pass


@app.command()
def explain(
    path: Annotated[
        str,
        typer.Argument(help="A run or model folder, or a text file to learn merges from.", metavar="MODEL|FILE"),
    ],
    words: Annotated[list[str] | None, typer.Argument(help="What to split.", metavar="WORD…")] = None,
    merges: Annotated[
        int | None, typer.Option(min=1, help=f"Merges to learn from FILE; {FEW} where no limit is given.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Learn until the vocabulary has this many symbols.")] = None,
    ratio: Annotated[
        float | None, typer.Option(min=1.0, help="Learn until the text has this many times fewer symbols.")
    ] = None,
    side: Annotated[str | None, typer.Option(help="source or target: which tokenizer of MODEL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    modules: Imports = [],
) -> None:
    """Show how words are split: by the tokenizer of a model, or by byte-pair merges learned from a text file."""
    from dragoman.core.errors import UserError
    from dragoman.data.lines import unreadable

    import_all(modules)
    limits = {"merges": merges, "size": size, "ratio": ratio}
    if path != "-" and not os.path.exists(path):
        raise UserError(f"{path}: this is no model folder, and {unreadable(Path(path))}")
    if not os.path.isdir(path):
        if side is not None:
            raise UserError(f"{path}: --side is for models, and this is a text file")
        _learn(path, words or [], {key: value for key, value in limits.items() if value is not None}, as_json)
        return
    for key, value in limits.items():
        if value is not None:
            raise UserError(f"{path}: --{key} is for text files, and this is a folder, whose tokenizer has learned")
    if not words:
        raise UserError("say which words to split, as in: dragoman tokenizer explain MODEL newest widest")
    _open(path, words, choice(side or "source", ("source", "target"), "--side"), as_json)


# -- a text file -------------------------------------------------------------------------------------------------------


def _learn(file: str, words: Sequence[str], limits: dict[str, Any], as_json: bool) -> None:
    from dragoman.core.errors import DataError
    from dragoman.data.lines import read_lines
    from dragoman.text.bpe_trace import alphabet, bracketed, count, learn, split
    from dragoman.text.normalization import normalize, well_formed

    counts = count(normalize(line.text, "nfc") for line in read_lines(file))
    if not counts:
        raise DataError("there is no word to learn from", file)
    found = learn(counts, **(limits or {"merges": FEW}))
    wanted = [word for text in words for word in normalize(well_formed(text), "nfc").split()]
    splits = {word: split(word, found) for word in wanted}
    if as_json:
        value = {
            "file": file,
            "words": counts.total(),
            "size": len(alphabet(counts)),
            "merges": [merge._asdict() | {"symbol": merge.symbol} for merge in found],
            "splits": [
                {"word": word, "reading": bracketed(steps[-1].symbols), "steps": [step._asdict() for step in steps]}
                for word, steps in splits.items()
            ],
        }
        print(json.dumps(value, indent=1, ensure_ascii=False))
        return
    out = console()
    out.print(
        f"{counts.total():,} words, {len(counts):,} of them different; {len(alphabet(counts)):,} symbols at first"
    )
    out.print(_merges(found) if found else "no merge: the limit is reached already")
    for word, steps in splits.items():
        out.print(f"\n{word} → {bracketed(steps[-1].symbols)}", markup=False, soft_wrap=True)
        _print_steps(steps)


def _merges(found: Sequence[Merge]) -> Any:
    """The merges in order, as a table."""
    from rich.table import Column, Table
    from rich.text import Text

    right = [Column(name, justify="right") for name in ("times", "symbols", "ratio")]
    table = Table(Column("merge", justify="right"), "pair", "new symbol", *right, box=None, pad_edge=False)
    for number, merge in enumerate(found, 1):
        cells = " + ".join(merge.pair), merge.symbol, f"{merge.times:,}", f"{merge.size:,}", f"{merge.ratio:.3f}"
        table.add_row(f"{number:,}", *map(Text, cells))
    return table


# -- a model -----------------------------------------------------------------------------------------------------------


def _open(model: str, words: Sequence[str], side: str, as_json: bool) -> None:
    from dragoman.checkpoint import model_folder
    from dragoman.text.bpe_trace import explain
    from dragoman.text.normalization import normalize, well_formed

    opened = model_folder.load(model)
    tokenizing = opened.config.tokenizer
    mine = tokenizing.source if side == "source" or tokenizing.joint else tokenizing.target or tokenizing.source
    tokenizer = opened.codec.source if side == "source" else opened.codec.target
    found = [explain(tokenizer, normalize(well_formed(word), opened.codec.normalization)) for word in words]
    if as_json:
        each = [_plain(one) for one in found]
        value = {"model": model, "side": side, "tokenizer": mine.name, "size": len(tokenizer), "splits": each}
        print(json.dumps(value, indent=1, ensure_ascii=False))
        return
    out = console()
    out.print(f"{side} tokenizer: {mine.name}, {len(tokenizer):,} symbols", markup=False)
    for one in found:
        out.print(f"\n{one.text} → {' '.join(one.pieces)}", markup=False, soft_wrap=True)
        if one.steps is not None:
            _print_steps(one.steps)
        if one.scores is not None:
            for piece, score in zip(one.pieces, one.scores, strict=True):
                text = f"  {piece}   " + ("no probability" if score is None else f"log p {score:.3f}")
                out.print(text, markup=False, soft_wrap=True)


def _plain(one: Explanation) -> dict[str, Any]:
    value: dict[str, Any] = {"word": one.text, "pieces": one.pieces}
    if one.steps is not None:
        value["steps"] = [step._asdict() for step in one.steps]
    if one.scores is not None:
        value["scores"] = one.scores
    return value


def _print_steps(steps: Sequence[Step]) -> None:
    """One line for each state of a word, and behind it the merge that led there."""
    out = console()
    width = max(len(" ".join(step.symbols)) for step in steps)
    for step in steps:
        line = f"  {' '.join(step.symbols):<{width}}"
        if step.pair is not None:
            line += f"   merge {step.number:,}: {step.pair[0]} + {step.pair[1]}"
        out.print(line.rstrip(), markup=False, soft_wrap=True)
