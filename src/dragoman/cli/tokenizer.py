"""dragoman tokenizer explain: show how words are split, merge by merge, by a model or by merges learned from a text."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import AsJSON, Plugins, check_choice, console, load_plugins, plain_table, print_text
from dragoman.core.errors import DataError, UserError

if TYPE_CHECKING:
    from rich.table import Table

    from dragoman.text.bpe_trace import Explanation, Merge, SplitStep

DEFAULT_MERGES = 10  # learned from a text if no limit is set

app = typer.Typer(help="Inspect tokenizers.", no_args_is_help=True)


@app.command()
def explain(
    path: Annotated[
        str,
        typer.Argument(
            help="A run or model folder, a packed model, or a text file to learn merges from.", metavar="MODEL|FILE"
        ),
    ],
    words: Annotated[list[str] | None, typer.Argument(help="What to split.", metavar="WORD…")] = None,
    merges: Annotated[
        int | None, typer.Option(min=1, help=f"Merges to learn from FILE; {DEFAULT_MERGES} if no limit is set.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Learn until the vocabulary has this many symbols.")] = None,
    ratio: Annotated[
        float | None, typer.Option(min=1.0, help="Learn until the text has this many times fewer symbols.")
    ] = None,
    side: Annotated[str | None, typer.Option(help="source or target: which tokenizer of MODEL.")] = None,
    as_json: AsJSON = False,
    modules: Plugins = [],
) -> None:
    """Show how words are split: by the tokenizer of a model, or by byte-pair merges learned from a text file."""
    from dragoman.checkpoint.archive import is_archive
    from dragoman.data.lines import read_blocker

    load_plugins(modules)
    if path != "-" and not os.path.exists(path):
        raise UserError(f"{path}: this is no model folder, and {read_blocker(Path(path))}")
    if not os.path.isdir(path) and not is_archive(Path(path)):
        if side is not None:
            raise UserError(f"{path}: --side is for models, and this is a text file")
        if merges is None and size is None and ratio is None:
            merges = DEFAULT_MERGES
        _explain_learned_merges(path, words or [], merges, size, ratio, as_json)
        return
    for key, value in {"merges": merges, "size": size, "ratio": ratio}.items():
        if value is not None:
            raise UserError(f"{path}: --{key} is for text files; this is a model, whose tokenizer is trained")
    if not words:
        raise UserError("name the words to split, as in: dragoman tokenizer explain MODEL newest widest")
    _explain_model(path, words, check_choice(side or "source", ("source", "target"), "--side"), as_json)


def _explain_learned_merges(
    file: str, words: Sequence[str], merges: int | None, size: int | None, ratio: float | None, as_json: bool
) -> None:
    from dragoman.data.lines import read_lines
    from dragoman.text.bpe_trace import bracket_symbols, count_words, initial_symbols, learn_merges, trace_split
    from dragoman.text.normalization import normalize, replace_surrogates

    counts = count_words(normalize(line.text, "nfc") for line in read_lines(file))
    if not counts:
        raise DataError("there is no word to learn from", file)
    learned = learn_merges(counts, merges=merges, size=size, ratio=ratio)
    words = [word for text in words for word in normalize(replace_surrogates(text), "nfc").split()]
    splits = {word: trace_split(word, learned) for word in words}
    if as_json:
        value = {
            "file": file,
            "words": counts.total(),
            "size": len(initial_symbols(counts)),
            "merges": [merge._asdict() | {"symbol": merge.symbol} for merge in learned],
            "splits": [
                {
                    "word": word,
                    "reading": bracket_symbols(steps[-1].symbols),
                    "steps": [step._asdict() for step in steps],
                }
                for word, steps in splits.items()
            ],
        }
        print(json.dumps(value, indent=1, ensure_ascii=False))
        return
    symbols = len(initial_symbols(counts))
    print_text(f"{counts.total():,} words, {len(counts):,} of them different; {symbols:,} symbols at first")
    console().print(_merge_table(learned) if learned else "no merge: the limit is reached already")
    for word, steps in splits.items():
        print_text(f"\n{word} → {bracket_symbols(steps[-1].symbols)}")
        _print_steps(steps)


def _merge_table(merges: Sequence[Merge]) -> Table:
    from rich.table import Column
    from rich.text import Text

    right = [Column(name, justify="right") for name in ("times", "symbols", "ratio")]
    table = plain_table(Column("merge", justify="right"), "pair", "new symbol", *right)
    for number, merge in enumerate(merges, 1):
        cells = " + ".join(merge.pair), merge.symbol, f"{merge.times:,}", f"{merge.size:,}", f"{merge.ratio:.3f}"
        table.add_row(f"{number:,}", *map(Text, cells))
    return table


def _explain_model(path: str, words: Sequence[str], side: str, as_json: bool) -> None:
    from dragoman.checkpoint import model_folder
    from dragoman.text.bpe_trace import explain_split
    from dragoman.text.normalization import normalize, replace_surrogates

    loaded = model_folder.load(path)
    options = loaded.config.tokenizer
    part = options.source if side == "source" or options.joint else options.target or options.source
    tokenizer = loaded.codec.source if side == "source" else loaded.codec.target
    form = loaded.codec.normalization
    explanations = [explain_split(tokenizer, normalize(replace_surrogates(word), form)) for word in words]
    if as_json:
        splits = [_as_json(explanation) for explanation in explanations]
        value = {"model": path, "side": side, "tokenizer": part.name, "size": len(tokenizer), "splits": splits}
        print(json.dumps(value, indent=1, ensure_ascii=False))
        return
    print_text(f"{side} tokenizer: {part.name}, {len(tokenizer):,} symbols")
    for explanation in explanations:
        print_text(f"\n{explanation.text} → {' '.join(explanation.pieces)}")
        if explanation.steps is not None:
            _print_steps(explanation.steps)
        if explanation.scores is not None:
            for piece, score in zip(explanation.pieces, explanation.scores, strict=True):
                print_text(f"  {piece}   " + ("no probability" if score is None else f"log p {score:.3f}"))


def _as_json(explanation: Explanation) -> dict[str, object]:
    value: dict[str, object] = {"word": explanation.text, "pieces": explanation.pieces}
    if explanation.steps is not None:
        value["steps"] = [step._asdict() for step in explanation.steps]
    if explanation.scores is not None:
        value["scores"] = explanation.scores
    return value


def _print_steps(steps: Sequence[SplitStep]) -> None:
    width = max(len(" ".join(step.symbols)) for step in steps)
    for step in steps:
        line = f"  {' '.join(step.symbols):<{width}}"
        if step.pair is not None:
            line += f"   merge {step.number:,}: {step.pair[0]} + {step.pair[1]}"
        print_text(line.rstrip())
