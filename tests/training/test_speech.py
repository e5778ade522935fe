"""Letters that sound as tones, from wav files in an archive to text: the whole way that speech takes."""

from __future__ import annotations

import io
import itertools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tests.codec_learning import learn_codec

from dragoman import config as configs
from dragoman import training
from dragoman.config import compatibility
from dragoman.core import yaml
from dragoman.core.errors import ConfigError, DataError
from dragoman.core.types import PAD, Example
from dragoman.inference import pipeline
from dragoman.inference.pipeline import Pipeline
from dragoman.training import prepare

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
  ctc_weight: 0.6
  batch_tokens: 1500
  optimizer: {{name: adam, rate: 5.0e-3}}
  schedule: {{name: linear, warmup: 30}}
  label_smoothing: 0.0
  save_every: 100000
  validate_every: 100000
generation: {{max_length_ratio: 0.0, max_length_extra: 8, ctc_weight: 0.5}}
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
    folder, seed = tmp_path_factory.mktemp("tones"), torch.initial_seed()
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


def test_letters_are_recognized_in_tones(heard: Heard) -> None:
    model, folder, pairs = heard
    found = model.predict([str(folder / name) for name, _ in pairs], attention=True)
    right = [p.text.replace(" ", "") == word for p, (_, word) in zip(found, pairs, strict=True)]
    assert np.mean(right) >= 0.95
    for p in found:
        assert p.attention is not None
        assert p.attention.shape == (len(p.tokens) + 1, len(p.source_tokens))
        assert p.source_tokens[:2] == ["0.00 s", "0.04 s"]


def test_a_clip_alone_is_recognized_as_in_a_batch(heard: Heard) -> None:
    model, folder, pairs = heard
    sources = [str(folder / name) for name, _ in pairs[:8]]
    for together, source in zip(model.predict(sources, beam=4), sources, strict=True):
        alone = model.predict([source], beam=4)[0]
        assert alone.text == together.text
        assert alone.score == pytest.approx(together.score, abs=1e-4)


def test_ctc_alone_recognizes_almost_as_well(heard: Heard) -> None:
    model, folder, pairs = heard
    right = []
    for name, word in pairs:
        assert model.codec.modality is not None
        frames = torch.from_numpy(model.codec.modality.read(Example(str(folder / name))))
        with torch.no_grad():
            memory = model.model.encode(frames[None], torch.tensor([len(frames)]))
            path = model.model.ctc_log_probs(memory)[0][0].argmax(-1).tolist()
        # The most probable token at each position; repeats are one, blanks are left out.
        right.append(model.codec.decode([token for token, _ in itertools.groupby(path) if token != PAD]) == word)
    assert np.mean(right) >= 0.85


def test_a_clip_that_cannot_be_read_is_one_error(heard: Heard) -> None:
    model, folder, _ = heard
    (folder / "noise.wav").write_bytes(b"no sound at all")
    with pytest.raises(DataError, match="not audio"):
        model.predict([str(folder / "noise.wav")])


# -- a language model beside it ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spelled(heard: Heard) -> Path:
    """A language model of the words, in the letters that the speech model writes."""
    _, folder, pairs = heard
    (folder / "words.txt").write_text("".join(f"{word}\n" for _, word in pairs))
    sets = [f"data.train={folder}/words.txt", "data.columns=[source]", f"tokenizer.load={folder}/run"]
    sets += ["model.encoder=none", "model.decoder={name: rnn, source: prefix, dropout: 0.0}", "model.tie=all"]
    sets += ["training.objective=lm", "training.steps=30", "training.schedule=constant", "model.width=16"]
    sets += ["runtime.device=cpu", "runtime.threads=1"]
    for _ in training.run(configs.load(None, None, sets).config, folder / "lm"):
        pass
    return folder / "lm"


def test_shallow_fusion_and_ctc_add_up_in_the_score(heard: Heard, spelled: Path) -> None:
    """Each score is (1 − μ) (log p + λ log p_LM) + μ log p_CTC, summed by hand over a result that the search found."""
    model, folder, pairs = heard
    lm, weight, ctc = pipeline.load(spelled, "cpu"), 0.4, model.config.generation.ctc_weight
    fused = pipeline.load(folder / "run", "cpu", lm=spelled, lm_weight=weight)
    sources = [str(folder / name) for name, _ in pairs[:6]]
    assert lm.codec.modality is None
    for source, found in zip(sources, fused.predict(sources, beam=4), strict=True):
        assert found.finish_reason == "eos"
        said, spoken = model.score([(source, found.text)])[0], lm.score([found.text])[0]
        assert model.codec.modality is not None
        frames = torch.from_numpy(model.codec.modality.read(Example(source)))
        with torch.no_grad():
            log_p, lengths = model.model.ctc_log_probs(model.model.encode(frames[None], torch.tensor([len(frames)])))
        target = torch.tensor([found.ids])
        ctc_loss = torch.nn.functional.ctc_loss(
            log_p.transpose(0, 1), target, lengths, torch.tensor([len(found.ids)]), reduction="sum"
        )
        wanted = (1 - ctc) * (said + weight * spoken) - ctc * float(ctc_loss)
        assert found.log_prob == pytest.approx(wanted, abs=1e-3)
    alone = pipeline.load(folder / "run", "cpu", lm=spelled, lm_weight=0.0).predict(sources)
    assert [p.text for p in alone] == [p.text for p in model.predict(sources)]


# -- how long a source may be, and what is counted ---------------------------------------------------------------------


def untaught(**changes: Any) -> Pipeline:
    """A model of sounds that has learned nothing, with learned positions in its encoder where asked."""
    value: dict[str, Any] = {
        "data": {"train": "nowhere.tsv"},
        "tokenizer": {"source": "characters"},
        "model": {
            "width": 16,
            "frontend": {"name": "audio", "rate": 8000, "bins": 8, "channels": 2, "augment": False},
            "encoder": {"name": "rnn", "cell": "gru"},
            "decoder": {"name": "rnn", "cell": "gru"},
        },
        "runtime": {"device": "cpu"},
    }
    for key, change in changes.items():
        value[key] = value.get(key, {}) | change
    config = configs.validate(value, "untaught")
    modality = configs.source_readers(config)[0]
    part = config.tokenizer.source
    codec = learn_codec(part, part, False, "nfc", [], ["abc"], [], modality)
    torch.manual_seed(0)
    model = configs.build_model(config, codec.source_size, len(codec.target))
    return Pipeline(model.eval(), codec, config, torch.device("cpu"))


def positions(length: int, **frontend: Any) -> dict[str, Any]:
    encoder = {"name": "transformer", "layers": 1, "heads": 2, "position": {"name": "learned", "length": length}}
    return untaught().config.model.model_dump() | {
        "encoder": encoder,
        "frontend": {"name": "audio", "rate": 8000, "bins": 8, "channels": 2, **frontend},
    }


def clip(folder: Path, frames: int) -> str:
    """The name of a sound of so many frames."""
    samples = np.random.default_rng(frames).normal(0, 0.1, 200 + 80 * (frames - 1))
    soundfile.write(folder / f"{frames}.wav", samples, 8000)
    return str(folder / f"{frames}.wav")


@pytest.mark.parametrize("encoder", [{"name": "rnn", "cell": "gru"}, {"name": "pyramid", "layers": 1}])
def test_the_length_of_a_result_goes_by_the_states_and_not_by_the_frames(
    tmp_path: Path, encoder: dict[str, Any]
) -> None:
    parts = untaught().config.model.model_dump() | {"encoder": encoder}
    model = untaught(model=parts, generation={"max_length_ratio": 0.5, "max_length_extra": 1})
    with torch.no_grad():
        model.model.output.bias[2] = -1e4  # </s>: nothing ends by itself
    for frames in (41, 80, 3):
        states = -(-frames // (4 if encoder["name"] == "rnn" else 8))
        assert model.input_processor.count_length_units(frames) == states
        found = model.predict([clip(tmp_path, frames)], beam=1)[0]
        assert (found.finish_reason, len(found.tokens)) == ("length", int(0.5 * states) + 1)


def test_positions_of_the_encoder_are_counted_behind_the_frontend(tmp_path: Path) -> None:
    model = untaught(model=positions(10, augment=False), data={"train": "nowhere.tsv", "max_source": 40})
    assert model.input_processor.max_source_length == 40
    fits, longer = clip(tmp_path, 40), clip(tmp_path, 41)
    assert [p.source_truncated for p in model.predict([fits, longer])] == [False, True]
    assert len(model.score([(fits, "ab")])) == 1
    with pytest.raises(DataError, match="the source has 41"):
        model.score([(longer, "ab")])


@pytest.mark.parametrize(
    ("frontend", "limit", "needed"),
    [
        ({"augment": False}, 40, 10),
        ({"augment": False}, 41, 11),
        ({}, 40, 12),  # played at 0.9 of its speed it has 45 frames
        ({"speeds": [0.5, 1.0]}, 40, 20),
        ({"augment": False, "subsampling": "stack", "stack": 3}, 40, 14),
    ],
)
def test_positions_must_cover_the_longest_source(frontend: dict[str, Any], limit: int, needed: int) -> None:
    data = {"train": "nowhere.tsv", "max_source": limit}
    untaught(model=positions(needed, **frontend), data=data)
    with pytest.raises(ConfigError, match=rf"data\.max_source is {limit}, but .*raise its length to {needed}"):
        untaught(model=positions(needed - 1, **frontend), data=data)


def test_the_default_limit_of_a_source_is_half_a_minute_of_sound(tmp_path: Path) -> None:
    open_end, said = untaught().config, untaught(data={"train": "nowhere.tsv", "max_source": 256}).config
    assert (compatibility.max_source_length(open_end), compatibility.max_source_length(said)) == (3000, 256)
    kept = prepare.resolve_max_source(open_end)
    saved = [configs.validate(yaml.parse(one.to_yaml(), "saved"), "saved") for one in (open_end, kept)]
    assert [(one.data.max_source, compatibility.max_source_length(one)) for one in saved] == [
        (None, 3000),
        (3000, 3000),
    ]
    text = configs.validate({"data": {"train": "nowhere.tsv"}}, "text")
    assert (text.data.max_source, prepare.resolve_max_source(text).data.max_source) == (None, 256)
    image = {"frontend": {"name": "image", "pixels": 320}, "encoder": "identity", "decoder": "rnn"}
    assert (
        compatibility.max_source_length(configs.validate({"data": {"train": "nowhere.tsv"}, "model": image}, "image"))
        == 320
    )


def test_a_training_says_what_was_too_long_and_the_remedy(tmp_path: Path) -> None:
    lines = [f"{clip(tmp_path, frames)}\tab\n" for frames in (300, 310, 2990, 3001)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    data = {"train": str(tmp_path / "train.tsv"), "cache": str(tmp_path / "cache")}
    config = untaught(data=data, training={"steps": 1, "schedule": "constant", "save_every": 9}).config
    said = [report.message for report in training.run(config, tmp_path / "run") if report.kind == "notice"]
    wanted = "3 pairs are used; left out: 1 source too long (at most 3,000 source"
    assert any(wanted in message for message in said)
    assert "already finished" in [report.message for report in training.run(config, tmp_path / "run")][-1]
    assert pipeline.load(tmp_path / "run", "cpu").input_processor.max_source_length == 4 * 3000
