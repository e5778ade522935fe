"""The families of models that the engine is tested with: a dozen in every run, every part and option in long tests."""

from __future__ import annotations

from typing import Any

from tests.nn.test_promises import D_MEMORY, DECODERS, ENCODERS, covering

RNN: dict[str, Any] = {"name": "rnn", "dropout": 0.0}
TRANSFORMER: dict[str, Any] = {"name": "transformer", "layers": 2, "heads": 2, "feedforward": 24, "dropout": 0.0}
CONVOLUTIONS: dict[str, Any] = {
    "name": "conv",
    "layers": 2,
    "dropout": 0.0,
    "position": {"name": "learned", "length": 24},
}

FAMILIES: dict[str, dict[str, Any]] = {
    "bahdanau": {
        "encoder": RNN | {"cell": "gru"},
        "decoder": RNN | {"cell": "gru", "order": "before", "readout": "maxout"},
    },
    "luong": {
        "encoder": RNN | {"cell": "lstm", "layers": 2, "residual": 2},
        "decoder": RNN | {"layers": 2, "order": "after", "input_feeding": True, "score": "general", "bridge": "copy"},
    },
    "gnmt": {
        "encoder": RNN | {"layers": 3, "directions": "first", "residual": 3},
        "decoder": RNN | {"layers": 2, "order": "bottom", "normalizer": "sparsemax", "gate": True},
    },
    "sutskever": {
        "encoder": RNN | {"directions": "one", "reverse": True},
        "decoder": RNN | {"source": "initial"},
        "generation": {"length_rule": "gnmt", "early_stopping": "never"},
    },
    "location": {
        "encoder": RNN | {"cell": "gru", "reset": "before"},
        "decoder": RNN
        | {
            "cell": "gru",
            "reset": "before",
            "order": "before",
            "score": {"name": "location", "filters": 3, "kernel": 3},
        },
    },
    "convs2s": {
        "encoder": CONVOLUTIONS | {"weight_norm": True},
        "decoder": CONVOLUTIONS | {"weight_norm": True},
        "larger": 1.0,
    },
    "transformer": {"encoder": TRANSFORMER, "decoder": TRANSFORMER, "tie": "all", "joint": True},
    "modern transformer": {
        "encoder": TRANSFORMER | {"position": "rotary", "norm": "rms", "activation": "swiglu", "key_heads": 1},
        "decoder": TRANSFORMER | {"position": "rotary", "norm": "rms", "activation": "swiglu", "key_heads": 1},
        "output_bias": True,
    },
    "relative positions": {
        "encoder": TRANSFORMER | {"position": {"name": "shaw", "distance": 2, "values": True}, "norm_order": "post"},
        "decoder": TRANSFORMER | {"position": {"name": "t5", "buckets": 8, "distance": 6}, "norm_order": "post"},
        "generation": {"length_rule": "none", "early_stopping": True},
    },
    "cheap decoder": {
        "encoder": TRANSFORMER | {"mixer": "parameter_free", "norm": "batch"},
        "decoder": TRANSFORMER | {"mixer": "average", "activation": "gelu"},
        "generation": {"finished_policy": "shrink"},
    },
    "pointer": {"encoder": RNN, "decoder": RNN, "pointer": "additive"},
    "without recurrence": {"encoder": {"name": "identity", "position": "sinusoidal"}, "decoder": {"name": "attention"}},
    "decoder-only": {"encoder": "none", "decoder": TRANSFORMER | {"source": "prefix"}, "objective": "prefix"},
    "language model": {"encoder": "none", "decoder": TRANSFORMER | {"source": "prefix"}, "objective": "lm"},
    "classifier": {
        "encoder": TRANSFORMER,
        "decoder": None,
        "head": {"name": "classifier", "pool": "attention"},
        "objective": "labels",
    },
    "tagger": {"encoder": RNN, "decoder": None, "head": {"name": "tagger", "hidden": True}, "objective": "tags"},
}


def every_family() -> dict[str, dict[str, Any]]:
    """Every value of every option of every encoder and decoder, pairs of values included.

    Weights are not enlarged: through unbounded activations (batch norms, unscaled dots) rounding would grow.
    """
    families: dict[str, dict[str, Any]] = {}
    for name, space in ENCODERS.items():
        for i, options in enumerate(covering(*space)):
            is_none = name == "none"
            decoder = TRANSFORMER | {"source": "prefix"} if is_none else RNN | {"cell": "gru", "score": "additive"}
            families[f"encoder {name} {i}"] = {
                "encoder": {"name": name, **options},
                "decoder": decoder,
                "objective": "prefix" if is_none else "pairs",
            }
    for name, space in DECODERS.items():
        for i, options in enumerate(covering(*space)):
            families[f"decoder {name} {i}"] = {
                "encoder": encoder_for(options),
                "decoder": {"name": name, **options},
                "objective": "prefix" if options.get("source") in ("prefix", "full_prefix") else "pairs",
            }
    for scheme in ("lm", "unilm"):
        for decoder in (RNN, CONVOLUTIONS, TRANSFORMER):
            source = "full_prefix" if scheme == "unilm" else "prefix"
            if scheme == "unilm" and decoder is not TRANSFORMER:
                continue
            families[f"{scheme} {decoder['name']}"] = {
                "encoder": "none",
                "decoder": decoder | {"source": source},
                "objective": scheme,
            }
    for pool in ("summary", "mean", "first", "attention"):
        families[f"classifier {pool}"] = {
            "encoder": RNN,
            "decoder": None,
            "head": {"name": "classifier", "pool": pool, "hidden": pool != "first"},
            "objective": "labels",
        }
    layout = {"name": "sinusoidal", "layout": "halves", "endpoint": True, "first": 2}
    grouped, shaw = {"heads": 4, "key_heads": 2, "position": layout}, {"name": "shaw", "distance": 2}
    families["key heads, other sinusoids"] = {"encoder": TRANSFORMER | grouped, "decoder": TRANSFORMER | grouped}
    families["positions per layer after a prefix"] = {
        "encoder": "none",
        "decoder": TRANSFORMER | {"source": "prefix", "layers": 3, "position": shaw},
        "objective": "lm",
    }
    families["shared layers"] = {"encoder": TRANSFORMER | {"shared": True}, "decoder": TRANSFORMER | {"shared": True}}
    return {name: {"larger": 1.0, **family} for name, family in families.items()}


def encoder_for(options: dict[str, Any]) -> Any:
    """An encoder whose memory is as the decoder options of the table of promises expect it."""
    if options.get("source") in ("prefix", "full_prefix"):
        return "none"
    if options.get("bridge") == "copy":
        return RNN | {"layers": 2, "directions": "both"}
    return RNN | {"cell": "gru", "width": D_MEMORY}
