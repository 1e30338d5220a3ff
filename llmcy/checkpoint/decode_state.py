"""Second half of loading: from a sound record table to tokenizer, model and optimizer values.

Sections E to G of docs/formats.md.  Parameters are judged by name and shape before any array of
that shape is made: a shape with a zero can name dimensions that no array can have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmcy.checkpoint.decode_header import Header, layout_error
from llmcy.checkpoint.layout import (
    BPE_RECORD_NAME,
    SIZE_MAX,
    Descriptor,
    DType,
    Role,
    TokenizerKind,
)
from llmcy.checkpoint.tokenizer_record import TokenizerRecord
from llmcy.config import ModelConfig
from llmcy.errors import (
    AutodiffError,
    CheckpointError,
    InitializationError,
    ModelError,
    OptimizerStateError,
    TensorError,
)
from llmcy.nn.layout import check_decoder_layout
from llmcy.nn.naming import check_parameter_name
from llmcy.optim import AdamWState, AdamWStateEntry
from llmcy.state import DecoderModelState, OptimizerSnapshot

__all__ = ["check_relations", "decode_model", "decode_optimizer", "decode_tokenizer"]

F64Array = NDArray[np.float64]


def _values(data: memoryview, row: Descriptor) -> NDArray[np.generic]:
    """A native, aligned copy of a record's elements as a flat array; any offset will do."""
    count = row.byte_length // row.dtype.width
    if not count:
        return np.empty(0, row.dtype.numpy).astype(np.dtype(row.dtype.numpy).newbyteorder("="))
    stored = np.frombuffer(data, row.dtype.numpy, count, row.offset)
    return stored.astype(stored.dtype.newbyteorder("="), copy=True)


# --------------------------------------------------------------------------- E: tokenizer
def decode_tokenizer(data: memoryview, header: Header) -> TokenizerRecord:
    """Read the tokenizer's records.

    Raises
    ------
    CheckpointError
        ``Layout``, ``Tokenizer``, ``Bpe`` or ``VocabularyMismatch`` (here its ``decoder`` field
        is the header's tokenizer vocabulary).
    """
    rows = header.descriptors[: header.n_tokenizer_records]
    if header.tokenizer_kind is TokenizerKind.LITERAL:
        tokenizer = _decode_pieces(data, rows)
    else:
        tokenizer = _decode_pairs(data, rows[0])
    if tokenizer.vocab_size != header.tokenizer_vocab_size:
        raise CheckpointError(
            "VocabularyMismatch",
            f"the tokenizer's records make {tokenizer.vocab_size} tokens, "
            f"the header says {header.tokenizer_vocab_size}",
            tokenizer=tokenizer.vocab_size,
            decoder=header.tokenizer_vocab_size,
        )
    return tokenizer


def _decode_pieces(data: memoryview, rows: Sequence[Descriptor]) -> TokenizerRecord:
    for token_id, row in enumerate(rows):
        expected = (Role.LITERAL_TOKEN, DType.U8, str(token_id))
        if (row.role, row.dtype, row.name) != expected:
            raise layout_error(
                f"record {token_id} must be LiteralToken '{token_id}' of u8, "
                f"got {row.role.label} {row.name!r} of {row.dtype.label}"
            )
        if len(row.shape) != 1 or row.shape[0] == 0:
            raise layout_error(
                f"LiteralToken '{token_id}' must have one axis of at least 1, got {row.shape}"
            )
    return TokenizerRecord.literal(bytes(data[row.offset : row.end]) for row in rows)


def _decode_pairs(data: memoryview, row: Descriptor) -> TokenizerRecord:
    if (row.role, row.dtype, row.name) != (Role.BPE_PAIRS, DType.U32, BPE_RECORD_NAME):
        raise layout_error(
            f"record 0 must be BpePairs {BPE_RECORD_NAME!r} of u32, "
            f"got {row.role.label} {row.name!r} of {row.dtype.label}"
        )
    if len(row.shape) != 2 or row.shape[1] != 2:
        raise layout_error(f"{BPE_RECORD_NAME!r} must have shape (merges, 2), got {row.shape}")
    pairs = _values(data, row).reshape(-1, 2).tolist()
    return TokenizerRecord.from_training_pairs([(left, right) for left, right in pairs])


# --------------------------------------------------------------------------- F: model
def decode_model(data: memoryview, header: Header) -> DecoderModelState:
    """Read the model's records and check that they make the decoder of the header.

    Raises
    ------
    CheckpointError
        ``Layout``, ``Tensor`` or ``Initialization`` at the first bad record; then ``Model``.
    """
    start = header.n_tokenizer_records
    rows = header.descriptors[start : start + header.n_parameters]
    if not rows:
        raise layout_error("the file has no model parameters")
    flat = [_decode_parameter(data, row) for row in rows]
    config = _check_model(header, rows)
    named = [(row.name, values.reshape(row.shape)) for row, values in zip(rows, flat, strict=True)]
    return DecoderModelState.from_named_arrays(config, named, copy=False)


def _decode_parameter(data: memoryview, row: Descriptor) -> F64Array:
    if (row.role, row.dtype) != (Role.MODEL_PARAMETER, DType.F64):
        raise layout_error(
            f"{row.name!r} must be a ModelParameter of f64, "
            f"got {row.role.label} of {row.dtype.label}"
        )
    if not _strides_fit(row.shape):
        cause = TensorError(
            "ShapeOverflow", f"the strides of shape {row.shape} overflow", shape=row.shape
        )
        raise CheckpointError("Tensor", f"{row.name!r}: {cause}", cause=cause) from cause
    try:
        check_parameter_name(row.name)
    except InitializationError as cause:
        raise CheckpointError("Initialization", str(cause), cause=cause) from cause
    values = _values(data, row).astype(np.float64, copy=False)
    finite = np.isfinite(values)
    if not finite.all():
        index = int(np.argmin(finite))
        value = float(values[index])
        leaf = AutodiffError(
            "NonFiniteLeaf",
            f"parameter {row.name!r} is {value!r} at index {index}",
            index=index,
            value=value,
        )
        inner = InitializationError("Autodiff", str(leaf), cause=leaf)
        raise CheckpointError("Initialization", str(leaf), cause=inner) from inner
    return values


def _strides_fit(shape: Sequence[int]) -> bool:
    """Row-major strides, multiplied from the last axis; the first axis enters no stride."""
    stride = 1
    for size in reversed(shape[1:]):
        stride *= size
        if stride > SIZE_MAX:
            return False
    return True


def _check_model(header: Header, rows: Sequence[Descriptor]) -> ModelConfig:
    fields = header.decoder
    try:
        config = ModelConfig(
            vocab_size=fields.vocab_size,
            d_model=fields.d_model,
            n_heads=fields.n_heads,
            n_layers=fields.n_layers,
            d_ff=fields.d_ff,
            max_seq_len=fields.max_seq_len,
            rope_theta=fields.rope_theta,
            rms_norm_eps=fields.rms_norm_eps,
        )
        check_decoder_layout(config, [row.name for row in rows], [row.shape for row in rows])
    except ModelError as cause:
        raise CheckpointError("Model", f"model: {cause}", cause=cause) from cause
    return config


# --------------------------------------------------------------------------- G: optimizer
def decode_optimizer(
    data: memoryview, header: Header
) -> tuple[OptimizerSnapshot, dict[str, tuple[int, ...]]]:
    """Read the moments and join them with the header's settings, groups, step and powers.

    Returns
    -------
    optimizer, shapes
        The snapshot, and the shape of every moment pair exactly as the file says it.

    Raises
    ------
    CheckpointError
        ``Layout`` or ``AdamWState``.
    """
    rows = header.descriptors[header.n_tokenizer_records + header.n_parameters :]
    entries = []
    shapes = {}
    try:
        for first, second in zip(rows[0::2], rows[1::2], strict=True):
            _check_moment_pair(first, second)
            shapes[first.name] = first.shape
            entries.append(
                AdamWStateEntry(
                    first.name,
                    _array_shape(first),
                    _values(data, first),
                    _values(data, second),
                    copy=False,
                )
            )
        state = AdamWState(header.optimizer_step, header.beta1_power, header.beta2_power, entries)
        return OptimizerSnapshot(header.adamw, header.groups, state), shapes
    except OptimizerStateError as cause:
        raise CheckpointError("AdamWState", f"optimizer state: {cause}", cause=cause) from cause


def _check_moment_pair(first: Descriptor, second: Descriptor) -> None:
    if (first.role, first.dtype) != (Role.OPTIMIZER_FIRST_MOMENT, DType.F64):
        raise layout_error(
            f"{first.name!r} must be an OptimizerFirstMoment of f64, "
            f"got {first.role.label} of {first.dtype.label}"
        )
    if (second.role, second.dtype) != (Role.OPTIMIZER_SECOND_MOMENT, DType.F64):
        raise layout_error(
            f"{second.name!r} must be an OptimizerSecondMoment of f64, "
            f"got {second.role.label} of {second.dtype.label}"
        )
    if second.name != first.name:
        raise layout_error(
            f"the second moment of {first.name!r} is missing, found that of {second.name!r}"
        )
    if second.shape != first.shape:
        raise layout_error(
            f"the moments of {first.name!r} have shapes {first.shape} and {second.shape}"
        )


def _array_shape(row: Descriptor) -> tuple[int, ...]:
    """The shape to hold a moment in: its own, or flat where no parameter can have that shape.

    A parameter has one or two axes and no empty one, so a moment of any other shape is refused by
    :func:`check_relations`, which sees the true shape; until then its values are checked flat.
    """
    if len(row.shape) in (1, 2) and 0 not in row.shape:
        return row.shape
    return (row.byte_length // row.dtype.width,)


# --------------------------------------------------------------------------- H: relations
def check_relations(
    tokenizer_vocab_size: int,
    model: DecoderModelState,
    optimizer: OptimizerSnapshot,
    selected_step: int,
    moment_shapes: dict[str, tuple[int, ...]] | None = None,
) -> None:
    """The parts must belong together; creation and loading share these checks.

    Parameters
    ----------
    tokenizer_vocab_size, model, optimizer, selected_step
        The parts.
    moment_shapes
        Shape of each moment pair; taken from the optimizer when not given.

    Raises
    ------
    CheckpointError
        ``VocabularyMismatch``, ``StepMismatch``; after step 0 also ``OptimizerNames`` and, for the
        first name in byte order, ``OptimizerShape``.
    """
    vocab_size = model.config.vocab_size
    if tokenizer_vocab_size != vocab_size:
        raise CheckpointError(
            "VocabularyMismatch",
            f"the tokenizer has {tokenizer_vocab_size} tokens, the decoder {vocab_size}",
            tokenizer=tokenizer_vocab_size,
            decoder=vocab_size,
        )
    if selected_step != optimizer.step:
        raise CheckpointError(
            "StepMismatch",
            f"selected step {selected_step} differs from optimizer step {optimizer.step}",
            selected=selected_step,
            optimizer=optimizer.step,
        )
    if selected_step == 0:
        return
    shapes = {name: array.shape for name, array in model.named_arrays()}
    expected = tuple(sorted(shapes))  # code points sort as UTF-8 bytes do
    actual = optimizer.state.names()
    if expected != actual:
        odd = min(set(expected) ^ set(actual))
        raise CheckpointError(
            "OptimizerNames",
            f"the model has {len(expected)} parameters, the optimizer moments for {len(actual)}; "
            f"{odd!r} is in only one of them",
            expected=expected,
            actual=actual,
        )
    if moment_shapes is None:
        moment_shapes = {entry.name: entry.shape for entry in optimizer.state.entries}
    for name in expected:
        if moment_shapes[name] != shapes[name]:
            raise CheckpointError(
                "OptimizerShape",
                f"{name!r} has shape {shapes[name]}, its moments {moment_shapes[name]}",
                name=name,
                model=shapes[name],
                optimizer=moment_shapes[name],
            )
