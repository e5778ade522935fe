"""Training through packed, captured steps, against the plain loop. The comparisons need a GPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman import config as configs
from dragoman import training
from dragoman.core.registry import Part
from dragoman.data.batching import collate
from dragoman.engines.training.graph_step import GraphStep, graph_step_blocker
from dragoman.nn.kernels.packed import supports_triton
from dragoman.nn.seq2seq import Seq2Seq

gpu = pytest.mark.skipif(not supports_triton(), reason="captured steps need a GPU and Triton")


def small(**options):
    shared = {"layers": 2, "heads": 4, "dropout": 0.0, **options}
    parts = {"encoder": Part("transformer", shared), "decoder": Part("transformer", shared)}
    return Seq2Seq(50, 50, width=64, tie="all", **parts)


def pairs(count, longest, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest, (count, 2))
    return [(rng.integers(4, 50, a).tolist(), rng.integers(4, 50, b).tolist()) for a, b in lengths]


def losses(folder: Path, engine: str, precision: str = "float32", steps: int = 200) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = [" ".join(map(str, rng.integers(0, 30, rng.integers(3, 40)))) for _ in range(3000)]
    folder.mkdir()
    (folder / "train.tsv").write_text("".join(f"{row}\t{row}\n" for row in rows))
    part = {"name": "transformer", "layers": 2, "heads": 4, "dropout": 0.0}
    config = configs.validate(
        {
            "data": {"train": str(folder / "train.tsv")},
            "tokenizer": {"source": "symbols", "joint": True},
            "model": {"width": 64, "tie": "all", "encoder": part, "decoder": part},
            "training": {
                "steps": steps,
                "batch_tokens": 2048,
                "precision": precision,
                "optimizer": {"name": "adamw", "rate": 3e-4},
                "schedule": {"name": "inverse_sqrt", "warmup": 50},
            },
            "runtime": {"engine": engine},
        },
        "a test",
    )
    return np.array([report.loss for report in training.run(config, folder / "run") if report.kind == "step"])


@gpu
def test_losses_of_captured_training_track_the_reference_loop_over_200_steps(tmp_path):
    reference, captured = (losses(tmp_path / engine, engine) for engine in ("reference", "auto"))
    assert len(reference) == len(captured) == 200
    assert (np.abs(reference - captured) / reference).max() < 1e-3
    assert captured[-1] < captured[0]


@gpu
@pytest.mark.parametrize("options", [{}, {"norm_order": "post"}, {"position": Part("rotary"), "activation": "swiglu"}])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_way_through_a_step_gives_the_models_gradient(options, precision):
    torch.manual_seed(0)
    model = small(**options).cuda().train()
    batch = collate(pairs(30, 70, 0), list(range(30)))
    loss = model.loss(batch.to("cuda"), 0.1)
    truth = [g.clone() for g in torch.autograd.grad(loss / 100, list(model.parameters()))]
    wanted = float(loss)
    del loss
    steps = GraphStep(model, 0.1, precision, 2048)
    near = 1e-5 if precision == "float32" else 3e-2
    for _ in range(3):  # uncaptured, captured, replayed
        steps.zero_grad()
        found = float(steps(steps.prepare(batch), 100.0))
        assert found == pytest.approx(wanted, rel=max(near, 1e-5))
        for p, g in zip(model.parameters(), truth, strict=True):
            assert (p.grad - g).norm() <= near * max(g.norm(), 0.1)
    assert steps.captured


@gpu
def test_gradients_of_several_pieces_add_up_and_dropout_draws_anew_at_every_replay():
    torch.manual_seed(0)
    model = small(dropout=0.3).cuda().train()
    steps = GraphStep(model, 0.0, "float32", 2048)
    batch = steps.prepare(collate(pairs(30, 30, 1), list(range(30))))

    def gradient(*seeds):
        steps.zero_grad()
        for seed in seeds:
            torch.manual_seed(seed)
            steps(batch, 1.0)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    gradient(9)  # seen once: the next one is captured
    a, b, both, again = gradient(1), gradient(2), gradient(1, 2), gradient(1)
    torch.testing.assert_close(again, a, atol=1e-4, rtol=1e-4)
    assert (a - b).norm() > 0.05 * a.norm()
    torch.testing.assert_close(both, a + b, atol=1e-3, rtol=1e-3)


def test_unusual_training_options_stay_with_the_reference_loop():
    options = configs.TrainingOptions()
    assert graph_step_blocker(small(), torch.device("cuda"), options) is None
    assert graph_step_blocker(small(), torch.device("cuda"), options.model_copy(update={"r_drop": 1.0})) is None
    for change in ({"scheduled_sampling": Part("linear")}, {"objective": Part("prefix")}):
        changed = options.model_copy(update=change)
        assert graph_step_blocker(small(), torch.device("cuda"), changed) is not None
    assert graph_step_blocker(small(attention_dropout=0.1), torch.device("cuda"), options) is not None


def test_graph_steps_need_a_gpu():
    blocker = graph_step_blocker(small(), torch.device("cpu"), configs.TrainingOptions())
    assert blocker == "it runs on a GPU, and the device is cpu"
