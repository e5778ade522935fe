"""The package g2p_en (English words → ARPAbet phonemes): checkpoint20.npz, a GRU that reads and another that writes.

    h_j = GRU(E[letter_j], h_{j−1})      s_0 = h_S      s_t = GRU(E[phoneme_{t−1}], s_{t−1})      p = softmax(W s_t + b)

Its gates are torch's, r before z before n, with the reset after U h. The lists of letters and phonemes are in the code
of the package, and so here. It is found, but not imported: it needs nltk and its data for that.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import ModelError, UserError
from dragoman.interop.importers.contents import Imported, Weights, map_vocabulary
from dragoman.interop.importers.npz import open_npz
from dragoman.interop.importers.token_lists import TokenList, append_row, make_codec

if TYPE_CHECKING:
    from dragoman.interop.importers import ImportOptions

PACKAGE, FILE = "g2p_en", "checkpoint20.npz"
GRAPHEMES = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANTS = ("B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T", "TH", "V",
              "W", "Y", "Z", "ZH")  # fmt: skip
STRESSED = [f"{vowel}{stress}" for vowel in VOWELS for stress in "012"]
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>", *sorted([*STRESSED, "UW", *CONSONANTS])]
MAX_PHONEMES = 20
ENCODER, DECODER = "encoder.stack.layers.0.rnn", "decoder.stack.layers.0.rnn"
NAMES = {"w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0", "b_hh": "bias_hh_l0"}


def read_model(_: Path, options: ImportOptions) -> Imported:
    """Read the checkpoint of the installed package."""
    path = find_checkpoint()
    arrays = open_npz(path)
    parts = {"enc": "encoder", "dec": "decoder"}
    needed = [*(f"{part}_{name}" for part in parts for name in ("emb", *NAMES)), "fc_w", "fc_b"]
    if missing := [name for name in needed if name not in arrays]:
        raise ModelError(
            f"{path}: has no array '{missing[0]}'; reinstall the package: pip install --force-reinstall g2p-en"
        )
    for name in needed:
        if len(arrays[name].shape) != (1 if "_b" in name else 2):
            raise ModelError(f"{path}: the array '{name}' is {arrays[name].shape}; reinstall the package g2p-en")
    sizes = arrays["enc_emb"].shape[:1], arrays["dec_emb"].shape[:1]
    if sizes != ((len(GRAPHEMES),), (len(PHONEMES),)):
        raise ModelError(f"{path}: is not the checkpoint of g2p-en 2.1: it has other letters or phonemes")
    source, target = TokenList(GRAPHEMES, "characters"), TokenList(PHONEMES, "symbols")
    id = GRAPHEMES.index
    letters = map_vocabulary(GRAPHEMES, pad=id("<pad>"), start=len(GRAPHEMES), eos=id("</s>"), unk=id("<unk>"))
    id = PHONEMES.index
    phonemes = map_vocabulary(PHONEMES, pad=id("<pad>"), start=id("<s>"), eos=id("</s>"), unk=id("<unk>"))
    codec, tokenizer = make_codec((source, letters), (target, phonemes), "{text} </s>")
    weights: Weights = {
        "frontend.table.weight": letters.pick(append_row(arrays["enc_emb"])),  # no letter is <s>
        "embedding.table.weight": phonemes.pick(arrays["dec_emb"]),
        "output.weight": phonemes.pick(arrays["fc_w"]),
        "output.bias": phonemes.output_bias(arrays["fc_b"]),
    }
    for part, layer in (("enc", ENCODER), ("dec", DECODER)):
        weights |= {f"{layer}.{ours}": arrays[f"{part}_{theirs}"] for theirs, ours in NAMES.items()}
    return Imported(
        "g2p_en",
        {
            "tokenizer": tokenizer,
            "data": {"train": "pairs.tsv", "normalization": "none"},
            "model": model_section(
                arrays["enc_emb"].shape[1], arrays["enc_w_hh"].shape[1], arrays["dec_w_hh"].shape[1]
            ),
            "generation": {"search": "greedy", "max_new_tokens": MAX_PHONEMES},
        },
        weights,
        codec,
        "Apache-2.0",
        [
            "the package's dictionary and its rules for numbers and homographs: this is its network for other words",
            "the package may write <pad>, <s> and <unk> among phonemes, and our searches never do",
        ],
    )


def find_checkpoint() -> Path:
    """The file of the installed package; UserError if there is none."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise UserError("importing its model needs the package 'g2p_en'. Install it with: pip install --no-deps g2p-en")
    path = Path(folders[0]) / FILE
    if not path.is_file():
        raise UserError(f"{path}: is missing; reinstall the package: pip install --force-reinstall g2p-en")
    return path


def model_section(embedding: int, encoder: int, decoder: int) -> dict[str, Any]:
    """The model section of a config; both sides read vectors of one width."""
    cell = {"name": "rnn", "cell": "gru", "layers": 1, "dropout": 0.0}
    return {
        "width": embedding,
        "frontend": {"name": "tokens", "scale": False},
        "scale": False,
        "tie": "none",
        "encoder": {**cell, "width": encoder, "directions": "one"},
        "decoder": {**cell, "width": decoder, "source": "initial", "bridge": "copy", "readout": "none"},
    }
