"""The tables of docs/interop.md: which families come in and go out, and how equal they are, by the tests that say so.

    python -m tests.interop.support_matrix

runs those tests, the long ones included, and writes the tables. A cell is there only if each of its tests passed;
"not run" are tests that were skipped because the other program or its model was not at hand.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.interop.importers.hf_models import CASES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/interop.md"
BEGIN, END = "<!-- tables: python -m tests.interop.support_matrix -->\n", "<!-- end of tables -->\n"
HF, TOKENIZERS = "importers/test_huggingface.py::test_", "importers/test_hf_tokenizers.py::test_"
COMMAND, WHISPER = "importers/test_import_command.py::test_", "importers/test_whisper.py::test_"
CT2, MARIAN = "importers/test_ctranslate2.py::test_", "importers/test_marian.py::test_"
TO_CT2, TO_HF, TO_ONNX = (f"exporters/test_{name}.py::test_" for name in ("ct2", "hf", "onnx"))
TOKENIZER_OF = {"bart without a forced <s>": "bart", "nllb, legacy": "nllb", "t5 v1.1": "t5", "mt5": "t5"}


@dataclass(frozen=True)
class Cell:
    """What a cell says if all its tests passed: names below tests/interop, with or without [parameters]."""

    text: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A heading, the columns, and the cells of each row by the row's name."""

    heading: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[Cell, ...]]


def cell(text: str, *tests: str) -> Cell:
    """A cell and its tests."""
    return Cell(text, tests)


def hugging_face_cells(name: str) -> tuple[Cell, ...]:
    """The row of a family of transformers."""
    equal = f"{HF}200_outputs_are_those_of_transformers[{name}]"
    strings = f"{TOKENIZERS}a_thousand_odd_strings_have_the_ids_of_transformers[{TOKENIZER_OF.get(name, name)}]"
    return (
        cell("within 1e-4", f"{HF}logits_of_a_padded_batch_are_those_of_transformers[{name}]"),
        cell("200 of 200", equal),
        cell("1,000 of 1,000", strings),
        cell(
            "yes, LoRA" if name == "byt5" else "yes, LoRA, new words",
            f"{COMMAND}training_goes_on_from_an_imported_folder_and_resumes[{name}]",
            f"{COMMAND}an_imported_model_learns_low_rank_matrices_and_new_words[{name}]",
        ),
    )


PARTS = "encoders, decoders and attention of every kind"
TABLES = (
    Table(
        "Models of transformers (`hf:`), random weights",
        ("logits", "outputs, greedy and beam 4", "ids of odd strings", "training goes on"),
        {name: hugging_face_cells(name) for name in CASES}
        | {
            "whisper": (
                cell("within 1e-4", f"{WHISPER}the_logits_after_every_token_are_theirs"),
                cell("equal, beams 1 and 5", f"{WHISPER}outputs_are_theirs"),
                cell("features within 1e-4", f"{WHISPER}the_features_of_sounds_are_theirs"),
                cell("yes", f"{WHISPER}training_goes_on_from_an_imported_folder"),
            )
        },
    ),
    Table(
        "Models of other programs, with their own answers",
        ("equal",),
        {
            "`ct2:` transliteration, format 2": (
                cell("500 of 500, greedy and beam 4", f"{CT2}a_folder_of_format_2_answers_as_ctranslate2_does"),
            ),
            "`ct2:` random weights, all types and older formats": (
                cell(
                    "log p within 1e-4, outputs equal",
                    f"{CT2}probabilities_are_those_of_ctranslate2",
                    f"{CT2}beams_are_those_of_ctranslate2",
                    f"{CT2}weights_of_every_type_are_read_as_ctranslate2_reads_them",
                    f"{CT2}older_formats_are_read",
                ),
            ),
            "`ct2:` Whisper tiny.en, real speech": (
                cell("tokens equal, greedy and beam 5", f"{WHISPER}whisper_tiny_en_says_what_it_says_in_ctranslate2"),
            ),
            "`marian:` three models of pymarian": (
                cell("all outputs, greedy and beam", f"{MARIAN}greedy_and_beam_outputs_are_those_of_marian"),
            ),
            "`marian:` toy sentences": (
                cell("at least 199 of 200, greedy", f"{MARIAN}the_toy_model_of_marian_answers_as_marian_does"),
            ),
            "`opennmt:` OpenNMT-py": (
                cell("all outputs, greedy", "importers/test_opennmt.py::test_greedy_outputs_are_those_of_opennmt"),
            ),
            "`g2p-en` 2.1.0, words of CMUdict": (
                cell(
                    "all of at least 2,900",
                    "importers/test_g2p_en.py::test_the_package_s_own_network_answers_alike_for_words_of_a_dictionary",
                ),
            ),
        },
    ),
    Table(
        "Exports, 200 greedy outputs by the other program",
        ("equal", "what goes out"),
        {
            "ct2": (
                cell("200 of 200", f"{TO_CT2}the_check_runs_in_a_process_of_its_own_and_all_outputs_are_equal"),
                cell(
                    "Transformers; also float16 and int8",
                    f"{TO_CT2}ctranslate2_computes_our_probabilities_and_finds_our_outputs",
                    f"{TO_CT2}quantized_weights_are_smaller_and_differ_by_rounding_alone",
                ),
            ),
            "hf": (
                cell("200 of 200", f"{TO_HF}the_check_runs_in_a_process_of_its_own_and_all_outputs_are_equal"),
                cell(
                    "Transformers as Marian, BART, mBART, Pegasus, T5; also float16",
                    f"{TO_HF}transformers_computes_our_logits_and_generates_our_outputs",
                    f"{TO_HF}float16_halves_the_file_and_the_outputs_are_those_of_rounded_weights",
                ),
            ),
            "onnx": (
                cell("200 of 200", f"{TO_ONNX}every_architecture_gives_our_probabilities_and_passes_its_check"),
                cell(PARTS, f"{TO_ONNX}every_architecture_gives_our_probabilities_and_passes_its_check"),
            ),
            "argos": (
                cell(
                    "all texts",
                    "exporters/test_argos.py::test_argostranslate_installs_the_package_and_gives_our_outputs",
                ),
                cell(
                    "Transformers with one subword tokenizer",
                    "exporters/test_argos.py::test_a_package_has_all_that_argostranslate_reads"
                    "_and_translates_by_ctranslate2_as_we_do",
                ),
            ),
        },
    ),
)
PROGRAMS = ("transformers", "ctranslate2", "onnxruntime", "torch")


class Outcomes:
    """Collects the outcome of each test by its name below tests/interop."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("tests/interop/")[2]
        if report.outcome != "passed" or report.when == "call":
            self.outcomes[name] = report.outcome

    def of(self, test: str) -> str:
        """passed, failed or skipped: of all parameters of a test together."""
        found = {what for name, what in self.outcomes.items() if name == test or name.startswith(f"{test}[")}
        return "failed" if "failed" in found or not found else "passed" if found == {"passed"} else "skipped"


def row_name(name: str) -> str:
    """A name in Markdown: `<s>` is no tag of HTML."""
    return name.replace("<", "\\<")


def tests_of(tables: tuple[Table, ...]) -> list[str]:
    """All tests that cells refer to, each once."""
    return list(dict.fromkeys(test for table in tables for row in table.rows.values() for c in row for test in c.tests))


def render(outcomes: Outcomes, versions: str) -> str:
    """The tables in Markdown."""
    lines = [f"Measured with {versions}.", ""]
    for table in TABLES:
        lines += [f"| {table.heading} | " + " | ".join(table.columns) + " |", "|---" * (len(table.columns) + 1) + "|"]
        for name, cells in table.rows.items():
            shown = []
            for each in cells:
                found = {outcomes.of(test) for test in each.tests}
                shown.append("failed" if "failed" in found else "not run" if "skipped" in found else each.text)
            lines.append(f"| {row_name(name)} | " + " | ".join(shown) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Run the tests and write the tables."""
    outcomes = Outcomes()
    names = [f"tests/interop/{name}" for name in tests_of(TABLES)]
    code = pytest.main(["-q", "-m", "long or not long", *sys.argv[1:], *names], plugins=[outcomes])
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in PROGRAMS)
    page = PAGE.read_text(encoding="utf-8")
    block = f"{BEGIN}\n{render(outcomes, versions)}{END}"
    PAGE.write_text(re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: block, page, flags=re.S), "utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
