"""Where a run begins when not at its seed: at the parameters of a model that exists already.

The run folder keeps them as ``initial.safetensors``, a model file.  Its SHA-256 belongs to the
identity of the run, so the run can be executed again from the beginning, and another file in that
place is refused by name.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llmcy.config import ModelConfig
from llmcy.errors import RunError
from llmcy.interop.narrow import float32_parameters
from llmcy.model import Decoder
from llmcy.run.canonical import first_difference
from llmcy.run.directory import RunDirectory
from llmcy.run.foreign import import_foreign
from llmcy.run.model_file import encode_model_file, load_model
from llmcy.run.plan import RunPlan
from llmcy.state import DecoderModelState
from llmcy.tokenizer import Tokenizer

__all__ = [
    "INITIAL_FILE",
    "InitialModel",
    "check_initial",
    "load_initial",
    "read_initial",
    "write_initial",
]

INITIAL_FILE = "initial.safetensors"


@dataclass(frozen=True)
class InitialModel:
    """A model to train on from.

    Attributes
    ----------
    state
        Configuration and parameters; the optimizer begins anew.
    tokenizer
        The tokenizer it was trained with.
    source
        Where it was read, for the record.
    selected_step
        Updates that made it, as far as its file says.
    """

    state: DecoderModelState
    tokenizer: Tokenizer
    source: str
    selected_step: int

    def check(self, config: ModelConfig) -> None:
        """Compare with the configuration that a run is going to have.

        Raises
        ------
        RunError
            ``InitialModelMismatch`` naming the first field that differs.
        """
        found = first_difference(asdict(self.state.config), asdict(config))
        if found is not None:
            field, held, wanted = found
            raise RunError(
                "InitialModelMismatch",
                f"the model of {self.source!r} has {field} {held}, the run would have {wanted}",
                field=field,
                expected=held,
                actual=wanted,
            )


def load_initial(
    path: str | os.PathLike[str], *, dtype: str | None = None, max_seq_len: int = 0
) -> InitialModel:
    """Read a model to train on from.

    Parameters
    ----------
    path
        Whatever :func:`llmcy.load` takes.
    dtype
        Arithmetic of the run.  None keeps the model's own, and makes float32 of an imported one.
        From float64 to float32 every value is rounded once, the other way none is.
    max_seq_len
        Positions of the run's model; 0: as many as the model has.  No parameter depends on it.

    Raises
    ------
    LlmcyError
        As :func:`llmcy.run.load_model`; ``NotRepresentable`` for a value beyond float32's range.
    """
    imported = import_foreign(Path(path), dtype or "float32")
    if imported is not None:
        state, tokenizer, step = imported.state, imported.tokenizer, 0
    else:
        loaded = load_model(path)
        state = DecoderModelState.snapshot(loaded.model)
        tokenizer, step = loaded.tokenizer, loaded.selected_step
    config = replace(
        state.config,
        dtype=dtype or state.config.dtype,
        max_seq_len=max_seq_len or state.config.max_seq_len,
    )
    if config != state.config:
        narrowed = config.dtype == "float32" and state.config.dtype == "float64"
        named: Any = float32_parameters(state) if narrowed else state.named_arrays()
        state = DecoderModelState.from_named_arrays(config, named)
    return InitialModel(state, tokenizer, os.fspath(path), step)


def write_initial(run: RunDirectory, initial: InitialModel, tokenizer: Tokenizer) -> dict[str, Any]:
    """Store the parameters; return what ``config.json`` says of them.

    Raises
    ------
    RunError
        ``Io``.
    """
    data = encode_model_file(initial.state, tokenizer, initial.selected_step)
    run.write_bytes(INITIAL_FILE, data)
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "parameters": initial.state.fingerprint(),
        "selected_step": initial.selected_step,
        "source": initial.source,
    }


def check_initial(run: RunDirectory, plan: RunPlan) -> None:
    """The stored parameters must be those that the run was planned with.

    Raises
    ------
    RunError
        ``RunChanged`` naming ``initial.sha256``; ``Io``.
    """
    if plan.initial is None:
        return
    path = run.path / INITIAL_FILE
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(
            "Io",
            f"cannot read {str(path)!r}: {error.strerror}",
            cause=error,
            operation="read",
            path=str(path),
        ) from error
    if actual != plan.initial["sha256"]:
        raise _changed("sha256", plan.initial["sha256"], actual)


def read_initial(folder: Path, plan: RunPlan) -> Decoder | None:
    """The model that a run begins with; None when it begins at its seed.

    Raises
    ------
    RunError
        ``RunChanged`` naming what does not fit the plan; as :func:`llmcy.run.load_model`.
    """
    if plan.initial is None:
        return None
    check_initial(RunDirectory(folder), plan)
    loaded = load_model(folder / INITIAL_FILE)
    found = first_difference(asdict(plan.model), asdict(loaded.model.config))
    if found is not None:
        raise _changed(f"model.{found[0]}", found[1], found[2])
    for field, actual in (
        ("parameters", loaded.fingerprint),
        ("selected_step", loaded.selected_step),
    ):
        if plan.initial[field] != actual:
            raise _changed(field, plan.initial[field], actual)
    return loaded.model


def _changed(field: str, expected: Any, actual: Any) -> RunError:
    return RunError(
        "RunChanged",
        f"the run has changed: {INITIAL_FILE}: {field} was {expected}, is now {actual}",
        field=f"initial.{field}",
        expected=expected,
        actual=actual,
    )
