"""Iban: news read by 17 speakers, as Ogg Opus.

    iban-asr/SPLIT.tsv     utterance ⇥ speaker ⇥ seconds ⇥ transcript          SPLIT: train, dev, test
    iban-asr/SPLIT.zip     utterance.opus
        ─→  train.tsv, valid.tsv, test.tsv      DIR/iban-asr/SPLIT.zip/utterance.opus ⇥ transcript
            joined.zip                          two training utterances of a speaker, one after the other

No training utterance has more than 14 seconds, and one in five of the others has: attention that has never seen such
lengths stops early or begins again. So training also hears utterances two by two, the neighbors of each speaker.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dragoman.core import files
from dragoman.core.errors import DataError, MissingExtra
from dragoman.modalities.audio import decode_waveform
from dragoman.recipes import tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]  # (N,) from −1 to 1

RATE = 16_000  # samples a second
MAX_CHARACTERS_PER_SECOND = 25  # the mean is 14; one with 67 has the transcript of something else
Row = Sequence[str]


def prepare(data_sets: Mapping[str, Path], part: str, folder: Path) -> None:
    """Write the utterances with their transcripts; training also has pairs joined end to end; `part` is ignored."""
    data_set = data_sets["iban-asr"].resolve()
    train, valid, test = (
        list(tables.read_rows(data_set / f"{split}.tsv", num_columns=4)) for split in ("train", "dev", "test")
    )
    for split, rows in {"train": train, "dev": valid, "test": test}.items():
        tables.require_members(data_set / f"{split}.zip", (f"{row[0]}.opus" for row in rows))
    usable = [row for row in train if len(row[3]) <= MAX_CHARACTERS_PER_SECOND * row.number(2)]
    two_by_two = join_pairs(pair_neighbors(usable), data_set / "train.zip", folder / "joined.zip")
    tables.write_rows(
        folder / "train.tsv", [*name_files(usable, data_set / "train.zip"), *two_by_two], has_file_name=True
    )
    tables.write_rows(folder / "valid.tsv", name_files(valid, data_set / "dev.zip"), has_file_name=True)
    tables.write_rows(folder / "test.tsv", name_files(test, data_set / "test.zip"), has_file_name=True)


def name_files(rows: Sequence[Row], archive: Path) -> list[Row]:
    """Replace each row by the path of its utterance inside the archive, and the transcript."""
    return [[f"{archive}/{utterance}.opus", text] for utterance, _, _, text in rows]


def pair_neighbors(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Pair consecutive rows of the same speaker, each row at most once."""
    speakers: dict[str, list[Row]] = {}
    for row in rows:
        speakers.setdefault(row[1], []).append(row)
    for own in speakers.values():
        yield from zip(own[::2], own[1::2], strict=False)


def join_pairs(pairs: Iterator[tuple[Row, Row]], recordings: Path, path: Path) -> list[Row]:
    """Write the joined sounds of each pair as FLAC files into a zip file; return (path in it, transcript) of each."""
    rows: list[Row] = []
    with (
        tables.open_archive(recordings) as archive,
        files.open_atomic(path) as file,
        zipfile.ZipFile(file, "w") as joined,
    ):
        for pair in pairs:
            name = f"{'+'.join(row[0] for row in pair)}.flac"
            sounds = [read_samples(archive, f"{row[0]}.opus") for row in pair]
            joined.writestr(name, encode_audio(np.concatenate(sounds), RATE, "FLAC", "PCM_16"))
            rows.append([f"{path.name}/{name}", " ".join(row[3] for row in pair)])
    return rows


def read_samples(archive: zipfile.ZipFile, name: str) -> Samples:
    """Read a recording in an archive as 16-bit samples; it must be mono at RATE."""
    try:
        return decode_waveform(tables.read_member(archive, name), RATE)
    except ValueError as error:
        problem = f"'{name}' is not audio that can be read ({error}); {tables.DOWNLOAD_AGAIN}"
        raise DataError(problem, archive.filename) from None


def encode_audio(samples: Samples, rate: int, form: str, subtype: str) -> bytes:
    """Encode samples as an audio file of a format (`form`) and subtype."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the package without libsndfile
        raise MissingExtra("soundfile", "audio", "joining recordings") from None
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def make_example(data_sets: Mapping[str, Path], rng: random.Random) -> None:
    """Write utterances of syllables that are tones: two speakers in train, one in each other split."""
    syllables = {"ta": 300.0, "ki": 500.0, "su": 800.0, "ra": 1300.0}
    for split, speakers in {"train": ["one", "two"], "dev": ["three"], "test": ["four"]}.items():
        rows = []
        with zipfile.ZipFile(data_sets["iban-asr"] / f"{split}.zip", "w") as archive:
            for i in range(100 if split == "train" else 10):
                spoken = rng.choices(list(syllables), k=rng.randint(2, 6))
                samples = np.concatenate(
                    [generate_tone(syllables[syllable] * rng.uniform(0.97, 1.03)) for syllable in spoken]
                )
                speaker = speakers[i % len(speakers)]
                archive.writestr(f"{speaker}_{i:03}.opus", encode_audio(samples, RATE, "OGG", "OPUS"))
                text = " ".join("".join(spoken[j : j + 2]) for j in range(0, len(spoken), 2))
                rows.append([f"{speaker}_{i:03}", speaker, f"{len(samples) / RATE:.2f}", text])
        tables.write_data_set(data_sets["iban-asr"] / f"{split}.tsv", rows)


def generate_tone(hertz: float) -> Samples:
    """A sine of 0.15 seconds."""
    t = np.arange(3 * RATE // 20) / RATE
    return np.asarray(0.3 * np.sin(2 * np.pi * hertz * t), np.float32)
