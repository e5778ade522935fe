"""Log-mel frames of Whisper: those of transformers' WhisperFeatureExtractor, and its equations one number at a time."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from dragoman.core.errors import DataError
from dragoman.core.types import Example
from dragoman.modalities.whisper import (
    WhisperAudioModality,
    hertz_to_slaney,
    log_mel,
    slaney_filterbank,
    slaney_to_hertz,
)


def a_sound(samples: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(samples) / 16_000)
    return (tone + 0.05 * rng.standard_normal(samples)).astype(np.float32)


def a_file(samples: np.ndarray, rate: int = 16_000) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="wav", subtype="FLOAT")
    return file.getvalue()


@pytest.mark.parametrize(("bins", "samples"), [(80, 1), (128, 163), (80, 16_000), (80, 240_001), (128, 500_000)])
def test_the_frames_are_those_of_transformers(bins: int, samples: int) -> None:
    transformers = pytest.importorskip("transformers")
    extractor, sound = transformers.WhisperFeatureExtractor(feature_size=bins), a_sound(samples)
    theirs = extractor(sound, sampling_rate=16_000, return_tensors="np")["input_features"][0].T
    ours = WhisperAudioModality(bins=bins).compute_frames(sound)
    assert theirs.shape == (3000, bins)
    np.testing.assert_allclose(ours[:3000], theirs, atol=1e-4)
    padded = np.pad(sound[:480_000], (0, max(0, 480_000 - samples)))
    in_float64 = extractor._np_extract_fbank_features(padded[None], "cpu")[0].T
    np.testing.assert_allclose(ours[:3000], in_float64, atol=1e-6)


def test_a_frame_is_the_logarithm_of_its_energies() -> None:
    sound, bins = a_sound(960), 6
    y = np.zeros((6, bins))
    mirrored = np.concatenate([sound[1:201][::-1], sound, sound[-201:-1][::-1]]).astype(np.float64)
    for j in range(6):
        window = [0.5 - 0.5 * math.cos(2 * math.pi * n / 400) for n in range(400)]
        spectrum = np.fft.fft([w * x for w, x in zip(window, mirrored[160 * j : 160 * j + 400], strict=True)])
        for b in range(bins):
            energy = sum(slaney_filterbank(bins)[line, b] * abs(spectrum[line]) ** 2 for line in range(201))
            y[j, b] = math.log10(max(energy, 1e-10))
    expected = (np.maximum(y, y.max() - 8) + 4) / 4
    np.testing.assert_allclose(log_mel(sound, bins), expected, atol=1e-6)


def test_every_triangle_has_the_same_area_on_slaneys_scale() -> None:
    hertz = np.array([0.0, 200.0, 1000.0, 6400.0])
    np.testing.assert_allclose(hertz_to_slaney(hertz), [0, 3, 15, 42])
    np.testing.assert_allclose(slaney_to_hertz(hertz_to_slaney(hertz)), hertz, atol=1e-9)
    bank = slaney_filterbank(80)
    assert bank.shape == (201, 80)
    assert (bank >= 0).all()
    wide = bank[:, 60:].sum(0) * 40  # the lines lie 40 Hz apart; sums over few of them are no areas
    np.testing.assert_allclose(wide, 1.0, rtol=0.02)


def test_a_short_sound_is_followed_by_silence_and_a_long_one_counts_as_too_long() -> None:
    modality = WhisperAudioModality(seconds=1, bins=8)
    short, exact, long = (modality.compute_frames(a_sound(n)) for n in (4_000, 16_000, 16_001))
    assert short.shape == exact.shape == modality.blank().shape == (100, 8)
    assert (short[30:] == short.min()).all()
    assert long.shape == (101, 8)
    np.testing.assert_array_equal(long[:100], exact)


def test_audio_of_any_rate_and_number_of_channels_is_read() -> None:
    pytest.importorskip("soxr")
    modality = WhisperAudioModality(seconds=1, bins=8)
    tone = (0.5 * np.sin(2 * np.pi * 700 * np.arange(48_000) / 48_000)).astype(np.float32)
    stereo = a_file(np.stack([tone, tone], 1), 48_000)
    same = a_file(tone[::3].copy(), 16_000)
    ours, expected = (modality.read(Example("x.wav", content=data)) for data in (stereo, same))
    assert np.abs(ours - expected)[5:-5].max() < 0.3
    assert (ours[50].argmax(), expected[50].argmax()) == (expected[50].argmax(),) * 2


def test_what_is_no_audio_is_refused_with_its_name() -> None:
    pytest.importorskip("soundfile")
    with pytest.raises(DataError, match=r"'x\.wav' is not audio that can be read"):
        WhisperAudioModality().read(Example("x.wav", content=b"no sound"))
