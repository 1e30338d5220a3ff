"""One way to look at every file that holds a state: version-1 checkpoint, model file, job
checkpoint.

A version-1 file must be valid.  The ``.safetensors`` forms are read as they are, so that one whose
digest is wrong can still be compared with its original.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from numpy.typing import NDArray

from llmcy.checkpoint import Checkpoint
from llmcy.checkpoint.layout import MAGIC
from llmcy.errors import RunError
from llmcy.optim import AdamWConfig, AdamWState, ParameterGroups

__all__ = ["StoredState", "flatten", "read_stored_state"]

VERSION_1, MODEL_FILE = "version-1 checkpoint", "model file"
STATE_FILES = {"job": "job checkpoint", "selected": "selected state"}
MOMENTS = ("first_moment:", "second_moment:")


@dataclass(frozen=True)
class StoredState:
    """A file's tensors and fields by name.

    Attributes
    ----------
    path
        The file.
    kind
        ``version-1 checkpoint``, ``model file``, ``job checkpoint`` or ``selected state``.
    step
        The step the values belong to; None when the file does not say.
    fields
        Everything that is not a tensor, by dotted path.
    names
        Tensors in the order in which they are compared.
    """

    path: Path
    kind: str
    step: int | None
    fields: Mapping[str, Any]
    names: tuple[str, ...]
    _read: Callable[[str], NDArray[Any]]

    def tensor(self, name: str) -> NDArray[Any]:
        """Values of one tensor."""
        return self._read(name)


def read_stored_state(path: str | os.PathLike[str]) -> StoredState:
    """Open a state file of any kind.

    Raises
    ------
    RunError
        ``Io``, or ``UnknownModelFile`` for a file of another kind.
    CheckpointError
        For a version-1 file that is not valid.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            start = opened.read(len(MAGIC))
    except OSError as error:
        raise RunError(
            "Io",
            f"cannot read {str(file)!r}: {error.strerror}",
            cause=error,
            operation="read",
            path=str(file),
        ) from error
    return _version_1(file) if start == MAGIC else _safetensors(file)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Nested objects as one mapping from dotted path to value; lists stay whole."""
    if not isinstance(value, dict):
        return {path: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= flatten(inner, f"{path}.{key}" if path else str(key))
    return flat


def _version_1(file: Path) -> StoredState:
    checkpoint = Checkpoint.load(file)
    state, optimizer = checkpoint.model_state, checkpoint.optimizer
    tensors = dict(state.named_arrays())
    tensors |= _moments(optimizer.state)
    fields = flatten(
        {
            "tokenizer": repr(checkpoint.tokenizer),
            "model": state.config.to_dict(),
            "optimizer": _optimizer_fields(optimizer.config, optimizer.groups),
            "selected_step": checkpoint.selected_step,
            "sampling_rng_state": f"0x{checkpoint.sampling_rng_state():016x}",
            "beta_powers": [
                optimizer.state.beta1_power.hex(),
                optimizer.state.beta2_power.hex(),
            ],
        }
    )
    step = checkpoint.selected_step
    return StoredState(file, VERSION_1, step, fields, tuple(tensors), tensors.__getitem__)


def _moments(state: AdamWState) -> dict[str, NDArray[Any]]:
    moments = {}
    for entry in state.entries:
        moments[f"first_moment:{entry.name}"] = entry.first_moment.reshape(entry.shape)
    for entry in state.entries:
        moments[f"second_moment:{entry.name}"] = entry.second_moment.reshape(entry.shape)
    return moments


def _optimizer_fields(config: AdamWConfig, groups: ParameterGroups | None) -> dict[str, Any]:
    fields: dict[str, Any] = dict(config.to_dict())
    fields["groups"] = None
    if groups is not None:
        fields["groups"] = {"decay": list(groups.decay), "no_decay": list(groups.no_decay)}
    return fields


def _safetensors(file: Path) -> StoredState:
    try:
        opened: Any = safetensors.safe_open(file, framework="numpy")
        metadata = opened.metadata() or {}
        described = json.loads(metadata["llmcy"])
        is_model = described["format"].startswith("llmcy-model")
        kind = MODEL_FILE if is_model else STATE_FILES[described["kind"]]
        step = int(described["selected_step" if is_model else "step"])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            "UnknownModelFile",
            f"{str(file)!r} is neither a version-1 checkpoint nor a model file nor a job "
            f"checkpoint: {type(error).__name__}: {error}",
            cause=error,
            path=str(file),
        ) from error
    names = tuple(sorted(opened.keys(), key=_place))
    return StoredState(file, kind, step, flatten(described), names, opened.get_tensor)


def _place(name: str) -> tuple[int, str]:
    """Parameters first, then first moments, then second ones."""
    return next((k for k, prefix in enumerate(MOMENTS, 1) if name.startswith(prefix)), 0), name
