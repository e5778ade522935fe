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
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.core import files
from dragoman.core.errors import DataError, MissingExtra
from dragoman.modalities.audio import waveform
from dragoman.recipes import tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

RATE = 16_000  # samples a second
FASTEST = 25  # characters a second; the mean is 14, and one of 67 has a transcript of something else
Row = Sequence[str]


def prepare(sets: Mapping[str, Path], part: str, folder: Path) -> None:
    place = sets["iban-asr"].resolve()
    train, valid, test = (list(tables.rows(place / f"{split}.tsv", exactly=4)) for split in ("train", "dev", "test"))
    for split, rows in {"train": train, "dev": valid, "test": test}.items():
        tables.require(place / f"{split}.zip", (f"{row[0]}.opus" for row in rows))
    heard = [row for row in train if len(row[3]) <= FASTEST * row.number(2)]
    two_by_two = joined(couples(heard), place / "train.zip", folder / "joined.zip")
    tables.write(folder / "train.tsv", [*named(heard, place / "train.zip"), *two_by_two], named=True)
    tables.write(folder / "valid.tsv", named(valid, place / "dev.zip"), named=True)
    tables.write(folder / "test.tsv", named(test, place / "test.zip"), named=True)


def named(rows: Sequence[Row], archive: Path) -> list[Row]:
    return [[f"{archive}/{utterance}.opus", text] for utterance, _, _, text in rows]


def couples(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Neighbors of the same speaker, each utterance once."""
    speakers: dict[str, list[Row]] = {}
    for row in rows:
        speakers.setdefault(row[1], []).append(row)
    for own in speakers.values():
        yield from zip(own[::2], own[1::2], strict=False)


def joined(pairs: Iterator[tuple[Row, Row]], recordings: Path, path: Path) -> list[Row]:
    """The sounds of both in an archive, and the pairs that name them."""
    rows: list[Row] = []
    with tables.archive(recordings) as archive, files.aside(path) as file, zipfile.ZipFile(file, "w") as made:
        for pair in pairs:
            name = f"{'+'.join(row[0] for row in pair)}.flac"
            sounds = [sound(archive, f"{row[0]}.opus") for row in pair]
            made.writestr(name, written(np.concatenate(sounds), RATE, "FLAC", "PCM_16"))
            rows.append([f"{path.name}/{name}", " ".join(row[3] for row in pair)])
    return rows


def sound(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """The samples of an utterance, from −1 to 1."""
    try:
        return waveform(tables.member(archive, name), RATE)
    except ValueError as error:
        problem = f"'{name}' is not a sound that can be read ({error}); {tables.AGAIN}"
        raise DataError(problem, archive.filename) from None


def written(samples: NDArray[Any], rate: int, form: str, subtype: str) -> bytes:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the package without libsndfile
        raise MissingExtra("soundfile", "audio", "putting sounds together") from None
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def example(sets: Mapping[str, Path], rng: random.Random) -> None:
    """Syllables, each a tone, of two speakers in training and one in each other split."""
    syllables = {"ta": 300.0, "ki": 500.0, "su": 800.0, "ra": 1300.0}
    for split, speakers in {"train": ["one", "two"], "dev": ["three"], "test": ["four"]}.items():
        rows = []
        with zipfile.ZipFile(sets["iban-asr"] / f"{split}.zip", "w") as archive:
            for i in range(100 if split == "train" else 10):
                said = rng.choices(list(syllables), k=rng.randint(2, 6))
                samples = np.concatenate([tone(syllables[syllable] * rng.uniform(0.97, 1.03)) for syllable in said])
                speaker = speakers[i % len(speakers)]
                archive.writestr(f"{speaker}_{i:03}.opus", written(samples, RATE, "OGG", "OPUS"))
                text = " ".join("".join(said[j : j + 2]) for j in range(0, len(said), 2))
                rows.append([f"{speaker}_{i:03}", speaker, f"{len(samples) / RATE:.2f}", text])
        tables.write_set(sets["iban-asr"] / f"{split}.tsv", rows)


def tone(hertz: float) -> NDArray[Any]:
    t = np.arange(3 * RATE // 20) / RATE
    return np.asarray(0.3 * np.sin(2 * np.pi * hertz * t), np.float32)
