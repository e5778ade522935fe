"""Each output beside its reference: whether it is right, its edits, its probability, and what is odd about it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from rapidfuzz.distance import Levenshtein

from dragoman.core.types import Example
from dragoman.inference.prediction import Prediction
from dragoman.inspection.views.probes import MIN_REPEATS, find_loop
from dragoman.reports.calibration import output_probability
from dragoman.reports.edits import Column, align, count_edits, split_units

# What may be odd about an item, and how the report says it.
FLAGS = {
    "empty": "the output is empty",
    "cut off": "the output ended at the length limit",
    "loop": "the output repeats itself",
    "copied": "the output is the source",
    "case": "only upper and lower case differ",
    "spaces": "only spaces differ",
    "unseen": "the source has something that the model has never seen",
    "unwritable": "the reference has something that the model cannot write",
    "source truncated": "the source was too long and only its beginning was read",
    "in training": "the source is also in the training data",
}


@dataclass(frozen=True)
class Item:
    """One pair with the model's output; `reference` is the accepted target that is nearest to the output."""

    index: int
    file: str
    line: int
    source: str
    output: str
    reference: str
    columns: tuple[Column, ...]  # of the alignment
    is_right: bool  # equal to one of the accepted targets
    probability: float  # of the whole output
    token_probability: float  # the geometric mean over its tokens
    flags: tuple[str, ...]

    @property
    def edits(self) -> int:
        """The number of edits between output and reference."""
        return count_edits(self.columns)

    @property
    def error_rate(self) -> float:
        """Edits per unit of the reference."""
        return self.edits / max(sum(bool(column.reference) for column in self.columns), 1)


def build_items(
    examples: Sequence[Example],
    predictions: Sequence[Prediction],
    unit: str,
    *,
    unseen: Set[int] = frozenset(),
    unwritable: Set[int] = frozenset(),
    in_training: Set[int] = frozenset(),
) -> list[Item]:
    """Compare each output with its nearest reference; the sets hold the indices of items with these flags."""
    items = []
    for index, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        reference = nearest_reference(prediction.text, example.accepted, unit)
        columns = align(split_units(prediction.text, unit), split_units(reference, unit))
        is_right = prediction.text in example.accepted
        marks = {"unseen": unseen, "unwritable": unwritable, "in training": in_training}
        flags = [*([] if is_right else find_flags(example, prediction, reference))]
        flags += [name for name, indices in marks.items() if index in indices]
        items.append(
            Item(
                index=index,
                file=example.file,
                line=example.line,
                source="\t".join(text for text in (example.source, example.second_source) if text),
                output=prediction.text,
                reference=reference,
                columns=tuple(columns),
                is_right=is_right,
                probability=output_probability(prediction.log_prob),
                token_probability=_token_probability(prediction),
                flags=tuple(flag for flag in FLAGS if flag in flags),
            )
        )
    return items


def nearest_reference(output: str, accepted: Sequence[str], unit: str) -> str:
    """The accepted target with the fewest edits per unit to the output, the first of equals."""
    units = split_units(output, unit)

    def error_rate(text: str) -> float:
        reference = split_units(text, unit)
        return Levenshtein.distance(reference, units) / max(len(reference), 1)

    return output if output in accepted else min(accepted, key=error_rate)


def find_flags(example: Example, prediction: Prediction, reference: str) -> list[str]:
    """Name what is odd about a wrong output."""
    output = prediction.text
    tests = {
        "empty": not output.strip() and bool(reference.strip()),
        "cut off": prediction.finish_reason == "length",
        "loop": _has_loop(prediction),
        "copied": bool(output.strip()) and output == example.source,
        "spaces": output.split() == reference.split() or "".join(output.split()) == "".join(reference.split()),
        "case": output.lower() == reference.lower(),
        "source truncated": prediction.source_truncated,
    }
    return [name for name, applies in tests.items() if applies]


def _has_loop(prediction: Prediction) -> bool:
    times = find_loop(prediction.tokens)[0]
    return times >= MIN_REPEATS and times > find_loop(prediction.source_tokens)[0]


def _token_probability(prediction: Prediction) -> float:
    count = prediction.token_count
    return output_probability(prediction.log_prob / count) if count else 0.0
