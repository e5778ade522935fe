"""dragoman predict of a short text by a converted copy of the model, without importing torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli import inputs, options
from dragoman.cli.output import render, write_results
from dragoman.cli.prediction_table import ResultColumns

if TYPE_CHECKING:
    from dragoman.core.generation import GenerationOptions
    from dragoman.data.lines import OnError

SHORT_BYTES = 1_000_000  # a larger file is worth several processes, which the model itself can have


def is_short_text(files: Sequence[str]) -> bool:
    """Whether the input is the standard input or one small file of lines."""
    from dragoman.data.documents import is_document

    (file, *others) = files
    if others or file == "-":
        return not others
    is_other = file.lower().partition("#")[0].endswith(inputs.TABLE_SUFFIXES) or is_document(file)
    return not is_other and os.path.isfile(file) and os.path.getsize(file) <= SHORT_BYTES


def predict_converted(
    model: str,
    file: str,
    precision: str | None,
    device: str,
    generation: GenerationOptions,
    on_error: OnError,
    languages: tuple[str | None, str | None],
) -> bool:
    """Print the predictions for a file or the standard input if the model has a converted copy that serves them."""
    from dragoman.data.lines import ReadReport
    from dragoman.inference.converted import open_converted
    from dragoman.inference.windows import WINDOW

    if device == "auto" and os.path.exists("/dev/nvidiactl"):
        return False  # a GPU, which is preferred
    copy = open_converted(Path(model), precision, generation)
    if copy is None:
        return False
    report, results = ReadReport(), ResultColumns(copy.codec, False, False, 1)
    read = inputs.LineInputs(file, on_error, report)
    sources = inputs.set_languages((source for _, source in read), *languages)
    tagged = options.warn_untagged(copy.codec, results.watch(sources))
    truncated, count = 0, 0

    def lines() -> Iterator[str]:
        nonlocal truncated, count
        for count, prediction in enumerate(copy.stream(tagged, generation, 1 if read.interactive else WINDOW), 1):
            truncated += prediction.source_truncated
            yield "\n".join(render(count, prediction, "text", results.further(prediction)))

    write_results(lines(), None, [file])
    if truncated:
        options.warn_truncated(copy.codec, copy.max_source_length, truncated)
    for notice in (*report.notices(), *results.notices(file)):
        options.print_to_stderr(notice)
    return True
