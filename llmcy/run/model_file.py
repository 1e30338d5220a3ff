"""Model files: the ``.safetensors`` form of a float32 model, and loading any form.

The tensors are the parameters under their names.  One metadata entry, ``llmcy``, holds canonical
JSON (keys sorted, no spaces): format version, model configuration, tokenizer, selected step,
contract version and the parameters' fingerprint.  One entry, because the library writes several in
no fixed order; with one, equal models give equal bytes.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from llmcy.checkpoint import Checkpoint, version_1_problem
from llmcy.checkpoint.layout import MAGIC
from llmcy.config import CONTRACT_VERSION, ModelConfig
from llmcy.errors import LlmcyError, RunError
from llmcy.generate.text import TextGenerator
from llmcy.model import Decoder
from llmcy.rng import SplitMix64
from llmcy.run.directory import RunDirectory
from llmcy.run.foreign import import_foreign
from llmcy.run.job_file import decode_state_file
from llmcy.state import DecoderModelState, SelectedTrainingState
from llmcy.tokenizer import BytePairTokenizer, JsonTokenizer, LiteralTokenizer, Tokenizer

__all__ = ["LoadedModel", "Provenance", "encode_model_file", "encode_selected", "load_model"]

FORMAT = "llmcy-model-1"
MAX_RESTORED_BYTES = 2**36  # what a file from anywhere may ask for


class Provenance(NamedTuple):
    """Where a model came from."""

    path: Path
    """The file that was read."""
    selected_step: int
    """The step whose values these are."""
    fingerprint: str
    """``fnv1a64:`` label of the parameters."""


@dataclass(frozen=True)
class LoadedModel(TextGenerator):
    """A model read from disk.

    Attributes
    ----------
    model
        A live decoder.
    tokenizer
        The tokenizer it was trained with.
    selected_step
        The step whose values these are.
    fingerprint
        ``fnv1a64:`` label of the parameters.
    path
        The file they came from.
    """

    model: Decoder
    tokenizer: Tokenizer
    selected_step: int
    fingerprint: str
    path: Path

    @property
    def provenance(self) -> Provenance:
        """File, step and digest."""
        return Provenance(self.path, self.selected_step, self.fingerprint)


def tokenizer_record(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer as plain JSON values."""
    if isinstance(tokenizer, BytePairTokenizer):
        return {"kind": "byte-bpe", "pairs": [list(pair) for pair in tokenizer.pairs]}
    if isinstance(tokenizer, JsonTokenizer):
        return {
            "kind": "json",
            "text": tokenizer.text,
            "bos_id": tokenizer.bos_id,
            "eos_id": tokenizer.eos_id,
            "vocab_size": tokenizer.vocab_size,
        }
    pieces = [base64.b64encode(piece).decode("ascii") for piece in tokenizer.pieces]
    return {"kind": "literal", "pieces_base64": pieces}


def tokenizer_from_record(record: dict[str, Any]) -> Tokenizer:
    """The tokenizer that :func:`tokenizer_record` wrote down."""
    if record["kind"] == "byte-bpe":
        return BytePairTokenizer.from_pairs([(int(a), int(b)) for a, b in record["pairs"]])
    if record["kind"] == "json":
        return JsonTokenizer(
            record["text"], record["bos_id"], record["eos_id"], record["vocab_size"]
        )
    return LiteralTokenizer([base64.b64decode(piece) for piece in record["pieces_base64"]])


def encode_selected(
    tokenizer: Tokenizer, selected: SelectedTrainingState, seed: int
) -> tuple[str, bytes]:
    """Name and bytes of the file that a finished run leaves.

    A version-1 checkpoint with the sampling stream of ``seed`` when model and tokenizer fit in one;
    else a model file.
    """
    fits = version_1_problem(selected.model.config) is None
    if fits and not isinstance(tokenizer, JsonTokenizer):
        checkpoint = Checkpoint.from_snapshot(tokenizer, selected, SplitMix64(seed).state)
        return "selected.ckpt", checkpoint.encode().bytes
    return "selected.safetensors", encode_model_file(selected.model, tokenizer, selected.step)


def encode_model_file(state: DecoderModelState, tokenizer: Tokenizer, selected_step: int) -> bytes:
    """The bytes of a ``.safetensors`` model file; equal arguments give equal bytes."""
    described = {
        "format": FORMAT,
        "contract_version": CONTRACT_VERSION,
        "model": state.config.to_dict(),
        "tokenizer": tokenizer_record(tokenizer),
        "selected_step": selected_step,
        "fingerprint": state.fingerprint(),
    }
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":"), allow_nan=False)
    tensors: dict[str, NDArray[Any]] = dict(state.named_arrays())
    return bytes(save_tensors(tensors, metadata={"llmcy": canonical}))


def load_model(path: str | os.PathLike[str]) -> LoadedModel:
    """Load a model from a run folder, a version-1 checkpoint, a ``.safetensors`` model file, a
    state file of a run, a Hugging Face folder, a ``.gguf`` file or a ``.bin`` file of llama2.c.

    The last three are imported in float32.

    Raises
    ------
    RunError
        ``Io``, ``NotARun``, ``UnknownModelFile``, ``CorruptModelFile`` or ``InvalidJobFile``,
        naming the file.
    CheckpointError
        For a version-1 file that is not valid.
    InteropError
        For a model of another program that cannot be imported.
    """
    file = Path(path)
    imported = import_foreign(file)
    if imported is not None:
        fingerprint = imported.state.fingerprint()
        return LoadedModel(imported.state.into_model(), imported.tokenizer, 0, fingerprint, file)
    if file.is_dir():
        file = RunDirectory.open(file).selected_path()
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RunError(
            "Io",
            f"cannot read {str(file)!r}: {error.strerror}",
            cause=error,
            operation="read",
            path=str(file),
        ) from error
    if data[: len(MAGIC)] == MAGIC:
        return _from_checkpoint(file, data)
    return _from_safetensors(file, data)


def _from_checkpoint(file: Path, data: bytes) -> LoadedModel:
    checkpoint = Checkpoint.from_bytes(data)
    record = checkpoint.tokenizer
    tokenizer: Tokenizer | None = record.restore_bpe()
    if tokenizer is None:
        pieces = record.literal_pieces()
        assert pieces is not None  # a record is one or the other
        tokenizer = LiteralTokenizer(pieces)
    # a small file can claim any number of positions; the tables are made when a model is
    needed = checkpoint.restored_bytes()
    if needed > MAX_RESTORED_BYTES:
        raise _corrupt(file, f"the model would take {needed} bytes of memory")
    fingerprint = checkpoint.model_state.fingerprint()
    step = checkpoint.selected_step
    return LoadedModel(checkpoint.into_model(), tokenizer, step, fingerprint, file)


def _from_safetensors(file: Path, data: bytes) -> LoadedModel:
    try:
        tensors = load_tensors(data)
        header_length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + header_length]).get("__metadata__", {})
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise RunError(
            "UnknownModelFile",
            f"{str(file)!r} is neither a version-1 checkpoint nor a safetensors file: {error}",
            path=str(file),
        ) from error
    if '"format":"llmcy-state-1"' in metadata.get("llmcy", ""):
        return _from_state_file(file, data)
    if "llmcy" not in metadata:
        raise RunError(
            "UnknownModelFile",
            f"{str(file)!r} is a safetensors file without llmcy's metadata entry",
            path=str(file),
        )
    try:
        described = json.loads(metadata["llmcy"])
        if described["format"] != FORMAT:
            raise _corrupt(file, f"format {described['format']!r}, expected {FORMAT!r}")
        config = ModelConfig.from_dict(described["model"])
        tokenizer = tokenizer_from_record(described["tokenizer"])
        step = int(described["selected_step"])
        state = _model_state(file, config, tensors)
        model = Decoder.from_parameters(config, dict(state.named_arrays()))
    except RunError:
        raise
    except (LlmcyError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, LlmcyError) and error.kind == "MissingPackage":
            raise  # nothing is wrong with the file
        raise _corrupt(file, f"{type(error).__name__}: {error}") from error
    if state.fingerprint() != described.get("fingerprint"):
        raise _corrupt(file, "the parameters do not have the fingerprint written beside them")
    if tokenizer.vocab_size != config.vocab_size:
        raise _corrupt(
            file, f"tokenizer has {tokenizer.vocab_size} ids, the model {config.vocab_size}"
        )
    return LoadedModel(model, tokenizer, step, state.fingerprint(), file)


def _from_state_file(file: Path, data: bytes) -> LoadedModel:
    """A job checkpoint gives the model it stands at, a selected state the one it holds."""
    state = decode_state_file(data, file)
    fingerprint = state.model.fingerprint()
    tokenizer = tokenizer_from_record(state.described["tokenizer"])
    return LoadedModel(state.model.into_model(), tokenizer, state.step, fingerprint, file)


def _model_state(
    file: Path, config: ModelConfig, tensors: dict[str, NDArray[Any]]
) -> DecoderModelState:
    if config.n_layers > len(tensors):  # before every tensor of these layers is named
        raise _corrupt(file, f"{config.n_layers} layers, but {len(tensors)} tensors")
    wanted = list(config.parameter_shapes())
    if set(wanted) != set(tensors):
        odd = sorted(set(wanted) ^ set(tensors))[0]
        raise _corrupt(file, f"tensor {odd!r} is {'missing' if odd in wanted else 'unknown'}")
    for name in wanted:
        if tensors[name].dtype != np.dtype(config.dtype):
            raise _corrupt(file, f"tensor {name!r} is {tensors[name].dtype}, not {config.dtype}")
    return DecoderModelState.from_named_arrays(config, [(name, tensors[name]) for name in wanted])


def _corrupt(file: Path, problem: str) -> RunError:
    return RunError(
        "CorruptModelFile", f"{str(file)!r}: {problem}", path=str(file), problem=problem
    )
