"""hub:OWNER/NAME: a model of the Hugging Face Hub, fetched by huggingface_hub into its own cache.

The only importer that uses the network, and only because the user typed its prefix. HF_HOME, HF_TOKEN, HF_ENDPOINT and
HF_HUB_OFFLINE mean what they mean there. What was fetched is read like a folder on disk.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core.errors import ModelError, UserError
from dragoman.interop.importers import ctranslate2, huggingface
from dragoman.interop.importers.contents import Imported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dragoman.interop.importers import ImportOptions

NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?")
SETTINGS = ("*.json", "*.model", "*.spm", "*.txt", "README.md", "LICENSE*")


def read_model(name: Path, options: ImportOptions) -> Imported:
    """Fetch OWNER/NAME, or OWNER/NAME@REVISION, and read it as a folder of transformers or CTranslate2."""
    if not NAME.fullmatch(str(name)):
        raise UserError(f"hub:{name}: write hub:OWNER/NAME, or hub:OWNER/NAME@REVISION")
    repository, _, revision = str(name).partition("@")
    folder = fetch(repository, revision or None, options.trust_pickle)
    is_ctranslate2 = (folder / "model.bin").exists() and not any(folder.glob("*.safetensors"))
    return ctranslate2.read_model(folder, options) if is_ctranslate2 else huggingface.read_model(folder, options)


def fetch(repository: str, revision: str | None, trust_pickle: bool) -> Path:
    """The folder in the cache of huggingface_hub that holds the settings and weights of a repository."""
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise UserError("hub: needs the package huggingface_hub: pip install huggingface_hub") from None
    place = f"hub:{repository}" + (f"@{revision}" if revision else "")
    try:
        info = huggingface_hub.HfApi().model_info(repository, revision=revision)
        names = [file.rfilename for file in info.siblings or []]
        weights = choose_weights(names, trust_pickle)
        if not weights:
            raise ModelError(
                f"{place}: has no weights that can be read (model.safetensors, or model.bin of CTranslate2)"
                + ("; --trust-pickle reads pytorch_model.bin" if choose_weights(names, trust_pickle=True) else "")
            )
        settings = [name for name in names if any(fnmatch(name, pattern) for pattern in SETTINGS) and "/" not in name]
        paths = [
            Path(huggingface_hub.hf_hub_download(repository, name, revision=info.sha)) for name in (*settings, *weights)
        ]
        return paths[-1].parent
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(f"{place}: cannot be fetched: {reason[:200].rstrip('.')}") from None


def choose_weights(names: Iterable[str], trust_pickle: bool) -> list[str]:
    """The weight files among the names of a repository: safetensors, else CTranslate2's, else pickles if trusted."""
    for pattern in ("model*.safetensors", "model.bin", *(["pytorch_model*.bin"] if trust_pickle else [])):
        if chosen := sorted(name for name in names if fnmatch(name, pattern)):
            return chosen
    return []
