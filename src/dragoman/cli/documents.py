"""dragoman predict with a translators' file (SRT, PO, XLIFF, TMX, DOCX): the same file with its text translated."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli import options
from dragoman.cli.output import write_document
from dragoman.cli.prediction_table import ResultColumns
from dragoman.cli.progress import with_progress_bar, with_progress_lines
from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.core.types import Example
    from dragoman.data.documents import Document
    from dragoman.data.documents.languages import Languages
    from dragoman.data.documents.segments import Translation
    from dragoman.inference.pipeline import Pipeline
    from dragoman.inference.prediction import Prediction
    from dragoman.inference.request import GenerationRequest
    from dragoman.text.sentence_splitter import Piece

PredictAll = Callable[..., Generator["Prediction", None, None]]  # (sources, attention=…)


@dataclass
class DocumentInputs:
    """The number of sentences of a document, for the progress."""

    file: str
    expected: float | None


def refuse_options(files: Sequence[str], unused: Mapping[str, object], request: GenerationRequest) -> None:
    """Raise UserError for options that a document has no room for."""
    if len(files) > 1:
        raise UserError(f"there are {len(files)} files; give one document at a time")
    for option, value in unused.items():
        if value:
            raise UserError(f"{option} has no place in a document; leave it out, or give a file of lines")
    if request.options.nbest > 1:
        raise UserError("a document has one translation of each segment; leave out --nbest")


def predict_document(
    pipeline: Pipeline, path: Path, output: Path | None, languages: Languages, predict_all: PredictAll
) -> None:
    """Translate a document and write it to `output`, which has the same ending."""
    from dragoman.data.documents import open_document
    from dragoman.data.documents.languages import Languages

    if pipeline.reads_media or pipeline.codec.second_source is not None or pipeline.continues_text:
        raise UserError(f"{path}: a document needs a model that turns one text into another, and this one does not")
    if output is None:
        raise UserError(f"{path}: name the translated document with --output, as in --output translated{path.suffix}")
    if output.suffix.lower() != path.suffix.lower() and output.suffix:
        raise UserError(f"{output}: a translated {path.suffix} file is a {path.suffix} file; change the ending")
    targets = pipeline.codec.target_languages
    only_target = targets[0] if len(targets) == 1 else None
    document = open_document(path, Languages(languages.source, languages.target or only_target))
    results = ResultColumns(pipeline.codec, False, False, 1)
    translations = _translate(pipeline, document, path, languages, results, predict_all)
    with closing(translations):
        write_document(translations, document, output, [path])
    for notice in results.notices(str(path)):
        options.print_to_stderr(notice)


def _translate(
    pipeline: Pipeline,
    document: Document,
    path: Path,
    languages: Languages,
    results: ResultColumns,
    predict_all: PredictAll,
) -> Generator[Translation, None, None]:
    """Yield the translation of each segment, in order; only those with marks inside need attention, which is slower."""
    from dragoman.core.types import Example
    from dragoman.data.documents.languages import matching_language
    from dragoman.data.documents.segments import needs_alignment
    from dragoman.data.documents.translation import (
        join_sentences,
        result_of,
        sentences_to_translate,
        split_segment,
    )

    codec = pipeline.codec
    source_lang = languages.source or matching_language(document.languages.source, codec.source_languages)
    target_lang = languages.target or matching_language(document.languages.target, codec.target_languages)
    if not codec.target_languages:
        source_lang = target_lang = None  # they are the document's alone
    groups: dict[bool, list[Example]] = {False: [], True: []}
    split: list[list[Piece]] = []
    needs: list[bool] = []  # of each sentence
    for segment in document.segments:
        split.append(split_segment(segment))
        sentences = sentences_to_translate(split[-1])
        is_aligned = needs_alignment(segment)
        needs += [is_aligned] * len(sentences)
        groups[is_aligned] += [
            Example(text, None, source_lang, target_lang, str(path), segment.line) for text in sentences
        ]
    for _ in options.warn_untagged(codec, results.watch(chain(groups[False], groups[True]))):
        pass  # both look at every source
    out = options.console(error=True)
    show = with_progress_bar if out.is_terminal else with_progress_lines
    with (
        closing(predict_all(groups[False], attention=False)) as plain,
        closing(predict_all(groups[True], attention=True)) as aligned,
        closing(show(_merge(needs, plain, aligned), DocumentInputs(str(path), float(len(needs))), out)) as predictions,
    ):
        for pieces in split:
            own = [result_of(next(predictions)) for _ in sentences_to_translate(pieces)]
            yield join_sentences(pieces, own)


def _merge(
    needs: Sequence[bool], plain: Iterator[Prediction], aligned: Iterator[Prediction]
) -> Generator[Prediction, None, None]:
    """Yield predictions in the order of the sentences."""
    for is_aligned in needs:
        yield next(aligned if is_aligned else plain)
