"""Models of Hugging Face transformers compute and generate the same after `dragoman import hf:DIR OUT`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.interop.importers import hf_models
from tests.interop.importers.conftest import ImportedCase

from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core.errors import ModelError, UserError
from dragoman.core.generation import GenerationOptions
from dragoman.core.registry import Part
from dragoman.core.types import BOS, PAD
from dragoman.inference import pipeline
from dragoman.interop.importers import ImportOptions, import_model
from dragoman.interop.importers.contents import ABSENT_BIAS, Imported, map_vocabulary
from dragoman.interop.importers.huggingface import read_model
from dragoman.nn.positions import HeadSpec, T5Positions

EVERY = pytest.mark.parametrize("name", list(hf_models.CASES))
Find = Callable[[str], ImportedCase]


def padded(rows: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (B, T) and a mask (B, T)."""
    lengths = torch.tensor([len(row) for row in rows])
    x = torch.full((len(rows), int(lengths.max())), pad)
    for i, row in enumerate(rows):
        x[i, : len(row)] = torch.tensor(row)
    return x, torch.arange(x.shape[1]) < lengths[:, None]


@EVERY
def test_logits_of_a_padded_batch_are_those_of_transformers(name: str, imported: Find) -> None:
    case = imported(name)
    theirs, ours = case.theirs.model, case.ours
    sources = [ours.codec.encode_source(example) for example in case.examples(hf_models.texts(12, 3))]
    generator = torch.Generator().manual_seed(0)
    size = len(ours.codec.target)
    targets = [[BOS, *torch.randint(4, size, (n,), generator=generator).tolist()] for n in range(1, 13)]
    source, real = padded(sources, PAD)  # type: ignore[arg-type]
    target, is_target = padded(targets, PAD)
    source_rows, rows = torch.tensor(case.source.rows), torch.tensor(case.target.rows)
    with torch.no_grad():
        expected = theirs(
            input_ids=source_rows[source], attention_mask=real.long(), decoder_input_ids=rows[target]
        ).logits
        memory = ours.model.encode(source, real.sum(-1))
        logits = ours.model.logits(ours.model.decode(target, memory).o)
    expected, logits = expected[is_target].index_select(-1, rows), logits[is_target]
    shown = [i for i in range(size) if i not in case.target.repeated and not (i == BOS and case.target.repeats_start)]
    assert sorted(set(case.target.rows)) == sorted(case.target.rows[i] for i in shown)
    assert (logits - expected)[:, shown].abs().max() < 1e-4
    # The softmax is over the same symbols, each once.
    difference = logits.log_softmax(-1)[:, shown] - expected[:, shown].log_softmax(-1)
    assert difference.abs().max() < 1e-4


def their_outputs(case: ImportedCase, lines: list[str], beams: int, **options: Any) -> list[list[int]]:
    """Ids without the first symbol and </s>; what ours never emits takes no part in the softmax.

    Their suppress_tokens acts behind it, and their renormalize_logits behind no_repeat_ngram_size, too.
    """
    theirs = case.theirs
    rows = theirs.encode(lines)
    x, mask = padded(rows, theirs.model.config.pad_token_id)
    never = torch.tensor(case.target.rows[PAD : BOS + (not case.target.repeats_start)])

    def leave_out(model: Any, inputs: Any, output: Any) -> None:
        output.logits.index_fill_(-1, never, -torch.inf)

    with torch.no_grad(), theirs.model.register_forward_hook(leave_out):
        outputs = theirs.model.generate(
            input_ids=x, attention_mask=mask.long(), num_beams=beams, **theirs.generate, **options
        )
    eos = theirs.model.config.eos_token_id
    results = [row[1:] for row in outputs.tolist()]
    return [row[: row.index(eos)] if eos in row else row for row in results]


def assert_same_outputs(case: ImportedCase, count: int) -> None:
    """By the imported settings (a beam), and greedily."""
    lines = hf_models.texts(count, 5)
    examples = case.examples(lines)
    search = case.ours.config.generation
    assert (search.search.name, search.beam, search.length_rule.name) == ("beam", 4, "power")
    expected = their_outputs(case, lines, beams=4)
    found = [[case.target.rows[id] for id in result.ids] for result in case.ours.predict(examples)]
    # Where no </s> came in time, theirs lets hypotheses that are cut compete with finished ones, and ours does not.
    whole = [i for i, ids in enumerate(expected) if len(ids) < hf_models.LONGEST - 1]
    assert len(whole) > 0.7 * count
    assert len({tuple(expected[i]) for i in whole}) > 0.1 * count
    assert [found[i] for i in whole] == [expected[i] for i in whole]

    options = GenerationOptions(search=Part("greedy"), max_new_tokens=hf_models.LONGEST - 1)
    greedy = [[case.target.rows[id] for id in result.ids] for result in case.ours.predict(examples, options)]
    assert greedy == [ids[: hf_models.LONGEST - 1] for ids in their_outputs(case, lines, beams=1)]


@EVERY
def test_outputs_are_those_of_transformers_greedily_and_by_the_imported_settings(name: str, imported: Find) -> None:
    assert_same_outputs(imported(name), 12)


@pytest.mark.long
@EVERY
def test_200_outputs_are_those_of_transformers(name: str, imported: Find) -> None:
    assert_same_outputs(imported(name), 200)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_every_stopping_rule_and_length_penalty_means_the_same(
    early_stopping: Any, length_penalty: float, imported: Find
) -> None:
    case = imported("t5")
    lines = hf_models.texts(16, 6)
    changed = {"early_stopping": early_stopping, "length_penalty": length_penalty}
    patience = {"patience": 1.0} if early_stopping is True else {}  # theirs is 1
    expected = their_outputs(case, lines, 4, **changed)
    whole = [i for i, ids in enumerate(expected) if len(ids) < hf_models.LONGEST - 1]
    results = case.ours.predict(case.examples(lines), GenerationOptions(**changed, **patience))
    assert len(whole) > 8
    assert [[case.target.rows[id] for id in results[i].ids] for i in whole] == [expected[i] for i in whole]


@pytest.mark.parametrize("name", ["marian with languages", "nllb", "t5 v1.1"])
def test_the_engine_of_this_machine_gives_the_outputs_of_the_equations(name: str, imported: Find) -> None:
    case = imported(name)
    fast = pipeline.load(case.path, "cpu")
    examples = case.examples(hf_models.texts(20, 8))
    assert [x.ids for x in fast.predict(examples)] == [x.ids for x in case.ours.predict(examples)]
    pairs = [replace(example, target="ab ba") for example in examples]
    assert fast.score(pairs) == pytest.approx(case.ours.score(pairs), abs=1e-4)


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (16, 64), (32, 256)])
@pytest.mark.parametrize("causal", [False, True])
def test_relative_positions_fall_into_the_buckets_of_t5(buckets: int, distance: int, causal: bool) -> None:
    """Theirs takes a logarithm in float32, and ours the edges in double precision."""
    scheme = T5Positions(24, HeadSpec(3, 8, causal), buckets=buckets, distance=distance)
    s = torch.arange(-1200, 1201)
    bucket = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    expected = bucket(s, bidirectional=not causal, num_buckets=buckets, max_distance=distance)
    assert torch.equal(scheme.bucket_index(s), expected)


# -- what is carried over ----------------------------------------------------------------------------------------------


@dataclass
class Copy:
    """A copy of a folder of theirs, to be changed."""

    folder: Path

    def change(self, file: str, **values: Any) -> Copy:
        path = self.folder / file
        value = json.loads(path.read_text()) if path.exists() else {}
        hf_models.write_json(path, {k: v for k, v in (value | values).items() if v is not None})
        return self

    def read(self, **options: Any) -> Imported:
        return read_model(self.folder, ImportOptions(**options))

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "model.safetensors")


@pytest.fixture
def copy(imported: Find, tmp_path: Path) -> Callable[[str], Copy]:
    def make(name: str) -> Copy:
        shutil.copytree(imported(name).theirs.folder, tmp_path / "theirs")
        return Copy(tmp_path / "theirs")

    return make


CopyOf = Callable[[str], Copy]


def test_settings_of_generation_have_our_names_and_what_has_no_place_is_said(copy: CopyOf) -> None:
    one = copy("bart").change(
        "generation_config.json",
        num_beams=5,
        length_penalty=2.0,
        early_stopping=True,
        max_new_tokens=None,
        max_length=142,
        min_length=56,
        no_repeat_ngram_size=3,
        repetition_penalty=1.2,
        encoder_no_repeat_ngram_size=3,
        suppress_tokens=[1],
        bad_words_ids=[[1]],
        begin_suppress_tokens=[1, 7],
        do_sample=True,
        eos_token_id=[2, 5],
    )
    read = one.read()
    assert read.config["generation"] == {
        "search": "beam",
        "beam": 5,
        "length_rule": "power",
        "length_penalty": 2.0,
        "early_stopping": True,
        "patience": 1.0,
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.2,
        "max_new_tokens": 140,  # without the start symbol and </s>
        "min_new_tokens": 55,
    }
    assert sorted(x.split(":")[0].removeprefix("generation setting ") for x in read.limitations) == [
        "begin_suppress_tokens",
        "do_sample",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "repetition_penalty",
    ]
    few = one.change("generation_config.json", num_beams=1, repetition_penalty=0.9, forced_eos_token_id=None)
    settings = few.change("config.json", forced_eos_token_id=None).read().config["generation"]
    assert settings == {"search": "greedy", "no_repeat_ngram_size": 3, "max_new_tokens": 141, "min_new_tokens": 55}


@pytest.mark.parametrize(
    "values",
    [
        {"num_beams": "4"},
        {"num_beams": 10**9},
        {"length_penalty": "x"},
        {"max_length": -1},
        {"min_length": []},
        {"no_repeat_ngram_size": True},
    ],
)
def test_settings_of_generation_that_are_no_numbers_are_refused(values: dict[str, Any], copy: CopyOf) -> None:
    one = copy("bart").change("generation_config.json", max_new_tokens=None, **values)
    with pytest.raises(ModelError, match=f"generation setting {next(iter(values))} is"):
        one.read()


def test_the_license_stands_in_the_front_matter_of_the_readme(copy: CopyOf) -> None:
    one = copy("t5")
    assert one.read().license == ""
    (one.folder / "README.md").write_text("---\nlanguage: de\nlicense: cc-by-nc-4.0\n---\n# A model\nlicense: no\n")
    assert one.read().license == "cc-by-nc-4.0"
    (one.folder / "README.md").write_text("# A model\nlicense: no\n")
    assert one.read().license == ""


def test_the_import_says_what_was_read(imported: Find) -> None:
    lines = imported("marian with two vocabularies").report.lines()
    assert "MarianMTModel" in lines[0]
    assert "names no license" in lines[0]


def test_numbers_that_older_configs_leave_out_are_those_of_their_families(copy: CopyOf) -> None:
    left_out = [
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
        "layer_norm_epsilon",
        "num_decoder_layers",
        "dropout_rate",
        "feed_forward_proj",
        "pad_token_id",
        "eos_token_id",
        "decoder_start_token_id",
    ]
    one = copy("t5")
    before = one.read()
    for file in ("config.json", "generation_config.json"):
        one.change(file, **dict.fromkeys(left_out))
    assert one.read().config == before.config


def test_older_names_of_the_same_weights_are_read(copy: CopyOf) -> None:
    """Files of transformers 4 hold tied tables several times, BartModel's no prefix, and Marian's its sinusoids."""
    one = copy("marian")
    before = one.read()
    weights = one.weights()
    table = weights["model.shared.weight"]
    positions = transformers.MarianMTModel.from_pretrained(one.folder).model.encoder.embed_positions.weight.detach()
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        weights[name] = table.clone()
    for side in ("encoder", "decoder"):
        weights[f"model.{side}.embed_positions.weight"] = positions.clone()
    save_file(weights, one.folder / "model.safetensors")
    after = one.read()
    assert (after.config, after.weights.keys()) == (before.config, before.weights.keys())
    bare = {name.removeprefix("model."): x for name, x in weights.items()}
    save_file(bare, one.folder / "model.safetensors")
    assert one.read().weights.keys() == before.weights.keys()
    weights["model.encoder.embed_positions.weight"] += 0.5  # which are read as they are there
    save_file(weights, one.folder / "model.safetensors")
    assert one.read().config["model"]["encoder"]["position"] == {"name": "learned", "length": 96}


def test_half_precision_and_shards_are_read(copy: CopyOf, tmp_path: Path) -> None:
    one = copy("t5 v1.1")
    weights = {name: x.half() for name, x in one.weights().items()}
    (one.folder / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in shards.items():
        save_file({name: weights[name] for name in own}, one.folder / file)
    index = {"weight_map": {name: file for file, own in shards.items() for name in own}}
    hf_models.write_json(one.folder / "model.safetensors.index.json", index)
    read = one.read()
    q = read.weights["encoder.stack.blocks.0.mixer.Wq.weight"]
    assert torch.equal(q.load(), weights["encoder.block.0.layer.0.SelfAttention.q.weight"])
    import_model(f"hf:{one.folder}", tmp_path / "ours")
    assert load_file(tmp_path / "ours/model.safetensors")["output.bias"].dtype == torch.float32


def test_a_language_that_every_output_begins_with_need_not_be_given(copy: CopyOf) -> None:
    one = copy("mbart-50")
    assert one.read().config["tokenizer"]["target_template"] == "<lang:{to}> {text} </s>"
    tokenizer = transformers.AutoTokenizer.from_pretrained(one.folder)
    one.change("generation_config.json", forced_bos_token_id=tokenizer.convert_tokens_to_ids("ro_RO"))
    assert one.read().config["tokenizer"]["target_template"] == "<lang:ro_RO> {text} </s>"
    assert one.read(target_lang="de_DE").config["tokenizer"]["target_template"] == "<lang:de_DE> {text} </s>"
    one.change("generation_config.json", forced_bos_token_id=5)
    with pytest.raises(ModelError, match="forced_bos_token_id is 5, which is no symbol"):
        one.read()


def test_a_forced_symbol_may_be_the_one_that_decoders_start_from(copy: CopyOf) -> None:
    one = copy("bart").change("generation_config.json", decoder_start_token_id=0, forced_bos_token_id=0)
    read = one.read()
    assert read.config["tokenizer"]["target_template"] == "<s:> {text} </s>"
    vocabulary = read.codec.target.vocabulary
    table = read.weights["frontend.table.weight"].load()
    assert torch.equal(table[BOS], table[vocabulary.symbol_id("<s:>")])
    assert read.weights["output.bias"].load()[BOS] == ABSENT_BIAS


def test_symbols_that_are_one_there_count_once_in_the_softmax() -> None:
    names = ["</s>", "<unk>", "a", "b"]
    one = map_vocabulary(names, pad=0, start=0, eos=0, unk=1)
    assert one.rows == [0, 0, 0, 1, 2, 3]
    bias = one.output_bias(LazyTensor.of(torch.arange(4.0))).load()
    assert bias.tolist() == [ABSENT_BIAS, ABSENT_BIAS, 0.0, 1.0, 2.0, 3.0]
    with pytest.raises(ModelError, match="the tokenizer has 4 tokens"):
        one.pick(LazyTensor.of(torch.zeros(3, 2)))


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_pickled_weights_are_read_where_the_user_trusts_them(name: str, copy: CopyOf, tmp_path: Path) -> None:
    one = copy(name)
    before = {key: x.load() for key, x in one.read().weights.items()}
    torch.save(one.weights(), one.folder / "pytorch_model.bin")
    (one.folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="--trust-pickle"):
        one.read()
    after = one.read(trust_pickle=True)
    assert after.weights.keys() == before.keys()
    assert all(torch.equal(x.load(), before[key]) for key, x in after.weights.items())


def test_a_classifier_on_the_same_architecture_is_no_sequence_to_sequence_model(copy: CopyOf) -> None:
    one = copy("bart")
    weights = one.weights() | {"classification_head.dense.weight": torch.zeros(2, 24)}
    save_file(weights, one.folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"'classification_head.dense.weight', which its config does not imply"):
        one.read()


# -- what is refused ---------------------------------------------------------------------------------------------------


def damage_weights(one: Copy, change: Callable[[bytes], bytes]) -> None:
    path = one.folder / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))


def claim(tensor_end: int) -> Callable[[bytes], bytes]:
    """A header that says that the first tensor is so long."""

    def change(data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        last = max((name for name in header if name != "__metadata__"), key=lambda n: header[n]["data_offsets"][1])
        start = header[last]["data_offsets"][0]
        header[last] |= {"data_offsets": [start, start + tensor_end], "shape": [tensor_end // 4]}
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + size :]

    return change


def write_index(one: Copy, file: str) -> None:
    (one.folder / "model.safetensors").rename(one.folder / "a.safetensors")
    hf_models.write_json(one.folder / "model.safetensors.index.json", {"weight_map": {"shared.weight": file}})


DAMAGES: dict[str, tuple[Callable[[Copy], Any], str]] = {
    "no config.json": (lambda one: (one.folder / "config.json").unlink(), "config.json: is missing"),
    "a config that is no JSON": (lambda one: (one.folder / "config.json").write_text("{"), "is not valid JSON"),
    "a config that is a list": (lambda one: (one.folder / "config.json").write_text("[]"), "holds no JSON object"),
    "an unknown architecture": (lambda one: one.change("config.json", model_type="t5gemma"), "these can: marian, bart"),
    "no architecture": (lambda one: one.change("config.json", model_type=None), "these can: marian, bart"),
    "quantized weights": (lambda one: one.change("config.json", quantization_config={"bits": 4}), "are quantized"),
    "no weights": (lambda one: (one.folder / "model.safetensors").unlink(), "has no model.safetensors"),
    "no tokenizer": (lambda one: (one.folder / "tokenizer.json").unlink(), "has no tokenizer"),
    "another width": (lambda one: one.change("config.json", d_model=32), "contradict each other"),
    "another inner width": (lambda one: one.change("config.json", d_ff=48), "contradict each other"),
    "other heads": (lambda one: one.change("config.json", num_heads=5), "contradict each other"),
    "another vocabulary": (lambda one: one.change("config.json", vocab_size=500), "contradict each other"),
    "more layers": (lambda one: one.change("config.json", num_layers=3), "has no weight"),
    "fewer layers": (lambda one: one.change("config.json", num_layers=1), "which its config does not imply"),
    "millions of layers": (lambda one: one.change("config.json", num_layers=9_999_999), "has no weight"),
    "an absurd width": (lambda one: one.change("config.json", d_model=10**9), "must be a positive number"),
    "a width that is no number": (lambda one: one.change("config.json", d_model="24"), "must be a positive number"),
    "a negative dropout": (lambda one: one.change("config.json", dropout_rate=-1), "must be a number from 0 on"),
    "a large dropout": (lambda one: one.change("config.json", dropout_rate=3.5), "dropout"),
    "no epsilon": (lambda one: one.change("config.json", layer_norm_epsilon="x"), "must be a number from 0 on"),
    "an absurd distance": (
        lambda one: one.change("config.json", relative_attention_max_distance=4),
        "t5 positions cannot",
    ),
    "an unknown activation": (
        lambda one: one.change("config.json", feed_forward_proj="odd"),
        "feed_forward_proj 'odd'",
    ),
    "a symbol outside": (lambda one: one.change("config.json", pad_token_id=9999), "must be an id below"),
    "a start outside": (
        lambda one: one.change("generation_config.json", decoder_start_token_id=-1),
        "must be an id below",
    ),
    "truncated weights": (lambda one: damage_weights(one, lambda data: data[:-100]), "no whole safetensors file"),
    "weights of 5 bytes": (lambda one: damage_weights(one, lambda data: data[:5]), "cut off, or no safetensors"),
    "a tensor of 100 GB": (lambda one: damage_weights(one, claim(100 * 2**30)), "no whole safetensors file"),
    "a header of 100 GB": (
        lambda one: damage_weights(one, lambda data: (100 * 2**30).to_bytes(8, "little") + data[8:]),
        "is cut off",
    ),
    "a file in another folder": (lambda one: write_index(one, "../a.safetensors"), "names a file in another folder"),
    "the folder above": (lambda one: write_index(one, ".."), "names a file in another folder"),
    "no file name": (lambda one: write_index(one, ""), "names a file in another folder"),
    "a name with a null": (lambda one: write_index(one, "a\0b"), "names a file in another folder"),
    "a missing shard": (lambda one: write_index(one, "c.safetensors"), "is missing"),
    "a shard without the tensor": (
        lambda one: (
            write_index(one, "a.safetensors"),
            one.change("model.safetensors.index.json", weight_map={"odd": "a.safetensors"}),
        ),
        "lacks the tensor odd",
    ),
    "an index that is none": (
        lambda one: (write_index(one, "a"), one.change("model.safetensors.index.json", weight_map=[1])),
        "no weight_map",
    ),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_folder_is_refused_in_one_sentence_and_nothing_is_left(
    damage: str, copy: CopyOf, tmp_path: Path
) -> None:
    one = copy("t5")
    change, problem = DAMAGES[damage]
    change(one)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=problem) as raised:
        import_model(f"hf:{one.folder}", tmp_path / "ours")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400
    assert str(one.folder) in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before


def test_values_that_are_not_finite_are_refused_while_writing_and_nothing_is_left(copy: CopyOf, tmp_path: Path) -> None:
    one = copy("t5")
    weights = one.weights()
    weights["decoder.final_layer_norm.weight"][3] = torch.nan
    save_file(weights, one.folder / "model.safetensors")
    with pytest.raises(ModelError, match="not finite"):
        import_model(f"hf:{one.folder}", tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("hf:", "must be hf:DIR"),
        ("huggingface:x", "must be one of hf:DIR"),
        ("hf:/nowhere/at/all", "does not exist"),
    ],
)
def test_a_wrong_source_is_refused(source: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        import_model(source, tmp_path / "ours")


def test_an_existing_folder_is_not_overwritten(imported: Find, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    with pytest.raises(UserError, match="exists already"):
        import_model(f"hf:{imported('t5').theirs.folder}", tmp_path / "ours")
