"""llmcy: small language models on CPUs, with results that depend on the inputs alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from llmcy._kernels import available_isas, isa
from llmcy._threads import num_threads, set_num_threads
from llmcy._version import __version__
from llmcy.kernels.memory import release_memory

if TYPE_CHECKING:
    from llmcy.run.model_file import LoadedModel

__all__ = [
    "__version__",
    "available_isas",
    "isa",
    "load",
    "num_threads",
    "release_memory",
    "set_num_threads",
]


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """A model with its tokenizer and provenance, from a run folder or any file of a model.

    Parameters
    ----------
    path
        As :func:`llmcy.run.load_model`.

    Returns
    -------
    LoadedModel
        ``.model``, ``.tokenizer``, ``.provenance``, and ``.generate(prompt, ...)``.

    Raises
    ------
    RunError, CheckpointError
        When nothing can be loaded from there.
    """
    from llmcy.run.model_file import load_model  # only who loads a model pays for this import

    return load_model(path)
