"""Letters that sound as tones, from wav files in an archive to text: the whole way that speech takes."""

from __future__ import annotations

import io
import secrets
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from dragoman import config as configs
from dragoman import pipeline, training
from dragoman.core.errors import DataError
from dragoman.core.interfaces import Example
from dragoman.pipeline import Pipeline
from dragoman.search.ctc import best_path

Heard = tuple[Pipeline, Path, list[tuple[str, str]]]
PITCHES = dict(zip("abcdef", (300, 500, 800, 1300, 2100, 3400), strict=True))
CONFIG = """
name: tones
seed: {seed}
data: {{train: {folder}/train.tsv, valid: {folder}/valid.tsv, cache: {folder}/cache, max_source: 500}}
tokenizer: {{source: characters}}
model:
  width: 48
  frontend: {{name: audio, rate: 8000, bins: 24, channels: 8, time_masks: 1, time_width: 5, band_masks: 0}}
  encoder: {{name: rnn, cell: gru, dropout: 0.0}}
  decoder: {{name: rnn, cell: gru, order: before, score: additive, dropout: 0.0}}
  ctc: true
training:
  steps: 350
  ctc: 0.6
  batch_tokens: 1500
  optimizer: {{name: adam, rate: 5.0e-3}}
  schedule: {{name: linear, warmup: 30}}
  label_smoothing: 0.0
  save_every: 100000
  validate_every: 100000
generation: {{ratio: 0.0, extra: 8, ctc: 0.5}}
runtime: {{device: cpu, threads: 1}}
"""


def spoken(word: str, rng: np.random.Generator, rate: int) -> np.ndarray:
    """A tone for each letter, none like another in pitch, length and loudness, with pauses and noise."""
    parts = []
    for letter in word:
        t = np.arange(int(rng.uniform(0.06, 0.12) * rate)) / rate
        tone = np.sin(2 * np.pi * PITCHES[letter] * rng.uniform(0.97, 1.03) * t) * np.hanning(len(t)) ** 0.3
        parts += [rng.uniform(0.1, 0.4) * tone, np.zeros(int(rng.uniform(0.04, 0.08) * rate))]
    x = np.concatenate(parts)
    return x + rng.normal(0, 0.002, len(x))


def write(folder: Path, name: str, count: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Words as wav and flac files of two rates in a .zip, and a TSV that names them."""
    pairs = []
    with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
        for i in range(count):
            word = "".join(rng.permutation(list(PITCHES))[: rng.integers(1, 6)])
            form, rate = ("WAV", 8000) if i % 2 else ("FLAC", 11_025)
            file = io.BytesIO()
            soundfile.write(file, spoken(word, rng, rate), rate, format=form)
            archive.writestr(f"{i}.{form.lower()}", file.getvalue())
            pairs.append((f"{name}.zip/{i}.{form.lower()}", word))
    (folder / f"{name}.tsv").write_text("".join(f"{file}\t{word}\n" for file, word in pairs))
    return pairs


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Heard:
    folder, seed = tmp_path_factory.mktemp("tones"), secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    write(folder, "train", 400, rng)
    with (folder / "train.tsv").open("a") as more:  # neither of which stops the training
        more.write("train.zip/none.wav\tabc\n")
        more.write("train.tsv\tabc\n")
    pairs = write(folder, "valid", 100, rng)
    (folder / "c.yaml").write_text(CONFIG.format(folder=folder, seed=seed))
    loaded = configs.load(folder / "c.yaml")
    for _ in training.run(loaded.config, folder / "run"):
        pass
    assert "2 source cannot be read" in (folder / "run" / "train.log").read_text()
    return pipeline.load(folder / "run"), folder, pairs


def test_letters_are_heard_in_tones(heard: Heard) -> None:
    model, folder, pairs = heard
    found = model.predict([str(folder / name) for name, _ in pairs], attention=True)
    right = [p.text.replace(" ", "") == word for p, (_, word) in zip(found, pairs, strict=True)]
    assert np.mean(right) >= 0.95
    for p in found:
        assert p.attention is not None
        assert p.attention.shape == (len(p.tokens) + 1, len(p.source_tokens))
        assert p.source_tokens[:2] == ["0.00 s", "0.04 s"]


def test_a_clip_alone_is_heard_as_in_a_batch(heard: Heard) -> None:
    model, folder, pairs = heard
    sources = [str(folder / name) for name, _ in pairs[:8]]
    for together, source in zip(model.predict(sources, beam=4), sources, strict=True):
        alone = model.predict([source], beam=4)[0]
        assert alone.text == together.text
        assert alone.score == pytest.approx(together.score, abs=1e-4)


def test_the_encoder_alone_hears_almost_as_well(heard: Heard) -> None:
    model, folder, pairs = heard
    right = []
    for name, word in pairs:
        assert model.codec.medium is not None
        frames = torch.from_numpy(model.codec.medium.read(Example(str(folder / name))))
        with torch.no_grad():
            memory = model.model.encode(frames[None], torch.tensor([len(frames)]))
            path = best_path(*model.model.hear(memory))[0]
        right.append(model.codec.decode([token for token, _ in path]) == word)
        places = [place for _, place in path]
        assert places == sorted(places)
    assert np.mean(right) >= 0.85


def test_a_clip_that_cannot_be_read_is_one_error(heard: Heard) -> None:
    model, folder, _ = heard
    (folder / "noise.wav").write_bytes(b"no sound at all")
    with pytest.raises(DataError, match="not a sound"):
        model.predict([str(folder / "noise.wav")])
