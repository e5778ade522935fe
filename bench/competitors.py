"""Other libraries on the same shapes: a name and how to build it, or why it is left out.

    hf, hf-compiled   Hugging Face transformers, MarianMT of the same sizes; eager, or through torch.compile
    plain             the demo's LSTMs as a course notebook writes them: one decoder step after the other
    ct2-int8, …       CTranslate2 on the same weights, at a precision of its own

For searching, the weights are ours, carried over, and a test holds the results equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.task import ModelShape
from dragoman.core.types import BOS, EOS, PAD, Batch

if TYPE_CHECKING:
    from transformers import MarianMTModel
    from transformers.modeling_outputs import Seq2SeqLMOutput

IGNORED = -100  # what Hugging Face's losses leave out


class Unavailable(Exception):
    """The reason why a competitor cannot take part."""


def build_marian(shape: ModelShape, vocabulary: int, *, dropout: float = 0.1) -> MarianMTModel:
    """A MarianMT of a shape, with random weights."""
    try:
        from transformers import MarianConfig, MarianMTModel
    except ImportError as error:
        raise Unavailable(f"Hugging Face transformers cannot be imported ({error})") from None
    if shape.preset == "pronunciation":
        dropout = 0.0  # the demo's LSTMs have none
    layers = shape.layers if shape.preset != "pronunciation" else 2  # as many parameters as the demo's LSTMs
    width = shape.width if shape.preset != "pronunciation" else 128
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.feedforward,
        decoder_ffn_dim=shape.feedforward,
        activation_function="relu",
        dropout=dropout,
        activation_dropout=dropout,  # ours drops between the two matrices of the feed-forward, too
        max_position_embeddings=1100,
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config)


class PlainRNN(nn.Module):
    """A bidirectional LSTM, then an LSTM with additive attention, in the order in which the equations are read."""

    def __init__(self, vocabulary: int, embedding: int = 64, width: int = 256) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(vocabulary, embedding, padding_idx=PAD) for _ in range(2))
        self.encoder = nn.LSTM(embedding, width // 2, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(width, 2 * width)
        self.cell = nn.LSTMCell(embedding, width)
        self.W_query, self.W_key, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.readout, self.output = nn.Linear(2 * width, width), nn.Linear(width, vocabulary)

    def forward(self, batch: Batch) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source(batch.source), batch.source_lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, (last, _) = self.encoder(packed)
        h, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)  # (B, S, D)
        keys, padding = self.W_key(h), batch.source == PAD
        s, c = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1))).chunk(2, -1)
        outputs = []
        for y in self.target(batch.target[:, :-1]).unbind(1):
            s, c = self.cell(y, (s, c))
            e = self.v(torch.tanh(self.W_query(s)[:, None] + keys))[..., 0]  # (B, S)
            a = e.masked_fill(padding, -torch.inf).softmax(-1)
            context = (a[:, None] @ h)[:, 0]  # (B, D)
            outputs.append(self.output(torch.tanh(self.readout(torch.cat([s, context], -1)))))
        return torch.stack(outputs, 1)  # (B, T, V)


# -- training ----------------------------------------------------------------------------------------------------------


def build_training_models(
    shape: ModelShape, vocabulary: int, names: list[str], device: str
) -> Iterator[tuple[str, nn.Module | Unavailable]]:
    """The name of each competitor and its model, which maps a batch to logits; or why it is left out."""
    for name in names:
        try:
            if name == "plain":
                if shape.preset != "pronunciation":
                    raise Unavailable("the plain LSTM loop is the demo's model alone (--shape demo)")
                yield "plain PyTorch", PlainRNN(vocabulary).to(device)
            elif name in ("hf", "hf-compiled"):
                model = build_marian(shape, vocabulary).to(device)
                run = torch.compile(model) if name == "hf-compiled" else model
                yield f"Hugging Face{', compiled' if name == 'hf-compiled' else ''}", MarianAdapter(model, run)
            else:
                raise Unavailable("there is no such competitor for training (there is hf, hf-compiled, plain)")
        except Unavailable as reason:
            yield name, reason


class MarianAdapter(nn.Module):
    """A MarianMT that reads our batches."""

    def __init__(self, model: MarianMTModel, run: Callable[..., Seq2SeqLMOutput]) -> None:
        super().__init__()
        self.model = model
        self.run = run

    def forward(self, batch: Batch) -> Tensor:
        mask = (batch.source != PAD).long()
        output = self.run(batch.source, mask, decoder_input_ids=batch.target[:, :-1], use_cache=False)
        return output.logits


def training_loop(model: nn.Module, stream: Iterator[Batch], device: str, precision: str) -> Iterator[Tensor]:
    """A plain training loop; yields the loss of each step, without waiting for the device."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    model.train()
    for batch in stream:
        batch = batch.to(device)
        labels = batch.target[:, 1:].masked_fill(batch.target[:, 1:] == PAD, IGNORED)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(batch)
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, label_smoothing=0.1
            )
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield loss.detach()


# -- searching ---------------------------------------------------------------------------------------------------------

ATTENTION = {"Wq": "q_proj", "Wk": "k_proj", "Wv": "v_proj", "Wo": "out_proj"}
BLOCK = {
    **{f"mixer.{own}": f"self_attn.{theirs}" for own, theirs in ATTENTION.items()},
    "mixer_norm": "self_attn_layer_norm",
    "feedforward.W1": "fc1",
    "feedforward.W2": "fc2",
    "feedforward_norm": "final_layer_norm",
}
CROSS = {
    **{f"cross_attention.{own}": f"encoder_attn.{theirs}" for own, theirs in ATTENTION.items()},
    "cross_norm": "encoder_attn_layer_norm",
}


def convert_to_marian(shape: ModelShape, ours: nn.Module) -> MarianMTModel:
    """A MarianMT with the weights of our Transformer: the same function of the same ids."""
    our_weights = ours.state_dict()
    theirs = build_marian(shape, our_weights["output.weight"].shape[0], dropout=0.0).eval()
    weights = theirs.state_dict()
    for side, names in (("encoder", BLOCK), ("decoder", BLOCK | CROSS)):
        for i in range(shape.layers):
            for name, other in names.items():
                for end in ("weight", "bias"):
                    weights[f"model.{side}.layers.{i}.{other}.{end}"] = our_weights[
                        f"{side}.stack.blocks.{i}.{name}.{end}"
                    ]
        positions = getattr(theirs.model, side).embed_positions
        weights[f"model.{side}.embed_positions.weight"] = positions.create_weight()
        weights[f"model.{side}.embed_tokens.weight"] = our_weights["output.weight"]
    weights |= {"model.shared.weight": our_weights["output.weight"], "lm_head.weight": our_weights["output.weight"]}
    weights["final_logits_bias"] = our_weights["output.bias"][None]
    theirs.load_state_dict(weights)
    return theirs


Searcher = Callable[[list[list[int]], int, int], list[list[int]]]  # sources, beam, target tokens → target tokens


def marian_searcher(model: MarianMTModel, device: str, precision: str) -> Searcher:
    """Hugging Face's generate, with a fixed output length."""
    model = model.to(device, torch.bfloat16 if precision == "bfloat16" else torch.float32)

    @torch.inference_mode()
    def search(sources: list[list[int]], beam: int, length: int) -> list[list[int]]:
        ids = torch.tensor(sources, device=device)
        outputs = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beam,
            do_sample=False,
            min_length=length + 1,  # the first token, <s>, counts
            max_length=length + 1,
        )
        return outputs[:, 1:].tolist()  # type: ignore[no-any-return]

    return search


def ctranslate2_searcher(model: MarianMTModel, folder: Path, device: str, kind: str, threads: int) -> Searcher:
    """CTranslate2 on the weights of a MarianMT, by its own converter; as many one-thread workers as threads."""
    try:
        import ctranslate2 as ct2
        from ctranslate2.converters.transformers import BartLoader
    except ImportError as error:
        raise Unavailable(f"CTranslate2 cannot be imported ({error})") from None
    vocabulary = ["<pad>", "<s>", "</s>", "<unk>"] + [f"{i}" for i in range(4, model.config.vocab_size)]
    model.config.normalize_before = model.config.normalize_embedding = False
    loader = BartLoader()
    spec = loader.get_model_spec(model)
    loader.set_vocabulary(spec, vocabulary)
    spec.config.bos_token = spec.config.decoder_start_token = "<s>"
    spec.config.eos_token, spec.config.unk_token = "</s>", "<unk>"
    spec.validate()
    spec.optimize(quantization=kind if kind != "float32" else None)
    path = folder / f"ctranslate2-{kind}"
    path.mkdir()
    spec.save(str(path))
    translator = ct2.Translator(str(path), device=device, compute_type=kind, inter_threads=threads, intra_threads=1)

    def search(sources: list[list[int]], beam: int, length: int) -> list[list[int]]:
        results = translator.translate_batch(
            [[vocabulary[i] for i in source] for source in sources],
            beam_size=beam,
            min_decoding_length=length,
            max_decoding_length=length,
            max_batch_size=-(-len(sources) // threads),
        )
        return [[ids[token] for token in result.hypotheses[0]] for result in results]

    ids = {token: i for i, token in enumerate(vocabulary)}
    return search


def build_searchers(
    names: list[str], shape: ModelShape, ours: nn.Module, folder: Path, device: str, precision: str, threads: int
) -> Iterator[tuple[str, Searcher | Unavailable]]:
    """The name of each competitor and its search; or why it is left out."""
    for name in names:
        try:
            if name == "hf":
                yield f"Hugging Face, {precision}", marian_searcher(convert_to_marian(shape, ours), device, precision)
            elif name.startswith("ct2-"):
                kind = name.removeprefix("ct2-")
                yield (
                    f"CTranslate2, {kind}",
                    ctranslate2_searcher(convert_to_marian(shape, ours), folder, device, kind, threads),
                )
            else:
                raise Unavailable(
                    "there is no such competitor for searching (there is hf, ct2-int8, ct2-float32, reference)"
                )
        except (Unavailable, ValueError) as reason:  # CTranslate2 says so of a device or type that it was built without
            yield name, Unavailable(str(reason))
