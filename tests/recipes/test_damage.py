"""Data sets that are damaged: every recipe says where and what in one sentence, before anything is trained."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dragoman import recipes
from dragoman.core.errors import DataError

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def sound_sets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The made-up sets of a recipe, made once."""
    made: dict[str, Path] = {}

    def sets(name: str) -> Path:
        if name not in made:
            opened, made[name] = recipes.load_recipe(name), tmp_path_factory.mktemp(name)
            for one in opened.recipe.data:
                (made[name] / one).mkdir()
            opened.recipe_module.make_example({one: made[name] / one for one in opened.recipe.data}, random.Random(1))
        return made[name]

    return sets


def text_of(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def put(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def without_the_last_line(path: Path) -> None:
    put(path, "".join(text_of(path).splitlines(keepends=True)[:-1]))


def without_the_first_line(path: Path) -> None:
    put(path, "".join(text_of(path).splitlines(keepends=True)[1:]))


def with_one_more_column(path: Path) -> None:
    first, *others = text_of(path).splitlines()
    put(path, "".join(f"{line}\n" for line in (f"{first}\tmore", *others)))


def with_column(number: int, value: str) -> Damage:
    """That column of every line as something else."""

    def damage(path: Path) -> None:
        rows = [line.split("\t") for line in text_of(path).splitlines()]
        put(path, "".join("\t".join([*row[: number - 1], value, *row[number:]]) + "\n" for row in rows))

    return damage


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_noise_in_every_member(path: Path) -> None:
    """An archive that is whole, and whose files are none."""
    names = zipfile.ZipFile(path).namelist()
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, b"noise")


def without_the_last_member(path: Path) -> None:
    with zipfile.ZipFile(path) as old:
        kept = {name: old.read(name) for name in old.namelist()[:-1]}
    with zipfile.ZipFile(path, "w") as made:
        for name, data in kept.items():
            made.writestr(name, data)


def with_another_byte(path: Path) -> None:
    """In what the last file of an archive holds."""
    info = zipfile.ZipFile(path).infolist()[-1]
    data = bytearray(path.read_bytes())
    data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 0xFF
    path.write_bytes(data)


def in_stereo(path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    names = zipfile.ZipFile(path).namelist()
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            file = io.BytesIO()
            soundfile.write(file, np.zeros((80, 2), np.int16), 8000, format="WAV")
            made.writestr(name, file.getvalue())


def with_a_row_cut_in_two(path: Path) -> None:
    with np.load(path) as arrays:
        feats, offsets = arrays["feats"], arrays["offsets"]
    np.savez(path, feats=feats, offsets=np.insert(offsets, 1, 1))


def with_frames_moved(path: Path) -> None:
    with np.load(path) as arrays:
        feats, offsets = arrays["feats"], arrays["offsets"].copy()
    offsets[1] += 1
    np.savez(path, feats=feats, offsets=offsets)


TABLES: list[tuple[str, str, str, Damage, str]] = [
    ("ladder", "", "multi30k/train.de.gz", without_the_last_line, r"train\.de\.gz: ends after line 99"),
    ("multi30k", "cased", "multi30k/val.en", without_the_last_line, r"val\.en: ends after line 9"),
    ("translation", "tanaka", "tanaka-enja/test.ja", without_the_last_line, r"test\.ja: ends after line 11"),
    ("scan", "simple", "scan/simple.test.tsv.gz", with_one_more_column, r"test\.tsv\.gz:1: has 3 columns, not 2"),
    ("cogs", "", "cogs/gen.tsv.gz", with_one_more_column, r"gen\.tsv\.gz:1: has 4 columns, not 3"),
    ("text-to-sql", "atis-query", "text2sql/atis.tsv.gz", with_one_more_column, r"atis\.tsv\.gz:1: has 7 columns"),
    ("pronunciation", "", "cmudict/train.tsv.gz", with_one_more_column, r"train\.tsv\.gz:1: has 3 columns, not 2"),
    ("summarization", "", "scitldr-a/dev.tsv.gz", with_column(2, " "), r"dev\.tsv\.gz:1: the abstract .* is blank"),
]
TABLES += [
    ("inflection", "swa", "sigmorphon2023-inflection/swa.dev.tsv", with_one_more_column, r"swa\.dev\.tsv:1: has 4"),
    *(
        ("transliteration", part, f"{file}.test.tsv{end}", damage, rf"test\.tsv{end}:1: {found}")
        for part, file, end in (
            ("hindi", "dakshina-translit/hi", ""),
            ("arabic", "wikidata-names-translit/arabic", ".gz"),
        )
        for damage, found in ((with_one_more_column, "has 4"), (with_column(3, "many"), "column 3 is 'many'"))
    ),
    *(
        ("pronunciation-languages", year, file, with_one_more_column, rf"{Path(file).name}:1: has {count} columns")
        for year, file, count in (
            ("2020", "sigmorphon2020-g2p/dev.tsv.gz", 4),
            ("2021", "sigmorphon2021-g2p/low/gam_dev.tsv", 3),
        )
    ),
]
STRINGS = "fsdd/strings.dev.tsv"
MEDIA: list[tuple[str, str, str, Damage, str]] = [
    ("speech-digits", "", STRINGS, with_one_more_column, r"strings\.dev\.tsv:1: has 7 columns"),
    ("speech-digits", "", STRINGS, with_column(6, "40,x"), r"strings\.dev\.tsv:\d+: column 6 is '40,x'"),
    ("speech-digits", "", STRINGS, with_column(6, "1,2,3,4,5,6,7,8"), r"column 6 .* must be \d whole numbers"),
    ("speech-digits", "", "fsdd/single.tsv", with_column(4, "12"), r"single\.tsv:1: column 4 is '12'"),
    ("speech-digits", "", "fsdd/single.tsv", with_column(1, "none.wav"), r"recordings\.zip: has no intact 'none\.wav'"),
    (
        "speech-digits",
        "",
        "fsdd/recordings.zip",
        with_noise_in_every_member,
        r"recordings\.zip: '.*\.wav' is not audio",
    ),
    ("speech-digits", "", "fsdd/recordings.zip", in_stereo, r"recordings\.zip: '.*\.wav' has .* 2 channels"),
    ("speech-iban", "", "iban-asr/test.tsv", with_one_more_column, r"test\.tsv:1: has 5 columns"),
    ("speech-iban", "", "iban-asr/train.tsv", with_column(3, "long"), r"train\.tsv:1: column 3 is 'long'"),
    ("speech-iban", "", "iban-asr/train.zip", with_noise_in_every_member, r"train\.zip: '.*\.opus' is not audio"),
    ("speech-iban", "", "iban-asr/test.zip", without_the_last_member, r"test\.zip: has no intact 'four_009\.opus'"),
    (
        "speech-an4",
        "",
        "an4-mfcc/train.tsv",
        without_the_first_line,
        r"train\.npz: has 100 rows, and .*tsv has 99 lines",
    ),
    ("speech-an4", "", "an4-mfcc/dev.npz", with_a_row_cut_in_two, r"dev\.npz: has 11 rows, and .*tsv has 10 lines"),
    (
        "speech-an4",
        "",
        "an4-mfcc/dev.npz",
        with_frames_moved,
        r"dev\.tsv:1: says \d+ frames, and row 0 of .*dev\.npz has",
    ),
    ("speech-an4", "", "an4-mfcc/test.npz", with_noise_in_every_member, r"test\.npz: cannot be read as arrays"),
    ("captioning", "", "flickr8k/test.zip", without_the_last_member, r"test\.zip: has no intact 'test-9\.jpg'"),
    ("captioning", "", "flickr8k/test.zip", with_another_byte, r"test\.zip: has no intact 'test-9\.jpg'"),
]
MEDIA += [
    (name, "", f"{place}.{form}", damage, rf"{Path(place).name}\.{form}: {found}")
    for name, place, form in (
        ("captioning", "flickr8k/train", "zip"),
        ("captioning", "flickr8k/test", "zip"),
        ("speech-an4", "an4-mfcc/train", "npz"),
        ("speech-an4", "an4-mfcc/test", "npz"),
        ("speech-iban", "iban-asr/dev", "zip"),
    )
    for damage, found in ((Path.unlink, "the data set lacks"), (cut_in_half, "cannot be opened"))
]


@pytest.mark.parametrize(("name", "part", "file", "damage", "said"), [*TABLES, *MEDIA])
def test_damage_to_a_set_is_said_with_the_file_and_the_line(
    name: str, part: str, file: str, damage: Damage, said: str, sound_sets: Callable[[str], Path], tmp_path: Path
) -> None:
    opened = recipes.load_recipe(name)
    for needed in {"image": "PIL", "audio": "soundfile"}.items():
        if needed[0] in opened.recipe.extras:
            pytest.importorskip(needed[1])
    root = shutil.copytree(sound_sets(name), tmp_path / "sets")
    damage(root / file)
    (tmp_path / "prepared").mkdir()
    with pytest.raises(DataError, match=said):
        opened.recipe_module.prepare(opened.find_data_sets(root), part, tmp_path / "prepared")


def test_pictures_are_found_where_the_folder_of_a_set_has_two_spaces_in_its_name(
    sound_sets: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("PIL")
    root = shutil.copytree(sound_sets("captioning"), tmp_path / "my  sets")
    opened = recipes.load_recipe("captioning")
    opened.recipe_module.prepare(opened.find_data_sets(root), "", tmp_path)
    assert len(opened.recipe_module.baseline_outputs(tmp_path, "")["nearest picture"]) == 10
