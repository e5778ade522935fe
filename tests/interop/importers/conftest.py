"""Folders of other programs are made once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.interop.importers import hf_models

from dragoman.core.types import Example
from dragoman.inference import pipeline
from dragoman.interop.importers import ImportOptions, ImportReport, import_model
from dragoman.interop.importers.contents import VocabularyMap
from dragoman.interop.importers.huggingface import open_model, read_text_side


@dataclass
class ImportedCase:
    """A folder of theirs with their model, and ours that was made from it."""

    theirs: hf_models.Case
    path: Path
    report: ImportReport
    ours: pipeline.Pipeline
    source: VocabularyMap
    target: VocabularyMap

    def examples(self, lines: list[str]) -> list[Example]:
        case = self.theirs
        return [Example(x, source_lang=case.source_lang or None, target_lang=case.target_lang or None) for x in lines]


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ImportedCase]:
    made: dict[str, ImportedCase] = {}

    def find(name: str) -> ImportedCase:
        if name not in made:
            folder = tmp_path_factory.mktemp("hf") / "theirs"
            with torch.random.fork_rng():
                case = hf_models.CASES[name](folder)
            out = folder.with_name("ours")
            report = import_model(f"hf:{folder}", out)
            text = read_text_side(open_model(folder, ImportOptions()))
            loaded = pipeline.load(out, "cpu", reference=True)
            made[name] = ImportedCase(case, out, report, loaded, text.source, text.target)
        return made[name]

    return find
