"""Sound files as frames: tones land where they belong, Kaldi and torch agree, and what is no sound is one error."""

from __future__ import annotations

import io
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import torch

from dragoman.core.errors import DataError, MissingExtra
from dragoman.core.types import Example
from dragoman.modalities import audio
from dragoman.modalities.audio import AudioModality, decode_waveform
from dragoman.modalities.frame_transforms import FrameAugmentation, change_speed
from dragoman.modalities.log_mel import log_mel, mel_band_edges, mel_to_hertz

RATE = 16_000


def tone(frequency: float, seconds: float = 0.5, rate: int = RATE) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def written(samples: np.ndarray, rate: int = RATE, form: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def babble(seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    """Noise in changing colors: something at every moment and in every band."""
    rng = np.random.default_rng()
    loudness = np.repeat(rng.uniform(0.1, 0.5, 64), -(-int(seconds * rate) // 64))[: int(seconds * rate)]
    return (rng.normal(0, 0.2, len(loudness)) * loudness).astype(np.float32)


# -- features ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", ["kaldi", "torch"])
@pytest.mark.parametrize("frequency", [300.0, 1000.0, 3000.0, 6000.0])
def test_a_tone_is_loudest_in_the_bin_around_its_frequency(features: Any, frequency: float) -> None:
    modality = AudioModality(normalize=False, features=features)
    x = modality.compute_frames(tone(frequency))
    edges = mel_to_hertz(mel_band_edges(RATE, 80))
    for bin in x.argmax(1):
        assert edges[bin] < frequency < edges[bin + 2]


def test_a_frame_is_25_ms_every_10_ms() -> None:
    modality = AudioModality()
    assert modality.compute_frames(tone(500, 0.025)).shape == (1, 80)
    assert modality.compute_frames(tone(500, 0.0349)).shape == (1, 80)
    assert modality.compute_frames(tone(500, 0.035)).shape == (2, 80)
    assert modality.compute_frames(tone(500, 1.0)).shape == (98, 80)
    assert modality.compute_frames(tone(500, 0.01)).shape == (1, 80)  # filled up with silence


def assert_heard_alike(kaldi: np.ndarray, ours: np.ndarray) -> None:
    """To 1e-4; below a thousandth of a frame's loudest bin the rounding of Kaldi's float32 shows."""
    assert kaldi.shape == ours.shape
    counts = kaldi > kaldi.max(1, keepdims=True) + np.log(1e-3)
    assert counts.mean() > 0.4
    assert np.abs(kaldi - ours)[counts].max() < 1e-4
    assert np.abs(kaldi - ours).max() < 0.05


@pytest.mark.parametrize(("rate", "bins"), [(8000, 23), (8000, 40), (16_000, 80), (22_050, 80)])
def test_kaldi_and_torch_agree(rate: int, bins: int) -> None:
    samples = babble(rate=rate)
    assert_heard_alike(
        audio._kaldi_log_mel(samples, rate, bins), log_mel(torch.from_numpy(samples), rate, bins).numpy()
    )


@pytest.mark.parametrize(
    ("rate", "count"),
    [
        (8000, 200),
        (8000, 201),
        (8000, 279),
        (8000, 4097),
        (11_025, 5001),
        (16_000, 400),
        (16_000, 559),
        (16_000, 12_345),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_kaldi_and_torch_agree_for_odd_and_for_the_shortest_lengths(rate: int, count: int, channels: int) -> None:
    sides = np.stack([babble(count / rate + 0.01, rate)[:count] for _ in range(channels)], 1)
    samples = decode_waveform(written(sides, rate, subtype="FLOAT"), rate)
    assert samples == pytest.approx(sides.mean(1), abs=1e-6)
    assert_heard_alike(audio._kaldi_log_mel(samples, rate, 23), log_mel(torch.from_numpy(samples), rate, 23).numpy())


@pytest.mark.parametrize("count", [1, 2, 57, 199])
def test_both_fill_up_the_same_silence_after_less_than_a_frame(count: int) -> None:
    samples = tone(700, 0.1, 8000)[40 : 40 + count]
    kaldi, ours = (
        AudioModality(8000, 23, False, features).compute_frames(samples).astype(float)
        for features in ("kaldi", "torch")
    )
    assert kaldi.shape == (1, 23)
    assert ours == pytest.approx(kaldi, abs=0.02)  # float16, and the quiet bins count here


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the GPU's path needs a GPU")
@pytest.mark.parametrize(("rate", "bins", "seconds"), [(8000, 23, 0.3333), (16_000, 80, 1.0), (16_000, 80, 0.025)])
def test_log_mel_on_a_gpu_equals_kaldi_on_a_cpu(rate: int, bins: int, seconds: float) -> None:
    samples = babble(seconds, rate)
    ours = log_mel(torch.from_numpy(samples).cuda(), rate, bins)
    assert ours.is_cuda
    assert_heard_alike(audio._kaldi_log_mel(samples, rate, bins), ours.cpu().numpy())
    assert_heard_alike(audio._kaldi_log_mel(samples, rate, bins), audio._torch_log_mel(samples, rate, bins))


def test_torch_log_mel_of_many_waveforms_equals_one_by_one() -> None:
    both = torch.from_numpy(np.stack([babble(0.3), tone(700, 0.3)]))
    torch.testing.assert_close(log_mel(both, RATE, 40), torch.stack([log_mel(x, RATE, 40) for x in both]))


def test_silence_is_zeros_and_loudness_is_no_matter() -> None:
    modality = AudioModality()
    assert np.array_equal(modality.compute_frames(np.zeros(RATE, np.float32)), np.zeros((98, 80)))
    x = np.random.default_rng().normal(0, 0.2, RATE).astype(np.float32)
    soft, loud = (modality.compute_frames(scale * x).astype(float) for scale in (0.5, 1.0))
    assert (abs(soft - loud) < 0.05).mean() > 0.995  # a band that is nearly silent by chance comes close to the floor


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "subtype"),
    [
        ("WAV", "PCM_16"),
        ("WAV", "PCM_24"),
        ("WAV", "FLOAT"),
        ("WAV", "ULAW"),
        ("FLAC", "PCM_16"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
    ],
)
def test_every_audio_format_gives_the_same_frames(form: str, subtype: str) -> None:
    samples = tone(1000, 1.0)
    found = decode_waveform(written(samples, form=form, subtype=subtype), RATE)
    spectrum = np.abs(np.fft.rfft(found[:RATE]))
    assert spectrum.argmax() == pytest.approx(1000, abs=1)
    assert np.abs(found).max() == pytest.approx(0.3, rel=0.2)
    assert abs(len(found) - RATE) <= 1000


@pytest.mark.parametrize("rate", [8000, 11_025, 44_100, 48_000])
def test_any_rate_is_brought_to_one(rate: int) -> None:
    found = decode_waveform(written(tone(1000, 1.0, rate), rate), RATE)
    assert abs(len(found) - RATE) <= 2
    assert np.abs(np.fft.rfft(found)).argmax() == pytest.approx(1000, abs=1)


def test_stereo_is_the_mean_of_its_channels() -> None:
    left, right = tone(500), tone(2000)
    both = decode_waveform(written(np.stack([left, right], 1), subtype="FLOAT"), RATE)
    assert both == pytest.approx((left + right) / 2, abs=1e-6)


def test_a_file_is_read_from_an_archive_as_from_a_folder(tmp_path: Path) -> None:
    data = written(babble())
    (tmp_path / "clip.wav").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "clips.zip", "w") as archive:
        archive.writestr("a/clip.wav", data)
    folder, zipped = (
        AudioModality(search_paths=[str(tmp_path)]),
        AudioModality(search_paths=[str(tmp_path / "clips.zip")]),
    )
    x = folder.read(Example("clip.wav"))
    assert x.dtype == np.dtype(folder.dtype)
    assert x.shape == (98, folder.width)
    assert np.array_equal(x, zipped.read(Example("a/clip.wav")))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", r"not audio that can be read \(it is no wav, .*convert it to one"),
        (b"RIFF and nothing more", "not audio"),
        (written(np.zeros(9, np.float32))[:30], "it is damaged: .*copy or make it anew"),
        (written(np.zeros(0, np.float32)), "no sample"),
        (written(np.array([0.1, np.nan], np.float32), subtype="FLOAT"), "not numbers"),
        (written(np.array([0.1, np.inf], np.float32), subtype="FLOAT"), "not numbers"),
        (written(np.tile(np.array([1e30, -1e30], np.float32), 400), subtype="FLOAT"), "far too large"),
    ],
    ids=[
        "nothing",
        "a beginning",
        "a cut header",
        "no samples",
        "not a number",
        "infinite",
        "too loud",
    ],  # a FLOAT file holds the time of day
)
def test_a_file_that_is_no_audio_is_one_error_with_its_line(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "bad.wav").write_bytes(data)
    with pytest.raises(DataError, match=says) as error:
        AudioModality().read(Example("bad.wav", file=str(tmp_path / "pairs.tsv"), line=7))
    assert "pairs.tsv:7" in str(error.value)
    assert "object at" not in str(error.value)  # of Python's, which no user knows


def test_a_file_that_claims_to_last_for_hours_is_refused() -> None:
    samples = np.zeros(3601 * 1000, np.float32)
    with pytest.raises(ValueError, match="3,601 seconds"):
        decode_waveform(written(samples, 1000, "FLAC"), RATE)


def test_a_truncated_file_is_shorter_audio_or_an_error() -> None:
    for form in ("FLAC", "WAV", "OGG"):
        data, length = written(babble(), form=form), RATE
        with suppress(ValueError):
            length = len(decode_waveform(data[: len(data) // 2], RATE))
        assert 0 < length <= RATE


@pytest.mark.parametrize("package", ["soundfile", "soxr", "kaldi_native_fbank"])
def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    (tmp_path / "a.wav").write_bytes(written(tone(500, rate=8000), 8000))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"dragoman\[audio\]"):
        AudioModality(search_paths=[str(tmp_path)]).read(Example("a.wav"))


# -- augmentation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_frames_played_faster_are_those_of_the_waveform_played_faster(speed: float) -> None:
    """soxr plays the sound itself at another speed: its pitch changes with its length."""
    tones = np.concatenate([tone(f, 0.15) for f in (300, 900, 2500, 500, 1400, 4000, 700)])
    samples = tones + np.random.default_rng().normal(0, 0.003, len(tones)).astype(np.float32)
    modality = AudioModality(augmentation=FrameAugmentation(speeds=[speed], time_masks=0, band_masks=0))
    truth, x = modality.compute_frames(soxr.resample(samples, RATE, RATE / speed)), modality.compute_frames(samples)
    found = modality.augment(x, np.random.default_rng(0))
    assert abs(len(found) - len(truth)) <= 2

    def alike(a: np.ndarray) -> float:
        n = min(len(a), len(truth))
        return float(np.corrcoef(a[:n].astype(float).ravel(), truth[:n].astype(float).ravel())[0, 1])

    assert alike(found) > 0.88
    assert alike(found) > alike(change_speed(x, speed)) + 0.1  # which changes the time alone


def test_augmentation_follows_from_the_generator_and_changes_nothing_in_place() -> None:
    modality, x = AudioModality(), AudioModality().compute_frames(babble())
    kept = x.copy()
    one, two = (modality.augment(x, np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(one, two)
    assert np.array_equal(x, kept)
    seen = {modality.augment(x, np.random.default_rng(seed)).tobytes() for seed in range(8)}
    assert len(seen) == 8


def test_what_only_training_sees_does_not_change_what_is_stored() -> None:
    assert repr(AudioModality()) == repr(
        AudioModality(has_augmentation=False, augmentation=FrameAugmentation(time_masks=0), search_paths=["x"])
    )
    assert repr(AudioModality()) != repr(AudioModality(rate=8000))
    assert AudioModality().blank().shape == (1, 80)
