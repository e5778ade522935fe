"""Free Spoken Digit Dataset: recordings of single digits, and lists of those to put together into strings.

    fsdd/recordings.zip               DIGIT_SPEAKER_INDEX.wav, 8,000 samples a second
    fsdd/single.tsv                   file ⇥ speaker ⇥ part ⇥ digit
    fsdd/strings.PART.tsv(.gz)        id ⇥ speaker ⇥ digits ⇥ words ⇥ files ⇥ gaps            PART: train, dev, test
        ─→  train.tsv, valid.tsv, test.tsv      PART.zip/id.flac ⇥ words              beside the .zip files made here
            single.tsv                          DIR/fsdd/recordings.zip/file ⇥ word   the test part of the single ones

A string is its recordings end to end with silence of so many milliseconds between them. No recording is in two parts.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.core import files
from dragoman.core.errors import DataError, MissingExtra
from dragoman.recipes import tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

RATE = 8000  # samples a second
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    place = sets["fsdd"].resolve()
    with tables.archive(place / "recordings.zip") as recordings:
        for name, split in {"train": "train", "valid": "dev", "test": "test"}.items():
            rows = tables.rows(place / f"strings.{split}.tsv", exactly=6)
            tables.write(folder / f"{name}.tsv", composed(rows, recordings, folder / f"{split}.zip"))
    single = [row for row in tables.rows(place / "single.tsv", exactly=4) if row[2] == "test"]
    tables.require(place / "recordings.zip", (row[0] for row in single))
    alone = ([f"{place}/recordings.zip/{row[0]}", digit(row)] for row in single)
    tables.write(folder / "single.tsv", alone, named=True)


def digit(row: tables.Row) -> str:
    """What is said in a single recording."""
    if row[3] not in map(str, range(len(DIGITS))):
        raise row.wrong(f"column 4 is '{row[3]}'; it must be a digit")
    return DIGITS[int(row[3])]


def composed(rows: Iterable[tables.Row], recordings: zipfile.ZipFile, path: Path) -> list[list[str]]:
    """The strings as sound files in an archive; the pairs that name them."""
    pairs = []
    with files.aside(path) as made, zipfile.ZipFile(made, "w") as archive:
        for row in rows:
            name, _, _, words, recorded, _ = row
            clips = [sound(recordings, file) for file in recorded.split(",")]
            string = joined(clips, gaps(row, len(clips) - 1))
            archive.writestr(f"{name}.flac", written(string, "FLAC"))
            pairs.append([f"{path.name}/{name}.flac", words])
    return pairs


def gaps(row: tables.Row, count: int) -> list[int]:
    """The milliseconds of silence between the recordings of a string."""
    found = [gap for gap in row[5].split(",") if gap]
    if len(found) != count or not all(map(str.isdecimal, found)):
        raise row.wrong(f"column 6 is '{row[5]}'; between {count + 1} recordings it must be {count} whole numbers")
    return [int(gap) for gap in found]


def joined(clips: Sequence[NDArray[Any]], gaps: Sequence[int]) -> NDArray[Any]:
    """Clips end to end, with so many milliseconds of silence after each but the last."""
    parts = [clips[0]]
    for gap, clip in zip(gaps, clips[1:], strict=True):
        parts += [np.zeros(gap * RATE // 1000, np.int16), clip]
    return np.concatenate(parts)


def sound(recordings: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """The samples of a recording, as they are: whole numbers of 16 bits."""
    data = tables.member(recordings, name)
    try:
        samples, rate = soundfile().read(io.BytesIO(data), dtype="int16", always_2d=True)
    except (soundfile().SoundFileError, RuntimeError) as error:
        problem = f"'{name}' is not a sound that can be read ({str(error).rstrip('. ')}); {tables.AGAIN}"
        raise DataError(problem, recordings.filename) from None
    if (rate, samples.shape[1]) != (RATE, 1):
        found = f"'{name}' has {rate:,} samples a second in {samples.shape[1]} channels"
        raise DataError(f"{found}; the set's recordings have {RATE:,} in one", recordings.filename)
    return np.ravel(samples)


def written(samples: NDArray[Any], form: str) -> bytes:
    file = io.BytesIO()
    soundfile().write(file, samples, RATE, format=form, subtype="PCM_16")
    return file.getvalue()


def soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the package without libsndfile
        raise MissingExtra("soundfile", "audio", "putting sounds together") from None
    return soundfile


# -- made-up data ------------------------------------------------------------------------------------------------------


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    """A tone for each digit, higher for the second speaker; two recordings of each in every part."""
    speakers, parts = {"low": 1.0, "high": 1.3}, ("test", "dev", "train")
    numbers = np.random.default_rng(rng.randrange(2**32))
    single = []
    with zipfile.ZipFile(sets["fsdd"] / "recordings.zip", "w") as archive:
        for digit in range(10):
            for speaker, pitch in speakers.items():
                for index in range(6):
                    file = f"{digit}_{speaker}_{index}.wav"
                    archive.writestr(file, written(tone(200 * pitch * 1.25**digit, numbers), "WAV"))
                    single.append([file, speaker, parts[index // 2], str(digit)])
    tables.write_set(sets["fsdd"] / "single.tsv", single)
    for part, count in {"train": 100, "dev": 10, "test": 10}.items():
        rows = [string(part, i, rng, single) for i in range(count)]
        tables.write_set(sets["fsdd"] / f"strings.{part}.tsv{'.gz' if part == 'train' else ''}", rows)


def tone(hertz: float, rng: np.random.Generator) -> NDArray[Any]:
    t = np.arange(int(rng.uniform(0.1, 0.2) * RATE)) / RATE
    wave = 8000 * np.sin(2 * np.pi * hertz * t) + 50 * rng.normal(size=len(t))
    return wave.astype(np.int16)


def string(part: str, number: int, rng: random.Random, single: Sequence[Sequence[str]]) -> list[str]:
    speaker = rng.choice(["low", "high"])
    chosen = rng.choices([row for row in single if row[1] == speaker and row[2] == part], k=rng.randint(1, 7))
    digits, gaps = [row[3] for row in chosen], [str(40 * rng.randint(0, 4)) for _ in chosen[1:]]
    words = " ".join(DIGITS[int(digit)] for digit in digits)
    files = ",".join(row[0] for row in chosen)
    return [f"{speaker}-{number:05}", speaker, " ".join(digits), words, files, ",".join(gaps)]
