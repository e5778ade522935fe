"""A folder that ctranslate2.Translator loads: weights, vocabularies under their real names, sentencepiece models.

    model.bin  config.json  shared_vocabulary.json (or source_ and target_)  source.spm  target.spm

The weights are laid out by the CPU engine's own conversion.
"""

from __future__ import annotations

from pathlib import Path

from dragoman.checkpoint.model_folder import LoadedModel
from dragoman.core.errors import UserError
from dragoman.core.types import BOS, EOS, SPECIALS, UNK
from dragoman.engines.cpu.ctranslate2 import build_spec, model_blocker, position_limit, save_spec
from dragoman.interop.exporters.contents import (
    TOLERANCES,
    Exported,
    ExportOptions,
    check_source_template,
    is_sentencepiece,
    normalization_code,
    renaming_limitation,
    rounding_limitation,
    tag_note,
    unique_names,
    write_tokenizers,
)


def export_ct2(loaded: LoadedModel, folder: Path, options: ExportOptions) -> Exported:
    """Write a model for ctranslate2.Translator."""
    ends_with_eos = check_source_template(loaded, "ct2")
    write_model(loaded, folder, options, ends_with_eos)
    codec, model = loaded.codec, loaded.model
    write_tokenizers(codec, folder)
    positions = position_limit(model)
    limitations = [
        f"sources and outputs have at most {positions} tokens",
        "CTranslate2 gives at least one token unless it is called with min_decoding_length=0",
        *renaming_limitation(codec),
        *rounding_limitation(options.quantization),
    ]
    text = is_sentencepiece(codec)
    if not text:
        limitations.append(f"CTranslate2 reads tokens; the tokenizer '{codec.source.kind}' is only described")
    readme = README_TEXT if text else README_TOKENS
    tokens = [unique_names(codec.source.vocabulary)[i] for i in range(len(codec.source))[-3:]]
    readme = readme.format(normalized=normalization_code(codec), tags=tag_note(codec), tokens=tokens)
    tolerance = TOLERANCES[options.quantization]
    return Exported(
        "ctranslate2", readme, "text" if text else "tokens", "ct2", limitations, positions, tolerance=tolerance
    )


def write_model(loaded: LoadedModel, folder: Path, options: ExportOptions, ends_with_eos: bool) -> None:
    """Write weights and vocabularies; UserError if CTranslate2 does not compute the model as we do."""
    model, codec = loaded.model, loaded.codec
    if (blocker := model_blocker(model, "float32")) is not None:
        raise UserError(f"{loaded.path}: cannot be exported to CTranslate2: {blocker}")
    spec = build_spec(model, (unique_names(codec.source.vocabulary), unique_names(codec.target.vocabulary)))
    config = spec.config
    config.unk_token, config.bos_token, config.eos_token = SPECIALS[UNK], SPECIALS[BOS], SPECIALS[EOS]
    config.decoder_start_token, config.add_source_eos = SPECIALS[BOS], ends_with_eos
    save_spec(spec, str(folder), options.quantization)


README_TEXT = """# A translation model for CTranslate2

Written by Dragoman. It needs `pip install ctranslate2 sentencepiece`, and is run in this folder:

```python
import unicodedata

import ctranslate2
import sentencepiece

translator = ctranslate2.Translator(".")
source = sentencepiece.SentencePieceProcessor(model_file="source.spm")
target = sentencepiece.SentencePieceProcessor(model_file="target.spm")
text = input()
pieces = source.encode({normalized}, out_type=str)
result = translator.translate_batch([pieces], beam_size=4, min_decoding_length=0)[0]
print(target.decode(result.hypotheses[0]))
```
{tags}
CTranslate2 adds `</s>` itself. `export.json` says what was checked, and what differs from the model that was exported.
"""

README_TOKENS = """# A sequence-to-sequence model for CTranslate2

Written by Dragoman. It needs `pip install ctranslate2`, and is run in this folder:

```python
import ctranslate2

translator = ctranslate2.Translator(".")
tokens = {tokens!r}
result = translator.translate_batch([tokens], beam_size=4, min_decoding_length=0)[0]
print(result.hypotheses[0])
```
{tags}
How a text is split into tokens is in `tokenization.json`; CTranslate2 adds `</s>` itself. `export.json` says what was
checked, and what differs from the model that was exported.
"""
