"""The moving parts of a run: take a step, and do what is due after it.

update    gradient of some batches → clip → optimizer; a step without a finite number changes nothing
upkeep    now and then a line in the log, a validation, a checkpoint
finish    average the last checkpoints if asked, and say that the run is over

Of several ranks each takes its own batches; all take the same steps and know the same, and the first one validates and
writes while the others wait.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from dragoman.checkpoint import model_folder
from dragoman.config import Config, build_model
from dragoman.core import files
from dragoman.core.errors import Diverged, RunError, Stopped
from dragoman.core.types import Batch
from dragoman.data.batching import Batches, Cursor
from dragoman.data.loader import load as load_batches
from dragoman.engines.training.graph_step import Steps, eagerly, why_not
from dragoman.engines.training.rnn_graph import hurry
from dragoman.inference import device as devices
from dragoman.inference.pipeline import Pipeline
from dragoman.optim.optimizers import optimizers
from dragoman.optim.sampling_schedules import teachers
from dragoman.optim.schedules import schedules
from dragoman.training import backbone, replay
from dragoman.training import prepare as preparation
from dragoman.training.averaging import MovingAverage, holding
from dragoman.training.distributed import Alone, Ranks
from dragoman.training.gradient import descend, gradient
from dragoman.training.prepare import Prepared
from dragoman.training.report import Clock, Report
from dragoman.training.run_folder import RunFolder
from dragoman.training.scheduled_sampling import mixed_inputs
from dragoman.training.state import Progress, dump, read_progress, restore
from dragoman.training.validation import better, validate
from dragoman.training.warm_start import freeze, start_from

TOLERATED = 3  # updates in a row without a finite number, then training stops
REMEDY = "Training stopped: lower the learning rate, warm up longer, or clip the gradient"


class Trainer:
    """The moving parts of a run: model, optimizer, schedule, average, data, and where it stands."""

    def __init__(self, config: Config, place: RunFolder, prepared: Prepared, ranks: Ranks | None = None) -> None:
        self.config, self.options, self.place, self.prepared = config, config.training, place, prepared
        self.ranks = ranks or Alone()
        self.device = self.ranks.device(devices.pick(config.runtime.device))
        self.progress = Progress(data=preparation.fingerprints(prepared), ranks=self.ranks.count)

    # -- beginning -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._set_threads(self.ranks.from_first(lambda: self.config.runtime.threads or torch.get_num_threads()))
        self._build()
        if self.options.start_from is not None:
            start_from(self.model, Path(self.options.start_from), self.options.start_parts)
        if self.options.backbone is not None:
            backbone.load(self.model, self.options.backbone)
        self.ranks.spread(list(model_folder.unique_weights(self.model).values()))
        self._optimize()
        if self.ranks.first:
            files.make_folder(self.place.checkpoints)
            for name in ("metrics.jsonl", "replay.jsonl"):
                (self.place.path / name).unlink(missing_ok=True)

    def resume(self, folder: Path, allowed: Sequence[str]) -> None:
        """Go on from a checkpoint; `allowed` are changes that are accepted: data, ranks."""
        saved = read_progress(folder)
        if "data" not in allowed:
            preparation.same_data(saved.data, self.prepared, self.place.path)
        if "ranks" not in allowed and saved.ranks != self.ranks.count:
            raise RunError(
                f"{self.place.path}: this run was trained on {saved.ranks} ranks and there are {self.ranks.count} now, "
                f"which take larger or smaller updates; start {saved.ranks}, or accept the change with "
                "--allow-change ranks"
            )
        self._set_threads(saved.threads)
        self._build()
        self._optimize()
        self.progress = restore(folder, self.model, self.optimizer, self.schedule, self.average)
        self.progress.data, self.progress.ranks = preparation.fingerprints(self.prepared), self.ranks.count

    def rewind(self, folder: Path) -> None:
        """Put the run folder back to the checkpoint too: what was said after it will be said again."""
        self.place.cut_back(self.progress.step, self.progress.validated)
        self.place.point("last", folder.name)
        # The process may have been killed between saving the best checkpoint and saying so.
        best = f"step-{self.progress.best_step}" if self.progress.best is not None else folder.name
        if not (self.place.path / "best").exists() or (self.place.checkpoints / best).is_dir():
            self.place.point("best", best)

    def _set_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.progress.threads = threads
        self.place.describe_machine(self.device, threads, self.ranks.count)

    def _build(self) -> None:
        torch.manual_seed(self.config.seed)
        codec = self.prepared.codec
        model = build_model(self.config, codec.source_size, len(codec.target), codec.second_source_size)
        self.model = model.to(self.device)
        self.pipeline = Pipeline(self.model, codec, self.config, self.device)
        self.probes = replay.sources(self.pipeline)

    def _optimize(self) -> None:
        freeze(self.model, self.options.freeze)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optimizers.build(self.options.optimizer, trained)
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.schedule = schedules.build(self.options.schedule, self.options.steps)
        self.teacher = teachers.build(self.options.teacher)
        self.average = MovingAverage(self.model, self.options.ema) if self.options.ema else None

    # -- the loop --------------------------------------------------------------------------------------------------

    def train(self, asked: Callable[[], int | None]) -> Iterator[Report]:
        options, progress = self.options, self.progress
        batches = Batches(
            self.prepared.corpora,
            self.prepared.codec,
            tokens=options.batch_tokens,
            sentences=options.batch_sentences,
            seed=self.config.seed,
            objective=self.prepared.objective,
            rank=self.ranks.number,
            ranks=self.ranks.count,
        )
        yield from self._hurry()
        ahead, prepare = (2, self.steps.prepare) if self.steps is not None else (0, lambda batch: batch)
        cursor = Cursor(progress.epoch, progress.batch)
        stream = load_batches(batches, cursor, self.config.data.workers, ahead=ahead, prepare=prepare)
        clock = Clock(options.steps - progress.step, self.place.seconds)
        try:
            while progress.step < options.steps and not self.out_of_patience:
                taken = [next(stream) for _ in range(options.accumulate)]
                dealt = within(options.epochs, taken, batches)
                if dealt is None:
                    break
                mine, cursor = dealt
                progress.step += 1
                yield from self.update(mine, clock)
                progress.epoch, progress.batch = cursor.epoch, cursor.batch
                signal_number = asked()
                yield from self.upkeep(clock, save=signal_number is not None)
                if signal_number is not None:
                    self.stop(signal_number)
        finally:
            stream.close()  # type: ignore[attr-defined]

    def _hurry(self) -> Iterator[Report]:
        """Take the fast path where there is one; on a GPU, say why if not."""
        options = self.options
        self.steps = None
        self.model.fuses = self.config.runtime.path == "fast"
        if self.config.runtime.path == "plain" or self.device.type != "cuda":
            return
        why = why_not(self.model, self.device, options)
        if why is not None:
            hurry(self.model.decoder)
            yield self.report("notice", message=f"rows are padded and steps not captured as a whole: {why}")
            return
        self.steps = Steps(self.model, options.label_smoothing, options.precision, options.batch_tokens, options.r_drop)

    @property
    def out_of_patience(self) -> bool:
        return self.options.patience is not None and self.progress.waited >= self.options.patience

    def update(self, batches: list[Batch], clock: Clock) -> Iterator[Report]:
        """One step downhill; a step without a finite number changes nothing."""
        options, progress = self.options, self.progress
        self.model.train()
        factor = self.schedule.factor(progress.step)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        found = gradient(
            self.model,
            batches,
            self.loss,
            seed=self.config.seed,
            step=progress.step,
            device=self.device,
            precision=options.precision,
            limit=progress.limit,
            per=options.loss_per,
            rank=self.ranks.number,
            ranks=self.ranks.count,
            steps=self.steps,
        )
        own = found.loss
        weight = found.tokens if options.loss_per == "token" else sum(len(batch) for batch in batches)
        found = self.ranks.merge(found, weight, [p for p in self.model.parameters() if p.requires_grad])
        if found.limit != progress.limit:
            progress.limit = found.limit
            text = (
                f"a batch did not fit into memory and was split, as all of over {found.limit:,} tokens are from now on"
            )
            yield self.report("split", message=text)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        loss, norm = descend(self.optimizer, trained, options.clip, found.loss)
        if math.isfinite(loss) and math.isfinite(norm):
            progress.bad = 0
            progress.window_loss += loss
            progress.window_tokens += found.tokens
            progress.tokens += found.tokens
            if self.average is not None:
                self.average.update(self.model, progress.step)
        else:
            progress.bad += 1
            yield self.skip(batches, float(own), loss, norm)
        self.norm = norm
        clock.tick(found.tokens)
        yield self.report("step", loss=loss / found.tokens, rate=clock.rate, seconds_left=clock.left)

    def loss(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch at this step, as the options have it."""
        options = self.options
        inputs = mixed_inputs(self.model, batch, self.teacher.share(self.progress.step)) if self.model.decoder else None
        return self.model.loss(batch, options.label_smoothing, r_drop=options.r_drop, ctc=options.ctc, inputs=inputs)

    def skip(self, batches: list[Batch], own: float, loss: float, norm: float) -> Report:
        progress, rate = self.progress, self.optimizer.param_groups[0]["lr"]
        lines = [line for batch in batches for line in batch.lines][:5]
        # Of several ranks, the lines of one whose own loss is at fault.
        _, lines = min(self.ranks.share((math.isfinite(own), lines)), key=lambda pair: pair[0])
        text = (
            f"step {progress.step}: loss {loss} and gradient norm {norm} at learning rate {rate:.3g}, "
            f"lines {', '.join(map(str, lines))}…; the update was skipped ({progress.bad} of {TOLERATED})"
        )
        if progress.bad >= TOLERATED:
            raise Diverged(f"{text}. {REMEDY}")
        return self.report("skipped", message=text)

    def upkeep(self, clock: Clock, save: bool) -> Iterator[Report]:
        """What is due after a step: a line in the log, a validation, a checkpoint."""
        options, progress = self.options, self.progress
        if progress.step % options.log_every == 0 and progress.window_tokens:
            values = {
                "kind": "train",
                "step": progress.step,
                "epoch": progress.epoch,
                "loss": progress.window_loss / progress.window_tokens,
                "learning_rate": self.optimizer.param_groups[0]["lr"],
                "gradient_norm": self.norm,
                "tokens": progress.tokens,
                "seconds": round(clock.seconds, 3),
                "tokens_per_second": round(clock.rate, 1),
            }
            progress.window_loss, progress.window_tokens = 0.0, 0
            self.place.record(values)
            yield self.report("log", values=values, loss=values["loss"], rate=clock.rate, seconds_left=clock.left)
        improved = False
        last = progress.step == options.steps
        if self.prepared.valid is not None and (progress.step % options.validate_every == 0 or last):
            report, improved = self.validate()
            clock.pause()
            yield report
        if save or improved or last or progress.step % options.save_every == 0:
            yield self.save(best=improved or self.prepared.valid is None)
            clock.pause()

    def validate(self) -> tuple[Report, bool]:
        options, progress = self.options, self.progress
        found = self.ranks.from_first(lambda: self.measure(self.weights()))
        improved = better(options.best, found, progress.found, options.validate_metrics)
        if improved:
            progress.best, progress.best_loss = found[options.best], found["loss"]
            progress.best_step, progress.waited = progress.step, 0
        else:
            progress.waited += 1
        progress.validated = progress.step
        self.schedule.observe(improved)
        values = {"kind": "valid", "step": progress.step, "epoch": progress.epoch, **found}
        self.place.record(values)
        return self.report("validation", values=values), improved

    def measure(self, weights: dict[str, torch.Tensor]) -> dict[str, float]:
        with holding(self.model, weights), eagerly():
            return validate(self.pipeline, self.prepared, self.config)

    # -- keeping -----------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, torch.Tensor]:
        """What counts as the model: the moving average where there is one."""
        return self.average.shadow if self.average is not None else model_folder.unique_weights(self.model)

    def save(self, best: bool) -> Report:
        progress = self.progress
        if not all(x.isfinite().all() for x in self.weights().values()):  # a finite gradient, but too large a step
            raise Diverged(f"step {progress.step}: some weights are not finite, so it is not saved. {REMEDY}")
        progress.schedule = self.schedule.state()
        folder = self.place.checkpoints / f"step-{progress.step}"
        self.ranks.from_first(lambda: self.write(folder, best))
        return self.report("saved", message=f"saved {folder}")

    def write(self, folder: Path, best: bool) -> None:
        if self.probes:  # before the checkpoint: a process killed between the two comes back to do both again
            with holding(self.model, self.weights()), eagerly():
                self.place.record_frame(replay.frame(self.pipeline, self.probes, self.progress.step))
        if folder.exists():
            files.remove_folder(folder)
        extra = dump(self.progress, self.model, self.optimizer, self.average)
        model_folder.save(folder, self.config, self.weights(), self.prepared.codec, extra)
        self.place.point("last", folder.name)
        if best:
            self.place.point("best", folder.name)
        self.tidy()

    def tidy(self) -> None:
        """Remove all but the newest checkpoints and the best."""
        best = model_folder.pointed(self.place.path, "best")
        old = [*model_folder.steps(self.place.path)[: -self.options.keep], *self.place.checkpoints.glob("average-*")]
        for folder in old:
            if folder.name != best:
                files.remove_folder(folder)

    def finish(self) -> Iterator[Report]:
        """Average the last checkpoints if asked, keep the average if it is better, and say the run is over."""
        options, progress = self.options, self.progress
        improved = self.prepared.valid is None
        if self.prepared.valid is not None and progress.validated < progress.step:  # the epochs ended between two
            report, improved = self.validate()
            yield report
        if self.ranks.from_first(lambda: self.newest != f"step-{progress.step}"):
            yield self.save(best=improved)
        elif improved:  # not saved again: for that the whole checkpoint, maybe the only one, would have to go first
            self.place.point("best", f"step-{progress.step}")
        averaged = (yield from self.keep_average()) if options.average > 1 else 0
        self.ranks.from_first(lambda: self.place.point("finished", str(progress.step)))
        where = f"best at step {progress.best_step}" if progress.best is not None else "no validation set"
        if averaged:
            kept = f"the average of the last {averaged} checkpoints"
            where = f"best: {kept}" if progress.best is not None else f"{where}, {kept} is kept"
        if self.out_of_patience:
            where += f", no better one in {progress.waited} validations"
        yield self.report(
            "end", message=f"finished at step {progress.step} ({where}); the model is in {self.place.path}"
        )

    @property
    def newest(self) -> str | None:
        """The name of the newest checkpoint."""
        return next((folder.name for folder in reversed(model_folder.steps(self.place.path))), None)

    def keep_average(self) -> Generator[Report, None, int]:
        """Average the last checkpoints and keep that if it is better; of how many it is then, else 0."""
        values, kept = self.ranks.from_first(self.averaged)
        if "loss" in values:
            yield self.report("validation", values=values)
        return int(values["checkpoints"]) if kept else 0

    def averaged(self) -> tuple[dict[str, Any], bool]:
        """The mean of the last checkpoints, measured and, where nothing is better, kept; what is known of it."""
        options, progress = self.options, self.progress
        folders = model_folder.steps(self.place.path)[-options.average :]
        values: dict[str, Any] = {"kind": "average", "step": progress.step, "checkpoints": len(folders)}
        if len(folders) == 1:
            return values, False
        mean = model_folder.average(folders)
        if self.prepared.valid is not None:
            values |= self.measure(mean)
            self.place.record(values)
            if not better(options.best, values, progress.found, options.validate_metrics):
                return values, False
        folder = self.place.checkpoints / f"average-{progress.step}"
        if folder.exists():
            files.remove_folder(folder)
        model_folder.save(folder, self.config, mean, self.prepared.codec, {})
        self.place.point("best", folder.name)
        return values, True

    def stop(self, number: int) -> None:
        name = signal.Signals(number).name
        code = 130 if number == signal.SIGINT else 143
        text = f"stopped by {name} after step {self.progress.step}, which is saved; the same command goes on from there"
        raise Stopped(text, code)

    def report(self, kind: Any, **fields: Any) -> Report:
        return Report(kind, self.progress.step, self.options.steps, **fields)


def within(
    epochs: int | None, taken: Sequence[tuple[Batch, Cursor]], batches: Batches
) -> tuple[list[Batch], Cursor] | None:
    """What a rank took for an update, as far as it is of the epochs, and the cursor after it; None: they are over.

    Ranks take whole turns, the last of which may reach over the end. A rank whose batch lies beyond has none then, and
    takes part in the update all the same.
    """
    counts = [inside(epochs, after, batches) for _, after in taken]
    if counts[0] == 0:
        return None
    mine = [batch for (batch, _), count in zip(taken, counts, strict=True) if batches.rank < count]
    return mine, taken[-1][1] if counts[-1] == batches.ranks else Cursor(epochs or 0)


def inside(epochs: int | None, after: Cursor, batches: Batches) -> int:
    """How many batches of the turn before a cursor lie within the epochs; those of later epochs are at its end."""
    if epochs is None or after.epoch < epochs:
        return batches.ranks
    later = sum(batches.per_epoch(epoch) for epoch in range(epochs, after.epoch))
    return max(0, batches.ranks - later - after.batch)
