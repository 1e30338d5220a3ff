"""A checkpoint: tokenizer, model, optimizer, step and sampling stream that belong together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from llmcy.atomic_file import PathLike
from llmcy.checkpoint import file
from llmcy.checkpoint.decode import decode
from llmcy.checkpoint.decode_state import check_relations
from llmcy.checkpoint.encode import Content, EncodedCheckpoint, encode_image
from llmcy.checkpoint.layout import U64_MAX, overflow
from llmcy.checkpoint.tokenizer_record import TokenizerRecord
from llmcy.config import ModelConfig
from llmcy.errors import CheckpointError, TrainerError
from llmcy.model import Decoder
from llmcy.optim import AdamW, AdamWState, AdamWStateEntry
from llmcy.state import DecoderModelState, OptimizerSnapshot, SelectedTrainingState
from llmcy.tokenizer import BytePairTokenizer, LiteralTokenizer

__all__ = ["Checkpoint", "version_1_problem"]


def version_1_problem(config: ModelConfig) -> CheckpointError | None:
    """Why a model of this configuration does not fit a version-1 file; None when it does."""
    if config.dtype != "float64":
        return CheckpointError(
            "UnsupportedModelDType",
            f"a version-1 checkpoint stores float64 models only, got {config.dtype}",
            dtype=config.dtype,
        )
    for name, ordinary in (("n_kv_heads", None), ("head_size", None), ("tied_head", True)):
        value = getattr(config, name)
        if value != ordinary:
            return CheckpointError(
                "UnsupportedModelShape",
                f"a version-1 checkpoint cannot store a model with {name} = {value!r}; "
                "write a .safetensors model file",
                name=name,
                value=value,
            )
    return None


class Checkpoint:
    """What a version-1 file stores, always valid as a whole.

    Make one with :meth:`from_snapshot`, :meth:`from_bytes` or :meth:`load`; there is no other way
    and no way to change one.  It owns its memory: neither later training nor the bytes it was read
    from can reach it.

    A checkpoint is not a training job.  The schedule, the place in the batches, the clip ceiling
    and the shuffling generator are not in it, and two runs that reach equal states give equal
    bytes.  Its checksum finds accidents; it is not a signature.
    """

    __slots__ = ("_content",)

    _content: Content | None

    def __init__(self) -> None:
        raise TypeError("use Checkpoint.from_snapshot, Checkpoint.from_bytes or Checkpoint.load")

    @classmethod
    def _of(cls, content: Content) -> Checkpoint:
        checkpoint = object.__new__(cls)
        object.__setattr__(checkpoint, "_content", content)
        return checkpoint

    # ------------------------------------------------------------------ making one
    @classmethod
    def from_snapshot(
        cls,
        tokenizer: TokenizerRecord | BytePairTokenizer | LiteralTokenizer,
        selected_training_state: SelectedTrainingState,
        rng_state: int,
    ) -> Checkpoint:
        """Copy the state that a training run selected.

        Parameters
        ----------
        tokenizer
            The tokenizer of the model's ids.
        selected_training_state
            As issued by the trainer; model, optimizer and step cannot be given separately.
        rng_state
            Raw SplitMix64 state of the sampling stream, 0 <= rng_state < 2**64.

        Raises
        ------
        CheckpointError
            ``NotSealed`` for anything that is not a trainer's selected state,
            ``UnsupportedModelDType`` for a float32 model and ``UnsupportedModelShape`` for shared
            key and value heads, a head width of its own or an untied head, none of which version 1
            can store; then in the format's order ``SizeOverflow``, ``VocabularyMismatch``,
            ``StepMismatch``, ``OptimizerNames``, ``OptimizerShape``.
        TypeError
            For something that is no tokenizer.
        """
        if not isinstance(selected_training_state, SelectedTrainingState):
            actual = type(selected_training_state).__name__
            raise CheckpointError(
                "NotSealed",
                f"a checkpoint is made from the trainer's SelectedTrainingState, got {actual}",
                actual=actual,
            )
        record = _as_record(tokenizer)
        step = selected_training_state.step
        model, optimizer = selected_training_state.model, selected_training_state.optimizer
        problem = version_1_problem(model.config)
        if problem is not None:
            raise problem
        if not 0 <= step <= U64_MAX:
            raise overflow("selected step")
        if not isinstance(rng_state, (int, np.integer)) or not 0 <= rng_state <= U64_MAX:
            raise overflow("sampling RNG state")
        check_relations(record.vocab_size, model, optimizer, step)
        return cls._of(
            Content(
                record,
                model.independent_snapshot(),
                _copy_of(optimizer),
                int(step),
                int(rng_state),
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Checkpoint:
        """Read a whole file from memory.

        Raises
        ------
        CheckpointError
            The first check that fails, in the order of docs/formats.md.
        """
        return cls._of(decode(data if type(data) is bytes else memoryview(data).tobytes()))

    @classmethod
    def load(cls, path: PathLike) -> Checkpoint:
        """Read a file.

        Raises
        ------
        CheckpointError
            ``Io`` with operation ``read``, or as :meth:`from_bytes`.
        """
        return cls.from_bytes(file.read_file(path))

    # ------------------------------------------------------------------ writing
    def encode(self) -> EncodedCheckpoint:
        """The bytes of the file; the same content always gives the same bytes.

        Memory beyond the checkpoint itself: the file's bytes, its header and the record table.
        """
        return encode_image(self._held()).assemble()

    def save_atomic(self, path: PathLike) -> EncodedCheckpoint:
        """Write the file so that a reader sees the old one or the new one.

        Raises
        ------
        CheckpointError
            ``Layout`` for a path without a file name, ``UnsupportedAtomicReplacement``, or ``Io``
            with the operation that failed.  When that is ``synchronize parent directory`` the new
            file is already in place; after any other failure the destination is as it was.
        """
        self._held()
        return file.save_atomic(path, self.encode)

    # ------------------------------------------------------------------ looking
    @property
    def tokenizer(self) -> TokenizerRecord:
        """The stored tokenizer."""
        return self._held().tokenizer

    @property
    def model_state(self) -> DecoderModelState:
        """A copy of the model's configuration and values."""
        return self._held().model.independent_snapshot()

    @property
    def optimizer(self) -> OptimizerSnapshot:
        """The optimizer's settings, groups and state, read-only."""
        return self._held().optimizer

    @property
    def selected_step(self) -> int:
        """The step that was selected, equal to the optimizer's."""
        return self._held().selected_step

    def sampling_rng_state(self) -> int:
        """Raw SplitMix64 state before the next sampling draw."""
        return self._held().rng_state

    def rng_state(self) -> int:
        """Older name of :meth:`sampling_rng_state`."""
        return self.sampling_rng_state()

    # ------------------------------------------------------------------ restoring
    def restored_bytes(self) -> int:
        """Bytes that a restored model takes: parameters and rotary tables.

        The tables are not in the file, so a small file can ask for any amount of memory; whoever
        opens files from strangers compares this number with a limit before restoring.
        """
        model = self._held().model
        config = model.config
        tables = 2 * config.max_seq_len * (config.head_dim // 2) if config.n_layers else 0
        return 8 * (model.scalar_count() + tables)

    def restore_independent_model(self) -> Decoder:
        """A new live decoder with copies of the values; the checkpoint stays as it is.

        Raises
        ------
        CheckpointError
            ``Trainer`` with the reason as ``cause``, too little memory for the rotary tables
            included; ``Allocation`` when there is none for the values.
        """
        return _restored(self._held().model.restore_independent_model)

    def into_model(self) -> Decoder:
        """Move the values into a new decoder without copying them; consumes the checkpoint.

        Raises
        ------
        CheckpointError
            As :meth:`restore_independent_model`, the checkpoint is then still usable; ``Consumed``
            on every use after success.
        """
        model = _restored(self._held().model.into_model)
        object.__setattr__(self, "_content", None)
        return model

    def restore_optimizer(self) -> AdamW:
        """An AdamW with the exact step, powers, moments, settings and groups; no arithmetic."""
        optimizer = self._held().optimizer
        return AdamW.from_state(optimizer.config, optimizer.groups, optimizer.state)

    # ------------------------------------------------------------------ sealing
    def _held(self) -> Content:
        if self._content is None:
            raise CheckpointError(
                "Consumed", "this checkpoint was moved into a model by into_model()"
            )
        return self._content

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Checkpoint.{name} cannot be assigned")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Checkpoint.{name} cannot be deleted")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Checkpoint cannot be pickled or copied; encode() it")

    def __repr__(self) -> str:
        if self._content is None:
            return "Checkpoint(consumed)"
        return (
            f"Checkpoint(selected_step={self.selected_step}, tokenizer={self.tokenizer!r}, "
            f"model={self._content.model!r})"
        )


def _restored(restore: Callable[[], Decoder]) -> Decoder:
    try:
        return restore()
    except TrainerError as cause:
        raise CheckpointError("Trainer", f"checkpoint: {cause}", cause=cause) from cause
    except MemoryError as cause:
        raise CheckpointError(
            "Allocation", "no memory for the restored model", cause=cause, context="model"
        ) from cause


def _as_record(
    tokenizer: TokenizerRecord | BytePairTokenizer | LiteralTokenizer,
) -> TokenizerRecord:
    if isinstance(tokenizer, TokenizerRecord):
        return tokenizer
    if isinstance(tokenizer, BytePairTokenizer):
        return TokenizerRecord.byte_bpe(tokenizer)
    if isinstance(tokenizer, LiteralTokenizer):
        return TokenizerRecord.literal(tokenizer.pieces)
    raise TypeError(
        "tokenizer must be a TokenizerRecord, BytePairTokenizer or LiteralTokenizer, "
        f"got {type(tokenizer).__name__}"
    )


def _copy_of(optimizer: OptimizerSnapshot) -> OptimizerSnapshot:
    state = optimizer.state
    copied = AdamWState(
        state.step,
        state.beta1_power,
        state.beta2_power,
        [
            AdamWStateEntry(entry.name, entry.shape, entry.first_moment, entry.second_moment)
            for entry in state.entries
        ],
    )
    return OptimizerSnapshot(optimizer.config, optimizer.groups, copied)
