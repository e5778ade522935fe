"""Training step by step, and what is due after a step.

update       gradient of some batches → clip → optimizer step; skipped if loss or gradient is not finite
after_step   every now and then a line of metrics, a validation, a checkpoint
finish       average the last checkpoints if the config says so, and mark the run as finished

Of several ranks each has its own batches. All take the same steps and keep the same state, or of a sharded model each a
part of it; they share the validation, and rank 0 writes (checkpoints.py).
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dragoman.checkpoint import model_folder
from dragoman.config import Config, build_model
from dragoman.core import files
from dragoman.core.errors import RunError, TrainingDiverged, TrainingStopped
from dragoman.core.types import Batch
from dragoman.data.batching import BatchStream, Cursor
from dragoman.data.loader import load_batches
from dragoman.engines.base import open_training_engine
from dragoman.inference.device import select_device
from dragoman.inference.pipeline import Pipeline
from dragoman.nn.blocks import TransformerStack
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.optim.optimizers import optimizers
from dragoman.optim.sampling_schedules import sampling_schedules
from dragoman.optim.schedules import schedules
from dragoman.training import checkpoints, divergence, replay, sharding
from dragoman.training.averaging import MovingAverage, temporary_weights
from dragoman.training.distributed import RankGroup
from dragoman.training.gradient import GradientResult, compute_gradient, optimizer_step
from dragoman.training.initial_weights import attach_adapter, freeze_parameters, load_backbone, load_initial_weights
from dragoman.training.prepare import TrainingData
from dragoman.training.report import Clock, Report, ReportKind
from dragoman.training.run_folder import RunFolder
from dragoman.training.scheduled_sampling import sample_inputs
from dragoman.training.state import Progress, read_progress, restore_state, restore_weights
from dragoman.training.update_batches import group_updates
from dragoman.training.validation import is_better, validate

MAX_NONFINITE_UPDATES = 3  # in a row, then training stops
REMEDY = "Training stopped: lower the learning rate, warm up longer, or clip the gradient"


class Trainer:
    """Model, optimizer, schedule, moving average and data of a run, and its progress."""

    def __init__(
        self, config: Config, run_folder: RunFolder, data: TrainingData, ranks: RankGroup = RankGroup()
    ) -> None:
        self.config, self.options, self.run_folder, self.data = config, config.training, run_folder, data
        self.ranks = ranks
        self.device = self.ranks.local_device(select_device(config.runtime.device))
        self.progress = Progress(data=data.fingerprints, ranks=self.ranks.world_size)
        self.base: model_folder.WeightsFile | None = None  # of the adapter
        self.is_sharded = config.runtime.sharding == "full" and self.ranks.world_size > 1
        self.last_batch: Batch | None = None

    # -- before the first step -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new run: threads, model, initial weights (equal on all ranks), optimizer, empty records."""
        threads = self.ranks.broadcast_from_rank0(lambda: self.config.runtime.threads or torch.get_num_threads())
        self._set_threads(threads)
        self._build_model()
        other = Path(self.options.start_from or "")
        if self.options.start_from is not None:
            other = model_folder.resolve(other)
            load_initial_weights(self.model, other, self.options.start_parts, self.config.model.extend is not None)
        if self.options.backbone is not None:
            load_backbone(self.model, self.options.backbone)
        if self.options.adapter is not None:
            self.base = attach_adapter(self.model, self.options.adapter, other)
        self.ranks.broadcast_tensors(list(model_folder.unique_weights(self.model).values()))
        self._shard_model()
        self._build_optimizer()
        if self.ranks.is_rank0:
            files.make_folder(self.run_folder.checkpoints)
            for name in ("metrics.jsonl", "replay.jsonl"):
                (self.run_folder.path / name).unlink(missing_ok=True)

    def resume(self, checkpoint: Path, allowed: Sequence[str]) -> None:
        """Restore all state from a checkpoint; RunError if data or ranks changed and `allowed` does not name them."""
        saved = read_progress(checkpoint)
        if "data" not in allowed and saved.data != self.data.fingerprints:
            raise RunError(
                f"{self.run_folder.path}: the training or validation files have changed since the run was started, so "
                "it cannot be resumed exactly. Start a new run with --run DIR, or accept the change with "
                "--allow-change data"
            )
        if "ranks" not in allowed and saved.ranks != self.ranks.world_size:
            raise RunError(
                f"{self.run_folder.path}: this run was trained on {saved.ranks} ranks; now there are "
                f"{self.ranks.world_size}, which changes the size of an update. Start {saved.ranks}, or accept the "
                "change with --allow-change ranks"
            )
        self._set_threads(saved.threads)
        self._build_model()
        if self.options.adapter is not None:
            base = model_folder.locate_weights(checkpoint).folder
            load_initial_weights(self.model, base, [])
            self.base = attach_adapter(self.model, self.options.adapter, base)
        restore_weights(checkpoint, self.model, self.options.ema > 0)
        self._shard_model()
        self._build_optimizer()
        self.progress = restore_state(checkpoint, None, self.optimizer, self.schedule, self.average)
        self.progress.data, self.progress.ranks = self.data.fingerprints, self.ranks.world_size

    def rewind_run_folder(self, checkpoint: Path) -> Iterator[Report]:
        """Remove records after the checkpoint; point `last` to it, and `best` to its best step if that exists."""
        for text in self.run_folder.truncate_records(self.progress.step, self.progress.last_validation):
            yield self.report("notice", message=text)
        self.run_folder.write_pointer("last", checkpoint.name)
        # The process may have been killed after it saved the best checkpoint and before it wrote the pointer.
        best = f"step-{self.progress.best_step}" if self.progress.best is not None else checkpoint.name
        if not (self.run_folder.path / "best").exists() or (self.run_folder.checkpoints / best).is_dir():
            self.run_folder.write_pointer("best", best)

    def restore_pointers(self, checkpoint: Path) -> None:
        """Write the pointers that are missing in the folder of a finished run; an average was kept as the best."""
        best = f"step-{self.progress.best_step}" if self.progress.best is not None else checkpoint.name
        average = f"average-{self.progress.step}"
        has_average = (self.run_folder.checkpoints / average).is_dir()
        for pointer, name in {"last": checkpoint.name, "best": average if has_average else best}.items():
            if not (self.run_folder.path / pointer).exists():
                self.run_folder.write_pointer(pointer, name)

    def _set_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.progress.threads = threads
        self.run_folder.describe_machine(self.device, threads, self.ranks.world_size)

    def _new_model(self) -> Seq2Seq:
        codec = self.data.codec
        return build_model(self.config, codec.source_size, len(codec.target), codec.second_source_size)

    def _build_model(self) -> None:
        torch.manual_seed(self.config.seed)
        model = self._new_model()
        self.model = model if self.is_sharded else model.to(self.device)  # its parts are moved when it is sharded
        self.pipeline = Pipeline(self.model, self.data.codec, self.config, self.device)
        self.replay_examples = replay.select_examples(self.pipeline)

    def _shard_model(self) -> None:
        """Prepare the model, which has its weights, for training as the config's runtime says."""
        freeze_parameters(self.model, self.options.freeze)
        for module in self.model.modules():
            if isinstance(module, TransformerStack):
                module.activation_checkpointing = self.config.runtime.activation_checkpointing
        if self.is_sharded:
            sharding.shard_model(self.model, self.device, self.ranks.world_size)

    def _build_optimizer(self) -> None:
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optimizers.build(self.options.optimizer, self.parameters)
        self.peak_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.schedule = schedules.build(self.options.schedule, self.options.steps)
        self.sampling_schedule = sampling_schedules.build(self.options.scheduled_sampling)
        self.average = MovingAverage(self.model, self.options.ema) if self.options.ema else None

    # -- the loop --------------------------------------------------------------------------------------------------

    def train(self, stop_signal: Callable[[], int | None]) -> Iterator[Report]:
        """Train until the steps, the epochs or the patience end; a signal raises TrainingStopped after a checkpoint."""
        options, progress = self.options, self.progress
        batches = self.batch_stream()
        yield from self._open_engine()
        if self.graph_step is None and not self.is_sharded:
            self.ranks.overlap_gradients(self.parameters)
        ahead, prepare = (2, self.graph_step.prepare) if self.graph_step is not None else (0, lambda batch: batch)
        cursor = Cursor(progress.epoch, progress.batch)
        stream = load_batches(batches, cursor, self.config.data.workers, prefetch=ahead, prepare=prepare)
        updates = group_updates(self._keep_last(stream), batches, options.accumulate, options.epochs)
        clock = Clock(options.steps - progress.step, self.run_folder.seconds)
        try:
            while progress.step < options.steps and not self.is_out_of_patience:
                if (update := next(updates, None)) is None:
                    break
                own_batches, cursor = update
                progress.step += 1
                yield from self.update(own_batches, clock)
                progress.epoch, progress.batch = cursor.epoch, cursor.batch
                signal_number = stop_signal()
                yield from self.after_step(clock, save=signal_number is not None)
                if signal_number is not None:
                    self._raise_stopped(signal_number)
        finally:
            stream.close()

    def _keep_last(self, stream: Iterator[tuple[Batch, Cursor]]) -> Iterator[tuple[Batch, Cursor]]:
        for batch, cursor in stream:
            self.last_batch = batch
            yield batch, cursor

    def batch_stream(self) -> BatchStream:
        """The training batches of this rank."""
        return BatchStream(
            self.data.corpora,
            self.data.codec,
            tokens=self.options.batch_tokens,
            sentences=self.options.batch_sentences,
            seed=self.config.seed,
            objective=self.data.objective,
            rank=self.ranks.rank,
            ranks=self.ranks.world_size,
        )

    def _open_engine(self) -> Iterator[Report]:
        """Set up the training engine; on a GPU, report why a step is not one CUDA graph."""
        reference_only = self.config.runtime.engine == "reference"
        self.model.uses_fused_loss = not reference_only
        runtime = self.config.runtime
        self.graph_step, choices = open_training_engine(self.model, self.device, self.options, reference_only, runtime)
        if self.graph_step is None and self.device.type == "cuda" and not reference_only:
            blocker = choices["compiled"]
            yield self.report("notice", message=f"batches are padded, and steps are not captured as a whole: {blocker}")

    @property
    def is_out_of_patience(self) -> bool:
        """Whether so many validations brought no improvement that training stops."""
        return self.options.patience is not None and self.progress.bad_validations >= self.options.patience

    def update(self, batches: list[Batch], clock: Clock) -> Iterator[Report]:
        """Compute the gradient of all ranks and take one optimizer step, skipped if not finite; yields reports."""
        options, progress = self.options, self.progress
        self.model.train()
        factor = self.schedule.factor(progress.step)
        for group, peak in zip(self.optimizer.param_groups, self.peak_rates, strict=True):
            group["lr"] = peak * factor
        weight = sum(batch.tokens if options.loss_per == "token" else len(batch) for batch in batches)
        needs_total = self.is_sharded or self.ranks.overlap is not None
        result = self._compute_gradient(batches, self.ranks.start_update(weight) if needs_total else weight)
        own_loss = result.loss
        result = self.ranks.reduce_gradient(result, weight, [] if self.is_sharded else self.parameters)
        if result.max_area != progress.max_area:
            progress.max_area = result.max_area
            text = "a batch did not fit into memory and was split; from now on all batches of more than "
            yield self.report("split", message=f"{text}{result.max_area:,} tokens are split")
        with self.ranks.explain_failures():
            loss, norm = optimizer_step(self.optimizer, self.parameters, options.clip, result.loss)
        if math.isfinite(loss) and math.isfinite(norm):
            progress.nonfinite_updates = 0
            progress.window_loss += loss
            progress.window_tokens += result.tokens
            progress.tokens += result.tokens
            if self.average is not None:
                self.average.update(self.model, progress.step)
            self._check_runaway(loss / result.tokens)
        else:
            progress.nonfinite_updates += 1
            yield self.report_skipped(batches, float(own_loss), loss, norm)
        self.gradient_norm = norm
        clock.tick(result.tokens)
        yield self.report("step", loss=loss / result.tokens, **_speed(clock))

    def _compute_gradient(self, batches: list[Batch], total_weight: int) -> GradientResult:
        """Compute the gradient of this rank; of a sharded model, this rank's part of that of all."""
        options = self.options
        known: dict[str, Any] = {
            "seed": self.config.seed,
            "step": self.progress.step,
            "device": self.device,
            "precision": options.precision,
            "rank": self.ranks.rank,
            "world_size": self.ranks.world_size,
        }
        if self.is_sharded:
            with self.ranks.explain_failures():
                return sharding.compute_sharded_gradient(
                    self.model,
                    batches,
                    self.last_batch,
                    self.loss,
                    passes=options.accumulate,
                    total_weight=total_weight,
                    **known,
                )
        return compute_gradient(
            self.model,
            batches,
            self.loss,
            max_area=self.progress.max_area,
            loss_per=options.loss_per,
            graph_step=self.graph_step,
            overlap=self.ranks.overlap,
            **known,
        )

    def loss(self, batch: Batch) -> torch.Tensor:
        """The training loss of a batch at this step; a decoder reads the inputs that scheduled sampling draws."""
        options, inputs = self.options, None
        if self.model.decoder:
            ratio = self.sampling_schedule.teacher_forcing_ratio(self.progress.step)
            inputs = sample_inputs(self.model, batch, ratio)
        weights = {"r_drop": options.r_drop, "ctc": options.ctc_weight}
        return self.model.loss(batch, options.label_smoothing, **weights, inputs=inputs)

    def report_skipped(self, batches: list[Batch], own_loss: float, loss: float, norm: float) -> Report:
        """The report of an update that was skipped; after MAX_NONFINITE_UPDATES in a row, raise TrainingDiverged."""
        progress, rate = self.progress, self.optimizer.param_groups[0]["lr"]
        lines = [line for batch in batches for line in batch.lines][:5]
        # Of several ranks, the lines of one whose own loss is not finite.
        _, lines = min(self.ranks.all_gather((math.isfinite(own_loss), lines)), key=lambda pair: pair[0])
        text = (
            f"step {progress.step}: loss {loss} and gradient norm {norm} at learning rate {rate:.3g}, "
            f"lines {', '.join(map(str, lines))}…; the update was skipped "
            f"({progress.nonfinite_updates} of {MAX_NONFINITE_UPDATES})"
        )
        if progress.nonfinite_updates >= MAX_NONFINITE_UPDATES:
            raise TrainingDiverged(f"{text}. {REMEDY}")
        return self.report("skipped", message=text)

    def _check_runaway(self, loss: float) -> None:
        """Raise TrainingDiverged if the loss of a token, though finite, stays far above that of knowing nothing."""
        progress, rate = self.progress, self.optimizer.param_groups[0]["lr"]
        guess = math.log(len(self.data.codec.target))
        if divergence.has_run_away(progress, loss, guess):
            raise TrainingDiverged(
                f"step {progress.step}: loss {loss:.4g} at learning rate {rate:.3g}; for "
                f"{divergence.MAX_RUNAWAY_UPDATES} updates it was more than {divergence.RUNAWAY_FACTOR:g} times that "
                f"of a guess ({guess:.3g}). {REMEDY}"
            )

    def after_step(self, clock: Clock, save: bool) -> Iterator[Report]:
        """Log, validate and save a checkpoint where it is due after a step; save in any case with `save`."""
        options, progress = self.options, self.progress
        if progress.step % options.log_every == 0 and progress.window_tokens:
            values = {
                "kind": "train",
                "step": progress.step,
                "epoch": progress.epoch,
                "loss": progress.window_loss / progress.window_tokens,
                "learning_rate": self.optimizer.param_groups[0]["lr"],
                "gradient_norm": self.gradient_norm,
                "tokens": progress.tokens,
                "seconds": round(clock.seconds, 3),
                "tokens_per_second": round(clock.tokens_per_second, 1),
            }
            progress.window_loss, progress.window_tokens = 0.0, 0
            self.run_folder.record(values)
            yield self.report("log", values=values, loss=values["loss"], **_speed(clock))
        improved = False
        is_last = progress.step == options.steps
        if self.data.valid is not None and (progress.step % options.validate_every == 0 or is_last):
            report, improved = self.validate()
            clock.skip()
            yield report
        if save or improved or is_last or progress.step % options.save_every == 0:
            yield self.save_checkpoint(is_best=improved or self.data.valid is None)
            clock.skip()

    def validate(self) -> tuple[Report, bool]:
        """Validate, record it, and tell the schedule; returns the report, and whether it is the best."""
        options, progress = self.options, self.progress
        scores = self.validate_weights(self.weights())
        improved = is_better(options.best, scores, progress.best_scores, options.validate_metrics)
        if improved:
            progress.best, progress.best_loss = scores[options.best], scores["loss"]
            progress.best_step, progress.bad_validations = progress.step, 0
        else:
            progress.bad_validations += 1
        progress.last_validation = progress.step
        self.schedule.observe(improved)
        values = {"kind": "valid", "step": progress.step, "epoch": progress.epoch, **scores}
        self.run_folder.record(values)
        return self.report("validation", values=values), improved

    def validate_weights(self, weights: dict[str, torch.Tensor]) -> dict[str, float]:
        """The loss and metrics of the model on the validation set with these weights instead of its own."""
        parameters = {name for name, _ in self.model.named_parameters()}
        buffers = {name: x.clone() for name, x in weights.items() if name not in parameters}
        self.ranks.broadcast_tensors(list(buffers.values()))  # rank 0's are saved
        with self.evaluation_pipeline({**weights, **buffers}) as pipeline:
            return validate(pipeline, self.data, self.config, self.ranks)

    @contextmanager
    def evaluation_pipeline(self, weights: dict[str, torch.Tensor]) -> Iterator[Pipeline]:
        """The model with these weights instead of its own; of a sharded one, a whole copy on every rank."""
        with torch.compiler.set_stance("force_eager"):
            if not self.is_sharded:
                with temporary_weights(self.model, weights):
                    yield self.pipeline
                return
            model = self._new_model().to(self.device)
            with self.ranks.explain_failures():
                sharding.copy_whole(weights, model)
            yield Pipeline(model, self.data.codec, self.config, self.device)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights to validate and save: the moving average where there is one."""
        return self.average.shadow if self.average is not None else model_folder.saved_weights(self.model)

    def save_checkpoint(self, is_best: bool) -> Report:
        """Save a checkpoint of this step; raises TrainingDiverged if a weight is not finite."""
        progress = self.progress
        is_finite = sharding.all_finite(self.weights().values())
        if self.is_sharded:
            is_finite = all(self.ranks.all_gather(is_finite))
        if not is_finite:  # a finite gradient, but too large a step
            raise TrainingDiverged(f"step {progress.step}: some weights are not finite, so it is not saved. {REMEDY}")
        progress.schedule = self.schedule.state()
        folder = self.run_folder.checkpoints / f"step-{progress.step}"
        checkpoints.write_checkpoint(self, folder, is_best)
        return self.report("saved", message=f"saved {folder}")

    def finish(self) -> Iterator[Report]:
        """Validate and save the last step if need be, average checkpoints if asked for, mark the run as finished."""
        options, progress = self.options, self.progress
        improved = self.data.valid is None
        if self.data.valid is not None and progress.last_validation < progress.step:  # the epochs ended between two
            report, improved = self.validate()
            yield report
        if not self.ranks.broadcast_from_rank0(lambda: checkpoints.is_saved(self)):
            yield self.save_checkpoint(is_best=improved)
        elif improved:  # not saved again: that would first remove the checkpoint, maybe the only one
            self.run_folder.write_pointer("best", f"step-{progress.step}")
        averaged = 0
        if options.average > 1:
            values, is_kept = checkpoints.average_checkpoints(self)
            averaged = int(values["checkpoints"]) if is_kept else 0
            if "loss" in values:
                yield self.report("validation", values=values)
        self.ranks.broadcast_from_rank0(lambda: self.run_folder.write_pointer("finished", str(progress.step)))
        summary = f"best at step {progress.best_step}" if progress.best is not None else "no validation set"
        if averaged:
            kept = f"the average of the last {averaged} checkpoints"
            summary = f"best: {kept}" if progress.best is not None else f"{summary}, {kept} is kept"
        if self.is_out_of_patience:
            summary += f", no improvement in {progress.bad_validations} validations"
        text = f"finished at step {progress.step} ({summary}); the model is in {self.run_folder.path}"
        yield self.report("end", message=text)

    def _raise_stopped(self, number: int) -> None:
        name = signal.Signals(number).name
        code = 130 if number == signal.SIGINT else 143
        text = f"stopped by {name} after step {self.progress.step}, which is saved; the same command resumes the run"
        raise TrainingStopped(text, code)

    def report(self, kind: ReportKind, **fields: Any) -> Report:
        """A report of this kind at the current step, with these fields."""
        return Report(kind, self.progress.step, self.options.steps, **fields)


def _speed(clock: Clock) -> dict[str, float]:
    return {"tokens_per_second": clock.tokens_per_second, "seconds_left": clock.seconds_left}
