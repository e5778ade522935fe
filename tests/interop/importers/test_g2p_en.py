"""The network of the package g2p_en: outputs equal to those of its own equations, written here in numpy."""

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import dragoman
from dragoman.core.errors import UserError
from dragoman.interop.importers import g2p_en, import_model

CMUDICT = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "cmudict" / "test.tsv.gz"
GRAPHEMES = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
Arrays = Mapping[str, np.ndarray]


# -- the equations of the package --------------------------------------------------------------------------------------


def sigmoid(x: np.ndarray) -> np.ndarray:
    y: np.ndarray = 1 / (1 + np.exp(-x))
    return y


def gru(x: np.ndarray, h: np.ndarray, arrays: Arrays, part: str) -> np.ndarray:
    """One step: the gates are r, z and n in this order, and r acts on U h with its bias."""
    of_x = arrays[f"{part}_w_ih"] @ x + arrays[f"{part}_b_ih"]
    of_h = arrays[f"{part}_w_hh"] @ h + arrays[f"{part}_b_hh"]
    d = len(h)
    r, z = sigmoid(of_x[:d] + of_h[:d]), sigmoid(of_x[d : 2 * d] + of_h[d : 2 * d])
    n = np.tanh(of_x[2 * d :] + r * of_h[2 * d :])
    new: np.ndarray = (1 - z) * n + z * h
    return new


def predict(word: str, arrays: Arrays) -> list[int]:
    """The ids of the phonemes of a word: greedy, 20 at most."""
    h = np.zeros(arrays["enc_w_hh"].shape[1], np.float32)
    for letter in [*word, "</s>"]:
        id = GRAPHEMES.index(letter) if letter in GRAPHEMES else 1
        h = gru(arrays["enc_emb"][id], h, arrays, "enc")
    ids: list[int] = []
    last = 2  # <s>
    for _ in range(20):
        h = gru(arrays["dec_emb"][last], h, arrays, "dec")
        last = int((arrays["fc_w"] @ h + arrays["fc_b"]).argmax())
        if last == 3:  # </s>
            break
        ids.append(last)
    return ids


# -- a package with random weights -------------------------------------------------------------------------------------


def random_arrays(d: int = 16, phonemes: int = 74) -> dict[str, np.ndarray]:
    """Weights in the layout of checkpoint20.npz, which never write <pad>, <unk> or <s>."""
    rng = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    arrays = {
        "enc_emb": normal(29, d),
        "dec_emb": normal(phonemes, d),
        "fc_w": normal(phonemes, d),
        "fc_b": normal(phonemes),
    }
    for part in ("enc", "dec"):
        arrays |= {f"{part}_w_ih": normal(3 * d, d), f"{part}_w_hh": normal(3 * d, d)}
        arrays |= {f"{part}_b_ih": normal(3 * d), f"{part}_b_hh": normal(3 * d)}
    arrays["fc_b"][:3] = -1e3
    arrays["fc_b"][3] += 2.5
    return arrays


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, arrays: Arrays | None) -> None:
    """A package g2p_en on the path, which cannot be imported."""
    package = folder / "site" / "g2p_en"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('it needs nltk')\n", encoding="utf-8")
    if arrays is not None:
        np.savez(package / "checkpoint20.npz", **arrays)
    monkeypatch.syspath_prepend(folder / "site")
    importlib.invalidate_caches()


def words(count: int) -> list[str]:
    rng = np.random.default_rng(5)
    return ["".join(rng.choice([*"abcdefghijklmnopqrstuvwxyz'é"], size=rng.integers(1, 12))) for _ in range(count)]


def test_outputs_are_those_of_the_package_s_equations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = random_arrays()
    install(tmp_path, monkeypatch, arrays)
    import_model("g2p-en", tmp_path / "model")
    model = dragoman.load(tmp_path / "model", "cpu")
    sources = words(100)
    expected = [[g2p_en.PHONEMES[id] for id in predict(word, arrays)] for word in sources]
    assert [output.text.split() for output in model.predict(sources)] == expected
    lengths = {len(output) for output in expected}
    assert len(lengths) > 3  # some end by themselves
    assert max(lengths) == 20  # and some do not


def test_letters_and_phonemes_are_those_of_the_package() -> None:
    assert g2p_en.GRAPHEMES == GRAPHEMES
    assert len(g2p_en.PHONEMES) == 74
    assert g2p_en.PHONEMES[:8] == ["<pad>", "<unk>", "<s>", "</s>", "AA0", "AA1", "AA2", "AE0"]
    assert g2p_en.PHONEMES[-9:] == ["UW", "UW0", "UW1", "UW2", "V", "W", "Y", "Z", "ZH"]


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("g2p_en") is None, reason="g2p-en is not installed")
@pytest.mark.skipif(not CMUDICT.exists(), reason="cmudict is not here")
def test_the_package_s_own_network_answers_alike_for_words_of_a_dictionary(tmp_path: Path) -> None:
    with np.load(g2p_en.find_checkpoint(), allow_pickle=False) as file:
        arrays = dict(file)
    with gzip.open(CMUDICT, "rt", encoding="utf-8", newline="") as table:
        sources = list(dict.fromkeys(row[0].lower() for row in csv.reader(table, delimiter="\t")))
    import_model("g2p-en", tmp_path / "model")
    outputs = [output.text.split() for output in dragoman.load(tmp_path / "model", "cpu").predict(sources)]
    assert len(sources) >= 2900
    assert outputs == [[g2p_en.PHONEMES[id] for id in predict(word, arrays)] for word in sources]


# -- what is missing or damaged ----------------------------------------------------------------------------------------


def test_without_the_package_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps g2p-en"):
        import_model("g2p-en", tmp_path / "out")


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        (None, "is missing"),
        ({"enc_emb": np.zeros(3, np.float32)}, "has no array 'enc_w_ih'"),
        (random_arrays(phonemes=70), "other letters or phonemes"),
        ({**random_arrays(), "fc_w": np.zeros((74, 5), np.float32)}, "contradict each other"),
        ({**random_arrays(), "dec_w_hh": np.zeros(5, np.float32)}, "the array 'dec_w_hh' is (5,)"),
        ({**random_arrays(), "enc_b_ih": np.full(48, np.nan, np.float32)}, "not finite"),
    ],
)
def test_a_damaged_package_is_refused_in_one_sentence(
    arrays: Arrays | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, arrays)
    with pytest.raises(UserError) as error:
        import_model("g2p-en", tmp_path / "out")
    assert reason in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
