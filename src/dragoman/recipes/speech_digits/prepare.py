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
from typing import TYPE_CHECKING

import numpy as np

from dragoman.core import files
from dragoman.core.errors import DataError, MissingExtra
from dragoman.recipes import tables

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    Samples = NDArray[np.int16]  # (N,)

RATE = 8000  # samples a second
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Join recordings to digit strings in archives of FLAC files; write the pairs of all splits; `part` is ignored."""
    data_set = data_sets["fsdd"].resolve()
    with tables.open_archive(data_set / "recordings.zip") as recordings:
        for name, split in {"train": "train", "valid": "dev", "test": "test"}.items():
            rows = tables.read_rows(data_set / f"strings.{split}.tsv", num_columns=6)
            tables.write_rows(folder / f"{name}.tsv", compose_strings(rows, recordings, folder / f"{split}.zip"))
    single = [row for row in tables.read_rows(data_set / "single.tsv", num_columns=4) if row[2] == "test"]
    tables.require_members(data_set / "recordings.zip", (row[0] for row in single))
    pairs = ([f"{data_set}/recordings.zip/{row[0]}", digit_word(row)] for row in single)
    tables.write_rows(folder / "single.tsv", pairs, has_file_name=True)


def digit_word(row: tables.TableRow) -> str:
    """The English word of the digit in a row's fourth column."""
    if row[3] not in map(str, range(len(DIGITS))):
        raise row.error(f"column 4 is '{row[3]}'; it must be a digit")
    return DIGITS[int(row[3])]


def compose_strings(rows: Iterable[tables.TableRow], recordings: zipfile.ZipFile, path: Path) -> list[list[str]]:
    """Write each row's joined recordings as FLAC files into a zip file; return (path in it, words) of each."""
    pairs = []
    with files.open_atomic(path) as file, zipfile.ZipFile(file, "w") as archive:
        for row in rows:
            name, _, _, words, recorded, _ = row
            clips = [read_samples(recordings, clip) for clip in recorded.split(",")]
            string = join_clips(clips, parse_gaps(row, len(clips) - 1))
            archive.writestr(f"{name}.flac", encode_audio(string, "FLAC"))
            pairs.append([f"{path.name}/{name}.flac", words])
    return pairs


def parse_gaps(row: tables.TableRow, count: int) -> list[int]:
    """Parse the `count` silences between a row's recordings, in milliseconds, from its sixth column."""
    gaps = [gap for gap in row[5].split(",") if gap]
    if len(gaps) != count or not all(map(str.isdecimal, gaps)):
        raise row.error(f"column 6 is '{row[5]}'; between {count + 1} recordings it must be {count} whole numbers")
    return [int(gap) for gap in gaps]


def join_clips(clips: Sequence[Samples], gaps: Sequence[int]) -> Samples:
    """Join clips end to end; gaps[i] milliseconds of silence lie between clip i and the next."""
    parts = [clips[0]]
    for gap, clip in zip(gaps, clips[1:], strict=True):
        parts += [np.zeros(gap * RATE // 1000, np.int16), clip]
    return np.concatenate(parts)


def read_samples(recordings: zipfile.ZipFile, name: str) -> Samples:
    """Read the 16-bit samples of a recording in an archive; it must be mono at RATE."""
    data = tables.read_member(recordings, name)
    try:
        samples, rate = load_soundfile().read(io.BytesIO(data), dtype="int16", always_2d=True)
    except (load_soundfile().SoundFileError, RuntimeError) as error:
        problem = f"'{name}' is not audio that can be read ({str(error).rstrip('. ')}); {tables.DOWNLOAD_AGAIN}"
        raise DataError(problem, recordings.filename) from None
    if (rate, samples.shape[1]) != (RATE, 1):
        problem = f"'{name}' has {rate:,} samples a second in {samples.shape[1]} channels"
        raise DataError(f"{problem}; the set's recordings have {RATE:,} in one", recordings.filename)
    return np.ravel(samples)


def encode_audio(samples: Samples, form: str) -> bytes:
    """Encode samples as a 16-bit audio file of format `form` at RATE."""
    file = io.BytesIO()
    load_soundfile().write(file, samples, RATE, format=form, subtype="PCM_16")
    return file.getvalue()


def load_soundfile() -> ModuleType:
    """Import the package soundfile; raise MissingExtra if it is not installed."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the package without libsndfile
        raise MissingExtra("soundfile", "audio", "joining recordings") from None
    module: ModuleType = soundfile
    return module


# -- generated example data --------------------------------------------------------------------------------------------


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write recordings of a tone for each digit and speaker, and random strings of them for each split."""
    speakers, parts = {"low": 1.0, "high": 1.3}, ("test", "dev", "train")
    numbers = np.random.default_rng(rng.randrange(2**32))
    single = []
    with zipfile.ZipFile(data_sets["fsdd"] / "recordings.zip", "w") as archive:
        for digit in range(10):
            for speaker, pitch in speakers.items():
                for index in range(6):
                    file = f"{digit}_{speaker}_{index}.wav"
                    archive.writestr(file, encode_audio(generate_tone(200 * pitch * 1.25**digit, numbers), "WAV"))
                    single.append([file, speaker, parts[index // 2], str(digit)])
    tables.write_data_set(data_sets["fsdd"] / "single.tsv", single)
    for part, count in {"train": 100, "dev": 10, "test": 10}.items():
        rows = [generate_string(part, i, rng, single) for i in range(count)]
        tables.write_data_set(data_sets["fsdd"] / f"strings.{part}.tsv{'.gz' if part == 'train' else ''}", rows)


def generate_tone(hertz: float, rng: np.random.Generator) -> Samples:
    """A noisy sine of 0.1 to 0.2 seconds at a frequency, as 16-bit samples."""
    t = np.arange(int(rng.uniform(0.1, 0.2) * RATE)) / RATE
    wave = 8000 * np.sin(2 * np.pi * hertz * t) + 50 * rng.normal(size=len(t))
    return wave.astype(np.int16)


def generate_string(part: str, number: int, rng: random.Random, single: Sequence[Sequence[str]]) -> list[str]:
    """A random row of strings.PART.tsv: one to seven recordings of one speaker, with random gaps."""
    speaker = rng.choice(["low", "high"])
    chosen = rng.choices([row for row in single if row[1] == speaker and row[2] == part], k=rng.randint(1, 7))
    digits, gaps = [row[3] for row in chosen], [str(40 * rng.randint(0, 4)) for _ in chosen[1:]]
    words = " ".join(DIGITS[int(digit)] for digit in digits)
    files = ",".join(row[0] for row in chosen)
    return [f"{speaker}-{number:05}", speaker, " ".join(digits), words, files, ",".join(gaps)]
