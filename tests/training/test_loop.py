"""The loop does what the config says: when it ends, what it keeps and averages, where it starts, what it freezes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.testing import assert_close

from dragoman import training
from dragoman.checkpoint import model_folder
from dragoman.core.errors import ModelError, RunError, UserError
from dragoman.data.batching import BatchStream, Cursor
from dragoman.inference import pipeline
from dragoman.training import prepare
from dragoman.training.averaging import MovingAverage, temporary_weights
from dragoman.training.tokenizer_learning import load_or_learn_codec

PLAIN = ["model.encoder.dropout=0.0", "model.decoder.dropout=0.0"]


def train(config: Any, run: Path, **options: Any) -> list[training.Report]:
    return list(training.run(config, run, **options))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def names(run: Path) -> set[str]:
    return {folder.name for folder in (run / "checkpoints").iterdir()}


# -- the steps ---------------------------------------------------------------------------------------------------------


def by_hand(config: Any, folder: Path, steps: int, ema: float = 0.0) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The whole training in a plain loop: batches, loss, optimizer; and the moving average of its weights."""
    from dragoman.config import build_model

    codec, config = load_or_learn_codec(config)
    prepared = prepare.prepare_data(config, codec, folder / "by-hand")
    options = config.training
    stream = BatchStream(prepared.corpora, codec, tokens=options.batch_tokens, seed=config.seed).batches_from(Cursor())
    torch.manual_seed(config.seed)
    model = build_model(config, len(codec.source), len(codec.target)).train()
    if options.optimizer.name == "sgd":
        optimizer, peak = torch.optim.SGD(model.parameters(), lr=0.3), 0.3
    else:
        optimizer, peak = torch.optim.Adam(model.parameters(), lr=0.003, betas=(0.9, 0.98), eps=1e-9), 0.003
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(1, steps + 1):
        batches = [next(stream)[0] for _ in range(options.accumulate)]
        for group in optimizer.param_groups:
            group["lr"] = peak * min(step / 5, 1.0)
        optimizer.zero_grad()
        total = sum(model.loss(batch, options.label_smoothing) for batch in batches)
        assert isinstance(total, torch.Tensor)
        (total / sum(int((batch.target[:, 1:] != 0).sum()) for batch in batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay = min(ema, (1 + step) / (10 + step))
        for name, p in model.named_parameters():
            average[name] = decay * average[name] + (1 - decay) * p.detach()
    return model, average


# Not Adam for both: the bias of a Transformer's keys has no gradient but rounding, which Adam would blow up.
@pytest.mark.parametrize(
    ("family", "optimizer"), [("rnn", "{name: adam, rate: 0.003}"), ("transformer", "{name: sgd, rate: 0.3}")]
)
def test_training_is_what_a_plain_loop_does(family, optimizer, tiny, tmp_path):
    sets = [*PLAIN, f"training.optimizer={optimizer}", "training.accumulate=2", "training.steps=12"]
    sets += ["training.schedule={name: constant, warmup: 5}"]
    config = tiny(family).config(*sets)
    train(config, tmp_path / "run")
    model, _ = by_hand(config, tmp_path, steps=12)
    expected = {name: p.detach() for name, p in model.named_parameters()}
    assert_close(weights(tmp_path / "run/checkpoints/step-12"), expected, rtol=1e-3, atol=1e-4)


def test_the_moving_average_is_that_of_a_plain_loop(tiny, tmp_path):
    warm = "training.schedule={name: constant, warmup: 5}"
    config = tiny().config(*PLAIN, warm, "training.ema=0.7", "training.steps=12")
    train(config, tmp_path / "run")
    _, average = by_hand(config, tmp_path, steps=12, ema=0.7)
    assert_close(weights(tmp_path / "run/checkpoints/step-12"), average, rtol=1e-3, atol=1e-4)


def test_the_moving_average_follows_its_equation():
    torch.manual_seed(2)
    model = nn.Linear(3, 2)
    average, expected = MovingAverage(model, 0.6), model.weight.detach().clone()
    for step in range(1, 40):
        with torch.no_grad():
            model.weight.copy_(torch.randn(2, 3))
        average.update(model, step)
        decay = min(0.6, (1 + step) / (10 + step))  # 2/11, 3/12, … until it is 0.6
        expected = decay * expected + (1 - decay) * model.weight.detach()
    assert_close(average.shadow["weight"], expected)


def test_temporary_weights_are_replaced_by_the_models_own():
    model = nn.Linear(3, 2)
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    other = {name: torch.randn_like(p) for name, p in own.items()}
    with contextlib.suppress(KeyError), temporary_weights(model, other):
        assert_close(dict(model.named_parameters()), other)
        raise KeyError("stopped in the middle")
    assert_close(dict(model.named_parameters()), own)


def test_the_metrics_of_a_step_are_means_over_what_was_logged(tiny, metrics, tmp_path):
    """log_every: 4 records the token-weighted mean of four steps."""
    train(tiny().config("training.steps=12"), tmp_path / "each")
    train(tiny().config("training.steps=12", "training.log_every=4"), tmp_path / "fourth")
    each, fourth = ([x for x in metrics(tmp_path / run) if x["kind"] == "train"] for run in ("each", "fourth"))
    assert [line["step"] for line in fourth] == [4, 8, 12]
    before = 0
    for line, four in zip(fourth, (each[0:4], each[4:8], each[8:12]), strict=True):
        counts = [b["tokens"] - a for a, b in zip([before, *(x["tokens"] for x in four)], four, strict=False)]
        mean = sum(n * x["loss"] for n, x in zip(counts, four, strict=True)) / sum(counts)
        assert line["loss"] == pytest.approx(mean)
        assert line["tokens"] == four[-1]["tokens"]
        before = four[-1]["tokens"]


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 2])
def test_training_ends_after_its_epochs(epochs, tiny, tmp_path):
    config = tiny().config(f"training.epochs={epochs}", "training.steps=10000", "training.validate_every=7")
    codec, _ = load_or_learn_codec(config)
    prepared = prepare.prepare_data(config, codec, tmp_path / "cache")
    batches = BatchStream(prepared.corpora, codec, tokens=config.training.batch_tokens, seed=config.seed)
    steps = sum(batches.count_batches(epoch) for epoch in range(epochs))
    reports = train(config, tmp_path / "run")
    assert reports[-1].kind == "end"
    assert reports[-1].step == steps
    assert [report.step for report in reports if report.kind == "validation"][
        -1
    ] == steps  # the last step is judged too
    assert model_folder.list_checkpoints(tmp_path / "run")[-1].name == f"step-{steps}"


@pytest.mark.parametrize("save_every", [1, 1000])
def test_the_last_step_of_the_last_epoch_can_be_the_best(save_every, tiny, metrics, tmp_path):
    """It is validated where no validation was due, whether it was saved already or not."""
    sets = ["training.epochs=1", "training.validate_every=7", f"training.save_every={save_every}"]
    train(tiny().config(*sets), tmp_path / "run")
    valid = [line for line in metrics(tmp_path / "run") if line["kind"] == "valid"]
    best = min(valid, key=lambda line: line["loss"])
    assert best is valid[-1]
    assert best["step"] % 7
    assert model_folder.read_pointer(tmp_path / "run", "best") == f"step-{best['step']}"


def test_a_schedule_observes_every_validation(tiny, metrics, tmp_path):
    """At a rate of nothing every validation is like the first: all but that one halve the rate."""
    sets = [
        "training.schedule={name: plateau, patience: 1}",
        "training.optimizer.rate=1.0e-30",
        "training.validate_metrics=[exact]",
        "training.best=exact",
    ]
    train(tiny().config(*sets, "training.validate_every=5", "training.steps=20"), tmp_path / "run")
    rates = [line["learning_rate"] for line in metrics(tmp_path / "run") if line["kind"] == "train"]
    assert [rate * 1e30 for rate in rates] == pytest.approx([1.0] * 10 + [0.5] * 5 + [0.25] * 5)


def test_training_ends_when_patience_does(tiny, metrics, tmp_path):
    """At a rate of nothing no validation is better than the first."""
    sets = ["training.optimizer.rate=1.0e-30", "training.validate_metrics=[exact]", "training.best=exact"]
    config = tiny().config(*sets, "training.validate_every=3", "training.patience=4", "training.steps=1000")
    reports = train(config, tmp_path / "run")
    assert reports[-1].step == 15  # the first, and four in vain
    assert model_folder.resolve(tmp_path / "run").name == "step-3"


@pytest.mark.parametrize("metric", ["loss", "exact", "per"])
def test_patience_and_best_follow_the_metric_that_decides(metric, tiny, metrics, tmp_path):
    """Whatever the numbers came out as: the run ended where the records say that it should have."""
    sets = ["training.optimizer.rate=0.1", "training.validate_metrics=[exact, per]", f"training.best={metric}"]
    config = tiny().config(*sets, "training.validate_every=2", "training.patience=3", "training.steps=60")
    train(config, tmp_path / "run")
    values = [
        (x["step"], (x[metric] * (1 if metric == "exact" else -1), -x["loss"]))
        for x in metrics(tmp_path / "run")
        if x["kind"] == "valid"
    ]
    best, waited = values[0], 0
    for number, value in enumerate(values[1:], 2):
        waited = 0 if value[1] > best[1] else waited + 1
        best = max(best, value, key=lambda pair: pair[1])
        if waited == 3:
            assert number == len(values)
    assert waited == 3 or values[-1][0] == 60
    assert model_folder.resolve(tmp_path / "run").name == f"step-{best[0]}"


def test_while_no_output_is_correct_the_checkpoint_with_the_lowest_loss_is_the_best(tiny, metrics, tmp_path):
    sets = ["training.validate_metrics=[exact]", "training.best=exact", "training.patience=2"]
    train(tiny().config(*sets, "training.validate_every=5", "training.steps=20"), tmp_path / "run")
    found = [line for line in metrics(tmp_path / "run") if line["kind"] == "valid"]
    assert {line["exact"] for line in found} == {0.0}
    assert [line["step"] for line in found] == [5, 10, 15, 20]  # patience was not lost
    least = min(found, key=lambda line: line["loss"])["step"]
    assert least > 5
    assert model_folder.resolve(tmp_path / "run").name == f"step-{least}"


# -- what is kept ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_checkpoints_and_the_best_are_kept(keep, tiny, tmp_path):
    sets = ["training.optimizer.rate=1.0e-30", "training.validate_metrics=[exact]", "training.best=exact"]
    train(tiny().config(*sets, "training.validate_every=10", f"training.keep={keep}"), tmp_path / "run")
    newest = {f"step-{step}" for step in (40, 35, 30)[:keep]}
    assert names(tmp_path / "run") == newest | {"step-10"}  # the first validation was never beaten
    assert model_folder.read_pointer(tmp_path / "run", "best") == "step-10"
    assert model_folder.read_pointer(tmp_path / "run", "last") == "step-40"


@pytest.mark.parametrize("count", [2, 3])
def test_the_average_is_the_mean_of_the_last_checkpoints(count, tiny, tmp_path):
    run = tmp_path / "run"
    train(tiny().config("data.valid=null", f"training.average={count}", "training.steps=20"), run)
    assert model_folder.read_pointer(run, "best") == "average-20"
    last = [weights(run / f"checkpoints/step-{step}") for step in (20, 15, 10)[:count]]
    mean = {name: sum(w[name].double() for w in last) / count for name in last[0]}
    assert_close(weights(run / "checkpoints/average-20"), {name: x.float() for name, x in mean.items()})
    pipeline.load(run, "cpu").predict(["abc"])  # it is a whole model


@pytest.mark.parametrize("rate", ["0.003", "0.5"])
def test_an_average_is_the_best_only_if_it_is_better(rate, tiny, metrics, tmp_path):
    run = tmp_path / "run"
    end = train(tiny().config("training.average=3", f"training.optimizer.rate={rate}", "training.steps=20"), run)[-1]
    lines = metrics(run)
    average = next(line for line in lines if line["kind"] == "average")
    best = min((line for line in lines if line["kind"] == "valid"), key=lambda line: line["loss"])
    wins = average["loss"] < best["loss"]
    assert model_folder.read_pointer(run, "best") == ("average-20" if wins else f"step-{best['step']}")
    assert ("the average of the last 3 checkpoints" if wins else f"best at step {best['step']}") in end.message


def test_without_a_validation_set_the_average_is_kept_and_the_end_says_so(tiny, tmp_path):
    end = train(tiny().config("training.average=3", "training.steps=20", "data.valid=null"), tmp_path / "run")[-1]
    assert model_folder.read_pointer(tmp_path / "run", "best") == "average-20"
    assert "no validation set, the average of the last 3 checkpoints is kept" in end.message


# -- from another model ------------------------------------------------------------------------------------------------


@pytest.fixture
def parent(tiny, tmp_path):
    made = tiny()
    train(made.config("training.steps=10"), tmp_path / "parent")
    return made, tmp_path / "parent"


def test_start_from_uses_the_weights_and_tokenizers_of_another_model(parent, tmp_path):
    made, run = parent
    (made.folder / "train.tsv").write_text("ab\tba\nzzz\tzzz\nbc\tcb\n" * 5)  # a letter that the parent never saw
    sets = [
        f"training.start_from={run}",
        "training.optimizer.rate=1.0e-12",
        "training.steps=2",
        "tokenizer.source=bytes",
    ]
    train(made.config(*sets), tmp_path / "child")
    old, new = pipeline.load(run, "cpu"), pipeline.load(tmp_path / "child", "cpu")
    assert new.codec.fingerprint == old.codec.fingerprint
    assert_close(dict(new.model.named_parameters()), dict(old.model.named_parameters()), rtol=0, atol=1e-9)
    again = train(made.config(*sets), tmp_path / "child")  # and it can be resumed
    assert again[-1].kind == "end"


def test_tokenizers_of_another_model_can_be_used_without_its_weights(parent, tmp_path):
    made, run = parent
    (made.folder / "train.tsv").write_text("ab\tba\nbc\tcb\n" * 5)
    config = made.config(f"tokenizer.load={run}", "training.steps=2", "training.save_every=1")
    train(config, tmp_path / "child")
    assert pipeline.load(tmp_path / "child", "cpu").codec.fingerprint == pipeline.load(run, "cpu").codec.fingerprint
    assert train(config, tmp_path / "child")[-1].kind == "end"


def test_a_vocabulary_that_does_not_fit_the_weights_is_explained(parent, tmp_path):
    made, run = parent
    (made.folder / "train.tsv").write_text("ab\tba\nxyz\tzyx\n" * 5)
    train(made.config("training.steps=2"), tmp_path / "other")
    with pytest.raises(RunError, match="vocabulary") as refused:
        train(made.config(f"training.start_from={run}", f"tokenizer.load={tmp_path / 'other'}"), tmp_path / "child")
    assert "tokenizer.load" in str(refused.value)
    assert "training.start_from" in str(refused.value)


def test_a_damaged_model_is_named_and_not_started_from(parent, tmp_path):
    """Also where the tokenizers are another model's: a flipped bit loads silently."""
    made, run = parent
    train(made.config("training.steps=2"), tmp_path / "other")
    damaged = model_folder.resolve(run) / "model.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    sets = [f"training.start_from={run}", f"tokenizer.load={tmp_path / 'other'}"]
    for config in (made.config(*sets), made.config(sets[0])):
        with pytest.raises(ModelError, match="checksum mismatch") as refused:
            train(config, tmp_path / "child")
        assert str(damaged) in str(refused.value)
        assert not (tmp_path / "child" / "checkpoints").exists()


def test_hard_attention_can_begin_where_soft_attention_ended(parent, tmp_path):
    made, run = parent
    sets = [f"training.start_from={run}", "model.decoder.normalizer=hard", "training.optimizer.rate=1.0e-12"]
    train(made.config(*sets, "training.steps=2"), tmp_path / "child")
    old, new = pipeline.load(run, "cpu").model, pipeline.load(tmp_path / "child", "cpu").model
    assert_close(dict(new.named_parameters()), dict(old.named_parameters()), rtol=0, atol=1e-9)
    assert old.baseline is None
    assert float(new.baseline) < 0  # a mean log-probability, of what was drawn since


def test_a_model_of_another_shape_cannot_be_started_from(parent, tmp_path):
    made, run = parent
    with pytest.raises(RunError, match=r"training\.start_from.*encoder"):
        train(made.config(f"training.start_from={run}", "model.encoder.cell=lstm"), tmp_path / "child")


def test_frozen_parts_stay_as_they_are_and_the_others_move(parent, tmp_path):
    made, run = parent
    sets = [f"training.start_from={run}", "training.freeze=[encoder, embedding.table]", "training.steps=5"]
    train(made.config(*sets, "training.optimizer=adamw"), tmp_path / "child")
    old, new = weights(model_folder.resolve(run)), weights(tmp_path / "child/checkpoints/step-5")
    for name in old:
        frozen = name.startswith(("encoder.", "embedding.table."))
        assert torch.equal(old[name], new[name]) == frozen, name


@pytest.mark.parametrize("family", ["rnn", "transformer"])
def test_a_frozen_run_resumes_exactly(family, tiny, same_end, tmp_path):
    config = tiny(family).config("training.freeze=[encoder]", "training.steps=20", "training.ema=0.9")
    train(config, tmp_path / "whole")
    reports = training.run(config, tmp_path / "run")
    for report in reports:
        if report.kind == "step" and report.step == 13:
            break
    reports.close()  # type: ignore[attr-defined]
    train(config, tmp_path / "run")
    same_end(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("prefix", ["encodr", "enc", "encoder.rnn.nothing"])
def test_an_unknown_part_cannot_be_frozen(prefix, tiny, tmp_path):
    with pytest.raises(UserError, match=f"'{prefix}'"):
        train(tiny().config(f"training.freeze=[{prefix}]"), tmp_path / "run")


def test_a_model_that_is_frozen_throughout_is_refused(tiny, tmp_path):
    parts = "[frontend, encoder, embedding, decoder, output]"
    with pytest.raises(UserError, match="frozen"):
        train(tiny().config(f"training.freeze={parts}"), tmp_path / "run")


# -- what a run folder tells -------------------------------------------------------------------------------------------


def test_a_run_folder_holds_all_files_of_a_run(tiny, metrics, tmp_path):
    run = tmp_path / "run"
    config = tiny().config("training.steps=10")
    train(config, run)
    from dragoman.core import yaml

    expected = json.loads(json.dumps(config.model_dump()))  # a file holds lists, not tuples
    expected["data"]["max_source"] = 256  # the default is written out, so that a resumed run keeps it
    assert yaml.read(run / "config.yaml") == expected
    assert json.loads((run / "env.json").read_text())["threads"] == 1
    assert [line["step"] for line in metrics(run) if line["kind"] == "train"] == list(range(1, 11))
    assert (run / "train.log").read_text().strip()
    assert (run / "finished").read_text().strip() == "10"
    assert not [path for path in run.rglob("*") if path.suffix in (".pt", ".pkl", ".bin")]


def test_reports_come_in_the_order_of_what_happens(tiny, tmp_path):
    config = tiny().config("training.steps=4", "training.validate_every=2", "training.save_every=4")
    reports = [(report.kind, report.step) for report in train(config, tmp_path / "run") if report.kind != "notice"]
    judged = [("validation", 0), ("saved", 0)]
    step = [("step", 0), ("log", 0)]
    kinds = [("start", 0), *((k, 1) for k, _ in step), *((k, 2) for k, _ in step + judged)]
    kinds += [*((k, 3) for k, _ in step), *((k, 4) for k, _ in step + judged), ("end", 4)]
    assert reports == kinds


def test_tensorboard_events_hold_the_numbers_of_the_metrics(tiny, metrics, tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    run = tmp_path / "run"
    train(tiny().config("training.steps=4", "training.validate_every=2", "runtime.tensorboard=true"), run)
    (file,) = (run / "tensorboard").iterdir()
    data, found = file.read_bytes(), {}
    while data:  # length, its checksum, the event, its checksum
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        data = data[16 + size :]
    for line in metrics(run):
        assert found[f"{line['kind']}/loss", line["step"]] == pytest.approx(line["loss"])


def test_no_tensorboard_events_are_written_by_default(tiny, tmp_path):
    train(tiny().config("training.steps=2"), tmp_path / "run")
    assert not (tmp_path / "run/tensorboard").exists()


def test_the_data_is_checked_in_the_unicode_form_of_the_config(tiny):
    """Decomposed, ga + nan and gan + na are the same letters, and nobody is told to compose them."""
    made = tiny()
    (made.folder / "train.tsv").write_text("\uac00 \ub09c\t\uac00 \ub09c\n" * 5, encoding="utf-8")
    (made.folder / "valid.tsv").write_text("\uac04 \ub098\t\uac04 \ub098\n", encoding="utf-8")
    said = "\n".join(prepare.check_data(made.config("data.normalization=nfd")))
    assert "never seen" not in said
    assert "nfc" not in said.lower()
    assert "never seen" in "\n".join(prepare.check_data(made.config()))
