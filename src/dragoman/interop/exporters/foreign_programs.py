"""Runs an exported model by the other side's own program. This file is run as a script, without Dragoman.

    standard input    {"runner": "ct2", "folder": …, "reads": "text" | "tokens" | "ids", "sources": […],
                       "before": [[tag, …], …], "max_length": 60, …}
    --output FILE     {"version": …, "inputs": [[id or token, …] or null, …], "outputs": [[id, …], …]}

Everything comes from the folder: weights, vocabularies, tokenizers. `inputs` are what the other side's tokenizer made
of the texts.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

Request = dict[str, Any]
BATCH = 32


def batches(items: list[Any]) -> list[list[Any]]:
    return [items[i : i + BATCH] for i in range(0, len(items), BATCH)]


def read_description(folder: Path) -> Any:
    return json.loads((folder / "tokenization.json").read_text(encoding="utf-8"))


def normalize(text: str, form: str) -> str:
    return text if form == "none" else unicodedata.normalize(form.upper(), text)  # type: ignore[arg-type]


def run_ct2(request: Request) -> Request:
    """ctranslate2.Translator, greedy; texts are split by sentencepiece."""
    import ctranslate2

    folder = Path(request["folder"])
    names = read_vocabularies(folder)
    translator = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1)
    sources = request["sources"]
    if request["reads"] == "text":
        sources = split_texts(request, folder)
    outputs: list[list[int]] = []
    ids = {name: id for id, name in enumerate(names["target"])}
    for batch in batches(sources):
        results = translator.translate_batch(
            batch,
            beam_size=1,
            max_input_length=0,
            max_decoding_length=request["max_length"],
            min_decoding_length=0,
        )
        outputs += [[ids[token] for token in result.hypotheses[0]] for result in results]
    source_ids = {name: id for id, name in enumerate(names["source"])}
    unknown = read_description(folder)["special"]["unk"]
    inputs = [[source_ids.get(token, unknown) for token in tokens] for tokens in sources]
    return {"version": ctranslate2.__version__, "inputs": inputs, "outputs": outputs}


def split_texts(request: Request, folder: Path) -> list[list[str]]:
    """The pieces of the texts by the folder's sentencepiece model, after their tags."""
    import sentencepiece

    form = read_description(folder)["normalization"]
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    pairs = zip(request["sources"], request["before"], strict=True)
    return [[*before, *processor.encode(normalize(text, form), out_type=str)] for text, before in pairs]


def read_vocabularies(folder: Path) -> dict[str, list[str]]:
    shared = folder / "shared_vocabulary.json"
    if shared.exists():
        return dict.fromkeys(("source", "target"), json.loads(shared.read_text(encoding="utf-8")))
    return {
        side: json.loads((folder / f"{side}_vocabulary.json").read_text(encoding="utf-8"))
        for side in ("source", "target")
    }


def run_hf(request: Request) -> Request:
    """transformers: the class that config.json names, by `generate` with one beam; texts by the folder's tokenizer."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    folder = Path(request["folder"])
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    sources = request["sources"]
    if request["reads"] == "text":
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        form = read_description(folder)["normalization"]
        texts = zip(sources, request["before"], strict=True)
        sources = [tokenizer("".join(before) + normalize(text, form)).input_ids for text, before in texts]
    outputs: list[list[int]] = []
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    for batch in batches(sources):
        longest = max(map(len, batch))
        ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
        with torch.no_grad():
            found = model.generate(
                ids, attention_mask=mask, num_beams=1, do_sample=False, max_new_tokens=request["max_length"]
            )
        outputs += [until(row[1:], eos) for row in found.tolist()]
    return {"version": transformers.__version__, "inputs": sources, "outputs": outputs}


def until(tokens: list[int], eos: int) -> list[int]:
    """The tokens before the first </s>."""
    return tokens[: tokens.index(eos)] if eos in tokens else tokens


def run_onnx(request: Request) -> Request:
    """onnxruntime: encoder.onnx once, decoder_step.onnx token by token, as the README has it."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    folder = Path(request["folder"])
    encoder, decoder = (
        onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
        for name in ("encoder", "decoder_step")
    )
    special = read_description(folder)["special"]
    outputs: list[list[int]] = []
    for batch in batches(request["sources"]):
        lengths = np.array([len(row) for row in batch])
        source = np.full((len(batch), lengths.max()), special["pad"], np.int64)
        for row, ids in zip(source, batch, strict=True):
            row[: len(ids)] = ids
        steps = request["max_length"]
        inputs = {"source": source, "source_lengths": lengths, "target_positions": np.arange(steps)}
        inputs = {each.name: inputs[each.name] for each in encoder.get_inputs()}
        names = [each.name for each in encoder.get_outputs()]
        state = dict(zip(names, encoder.run(None, inputs), strict=True))
        next_names = [each.name for each in decoder.get_outputs()][1:]
        needed = {each.name for each in decoder.get_inputs()}
        token = np.full((len(batch), 1), special["decoder_start"])
        chosen = []
        done = np.zeros(len(batch), bool)
        for _ in range(steps):
            feed = {name: x for name, x in state.items() if name in needed}
            log_p, *new = decoder.run(None, {"token": token, **feed})
            state |= {name.removeprefix("next_"): x for name, x in zip(next_names, new, strict=True)}
            log_p[..., [special["pad"], special["bos"]]] = -np.inf
            token = log_p.argmax(-1)
            chosen.append(token[:, 0])
            done |= token[:, 0] == special["eos"]
            if done.all():
                break
        outputs += [until(row, special["eos"]) for row in np.stack(chosen, 1).tolist()]
    return {"version": onnxruntime.__version__, "inputs": request["sources"], "outputs": outputs}


def run_argos(request: Request) -> Request:
    """argostranslate: the package is installed into an empty folder, and texts become texts."""
    import os

    home = Path(request["scratch"])
    os.environ.update(
        XDG_DATA_HOME=str(home), XDG_CACHE_HOME=str(home), XDG_CONFIG_HOME=str(home), ARGOS_BEAM_SIZE="1",
        ARGOS_PACKAGES_DIR=str(home / "packages"),
    )  # fmt: skip
    from importlib.metadata import version

    from argostranslate import package, translate

    archive = next(Path(request["folder"]).glob("*.argosmodel"))
    package.install_from_path(archive)
    installed = package.get_installed_packages()[0]
    import ctranslate2

    translator = ctranslate2.Translator(str(installed.package_path / "model"), inter_threads=1, intra_threads=1)

    class OneSentence:
        """Each text is one sentence: where sentences end is not what is checked."""

        def split_sentences(self, text: str) -> list[str]:
            return [text]

    outputs = []
    for text in request["sources"]:
        found = translate.apply_packaged_translation(installed, text, translator, OneSentence(), num_hypotheses=1)
        outputs.append(found[0].value)
    return {"version": version("argostranslate"), "inputs": None, "outputs": outputs}


RUNNERS = {"ct2": run_ct2, "hf": run_hf, "onnx": run_onnx, "argos": run_argos}


def main() -> None:
    sys.modules["dragoman"] = None  # type: ignore[assignment]  # an import of it fails from here on
    request = json.load(sys.stdin)
    sys.path += request.get("path", [])
    result = RUNNERS[request["runner"]](request)
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
