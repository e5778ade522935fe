"""dragoman tokenizer explain, as a user runs it: on a text file, on models, and on what is neither.

The first test starts a process; the others run the command in this one, which has imported torch.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman.checkpoint import model_folder
from dragoman.cli.main import main

from .conftest import Done, process

WORDS = "low low low low low\nlower lower\nnewest newest newest newest newest newest\nwidest widest widest\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, untrained: BPE for the source, unigram for the target."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    kinds = {"source": {"name": "bpe", "size": 300}, "target": {"name": "unigram", "size": 300}}
    parts = {"encoder": {"name": "rnn", "layers": 1}, "decoder": {"name": "rnn", "layers": 1}}
    config = configs.validate(
        {"data": {"train": "none.tsv"}, "tokenizer": kinds, "model": {"width": 8, "tie": "none", **parts}}, "tiny"
    )
    target = config.tokenizer.target
    assert target is not None
    texts = WORDS.split("\n")
    codec = learn_codec(config.tokenizer.source, target, False, "nfc", texts, texts, [])
    weights = model_folder.unique_weights(configs.build_model(config, len(codec.source), len(codec.target)))
    model_folder.save(folder, config, weights, codec, {})
    return folder


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`dragoman tokenizer explain ARGS`, with `words.txt` where it runs."""
    (tmp_path / "words.txt").write_text(WORDS)
    monkeypatch.chdir(tmp_path)

    def run(*args: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["dragoman", "tokenizer", "explain", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_a_text_file_shows_its_merges_in_order_and_words_merge_by_merge(tmp_path: Path) -> None:
    (tmp_path / "words.txt.gz").write_bytes(gzip.compress(WORDS.encode()))
    done = process("tokenizer", "explain", "words.txt.gz", "lowest", "[red]", "--merges", "3", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    table, lowest, other = done.out.split("\n\n")
    assert "12 symbols at first" in table
    rows = [line.split() for line in table.split("\n")[2:]]
    assert [row[:-1] for row in rows] == [
        ["1", "e", "+", "s", "es", "9", "13"],
        ["2", "es", "+", "t", "est", "9", "14"],
        ["3", "est", "+", "</w>", "est</w>", "9", "15"],
    ]
    lines = [line.strip() for line in lowest.split("\n")]
    assert lines[:2] == ["lowest → low<est</w>>", "l o w e s t </w>"]
    assert [line.split("merge ")[-1] for line in lines[2:]] == ["1: e + s", "2: es + t", "3: est + </w>"]
    assert other.split("\n")[0] == "[red] → [red]"


def test_limits_and_json(explain: Callable[..., Done]) -> None:
    done = explain("words.txt", "newest", "--size", "14", "--json")
    value = json.loads(done.out)
    assert (value["size"], [merge["size"] for merge in value["merges"]]) == (12, [13, 14])
    assert value["splits"][0]["reading"] == "new<est>"
    assert value["splits"][0]["steps"][-1] == {"symbols": [*"new", "est", "</w>"], "pair": ["es", "t"], "number": 2}
    shorter = explain("words.txt", "--ratio", "1.5", "--json")
    ratios = [merge["ratio"] for merge in json.loads(shorter.out)["merges"]]
    assert ratios[-2] < 1.5 <= ratios[-1]


def test_a_bpe_model_shows_the_merges_that_lead_to_its_pieces(model: Path, explain: Callable[..., Done]) -> None:
    done = explain(model, "lowest", "widest é", "--json")
    assert done.code == 0, done.err
    value = json.loads(done.out)
    assert (value["side"], value["tokenizer"]) == ("source", "bpe")
    codec = model_folder.load(model).codec
    for found, word in zip(value["splits"], ["lowest", "widest é"], strict=True):
        assert found["pieces"] == codec.source.pieces(codec.source.encode(word))
        assert found["steps"][0]["symbols"] == list("▁" + word.replace(" ", "▁"))
        assert "".join(found["steps"][-1]["symbols"]) == "▁" + word.replace(" ", "▁")
    assert value["splits"][0]["steps"][-1]["symbols"] == value["splits"][0]["pieces"]


def test_a_unigram_model_shows_the_probability_of_each_piece(model: Path, explain: Callable[..., Done]) -> None:
    done = explain(model, "lowest", "--side", "target")
    assert done.code == 0, done.err
    head, word = done.out.split("\n\n")
    assert head.startswith("target tokenizer: unigram")
    first, *lines = word.rstrip("\n").split("\n")
    scores = {piece: float(score) for piece, _, _, score in (line.split() for line in lines)}
    assert first == f"lowest → {' '.join(scores)}"
    learned = model_folder.load(model).codec.target.scores  # type: ignore[attr-defined]
    assert scores == {piece: pytest.approx(learned[piece], abs=1e-3) for piece in scores}


def test_what_cannot_be_explained_is_one_sentence_and_exit_code_2(
    model: Path, tmp_path: Path, explain: Callable[..., Done]
) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "folder").mkdir()
    for args, reason in {
        ("word.txt", "low"): "did you mean 'words.txt'",
        ("folder", "low"): "neither a model folder",
        ("empty.txt", "low"): "no word to learn from",
        ("words.txt", "low", "--side", "source"): "--side is for models",
        (str(model), "low", "--merges", "3"): "--merges is for text files",
        (str(model), "low", "--side", "both"): "source, target",
        (str(model),): "name the words to split",
    }.items():
        done = explain(*args)
        assert (done.code, done.out) == (2, "")
        assert reason in " ".join(done.err.split())
        assert done.err.count("\n") == 1
