"""Telling other programs' models from our own files, and importing them."""

from __future__ import annotations

import json
from pathlib import Path

from llmcy.interop import ImportedModel, import_gguf, import_hf, import_llama2c

__all__ = ["import_foreign"]


def import_foreign(path: Path, dtype: str = "float32") -> ImportedModel | None:
    """Import a Hugging Face folder, a GGUF file or a ``.bin`` file of llama2.c; None for all else.

    Parameters
    ----------
    path
        A folder whose ``config.json`` has a ``model_type``; a file named ``*.gguf`` or ``*.bin``.
    dtype
        Type of the model.

    Raises
    ------
    InteropError, ModelError, TokenizerError
        As :func:`llmcy.interop.import_hf`, :func:`llmcy.interop.import_gguf` and
        :func:`llmcy.interop.import_llama2c`.
    """
    if path.is_dir():
        return import_hf(path, dtype=dtype) if _is_hf_folder(path) else None
    if path.suffix == ".gguf":
        return import_gguf(path, dtype=dtype)
    return import_llama2c(path, dtype=dtype) if path.suffix == ".bin" else None


def _is_hf_folder(folder: Path) -> bool:
    # a run folder has a config.json, too
    try:
        values = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and "model_type" in values
