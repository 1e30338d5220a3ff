"""The checkpoint report: save the selected state, load it, use it, damage it, replace it."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmcy.checkpoint import Checkpoint, Descriptor, EncodedCheckpoint, Role, TokenizerRecord
from llmcy.checkpoint.layout import (
    BYTE_ORDER_MARK,
    CHECKSUM_OFFSET,
    MAGIC,
    RNG_ALGORITHM_VERSION,
)
from llmcy.checksum import fingerprint, fnv1a64
from llmcy.errors import CheckpointError
from llmcy.reference.replay import Branch, component_update, logits_of
from llmcy.reference.text import hexadecimal, record
from llmcy.reference.training import optimizer_bits
from llmcy.rng import SplitMix64
from llmcy.state import SelectedTrainingState

__all__ = ["SCOPE", "MeasuredReplay", "measure_replay", "replay_report", "reseal"]

PIECES = (b"0", b"1", b"2", b"3", b"4")
SAMPLING_SEED = 35
INPUTS, TARGETS, RATE = (0, 1), (1, 2), 0.006
OTHER_INPUTS, OTHER_TARGETS, OTHER_RATE = (1, 2), (2, 3), 0.012

SCOPE = {
    "stored": (
        "tokenizer",
        "decoder_config",
        "parameters",
        "adamw_config",
        "decay_groups",
        "adamw_step",
        "beta_powers",
        "first_moments",
        "second_moments",
        "selected_step",
        "sampling_rng_state",
    ),
    "validated": (
        "vocabulary_sizes",
        "step_equality",
        "moment_names_and_shapes",
        "canonical_bytes",
    ),
    "not_stored": (
        "gradients",
        "schedule",
        "clip_ceiling",
        "validation_policy",
        "corpus_and_split",
        "batch_position",
        "shuffle_rng_state",
        "lineage",
    ),
    "required": (
        "next_batch",
        "next_learning_rate",
        "arithmetic_kernels",
        "sampling_policy",
    ),
}
"""Whose job each thing is: 27 entries."""


@dataclass(frozen=True)
class MeasuredReplay:
    """What was seen while a checkpoint was written, read and used.

    Attributes
    ----------
    encoded, stored
        The bytes of the file and the checkpoint that was read back from them.
    bytes_deterministic
        Encoding twice gave equal bytes.
    loaded_bytes_identical
        Loading and encoding again gave equal bytes.
    logits_bits_identical, logits_label
        Logits of the original and of the loaded model agreed; their fingerprint.
    next_draw, next_draw_identical
        The sampling draw after the saved state, and whether the original stream agreed.
    branch, loaded_branch
        One update from the original checkpoint and from the loaded one.
    changed_batch, changed_rate
        The same update with another row, and with another rate.
    rejected
        Damage to the exact error kind it must give, and whether it did.
    replaced_complete_file, replaced_rng_state, temporary_files
        A second save was seen whole; the state it carries; other files left in the folder.
    """

    encoded: EncodedCheckpoint
    stored: Checkpoint
    bytes_deterministic: bool
    loaded_bytes_identical: bool
    logits_bits_identical: bool
    logits_label: str
    next_draw: int
    next_draw_identical: bool
    branch: Branch
    loaded_branch: Branch
    changed_batch: Branch
    changed_rate: Branch
    rejected: dict[str, bool]
    replaced_complete_file: bool
    replaced_rng_state: int
    temporary_files: int


def measure_replay(selected: SelectedTrainingState) -> MeasuredReplay:
    """Take the published path from a selected state to a checkpoint and through one update."""
    rng = SplitMix64(SAMPLING_SEED)
    rng.next_u64()  # the published file was saved after one draw
    checkpoint = Checkpoint.from_snapshot(TokenizerRecord.literal(PIECES), selected, rng.state)
    encoded = checkpoint.encode()
    loaded = Checkpoint.from_bytes(encoded.bytes)

    original_logits = logits_of(checkpoint.restore_independent_model(), INPUTS)
    loaded_logits = logits_of(loaded.restore_independent_model(), INPUTS)
    next_draw = SplitMix64(loaded.sampling_rng_state()).next_u64()

    def update(source: Checkpoint, *, consume: bool = False, **changed: object) -> Branch:
        row = {"inputs": INPUTS, "targets": TARGETS, "learning_rate": RATE, **changed}
        optimizer = source.restore_optimizer()
        model = source.into_model() if consume else source.restore_independent_model()
        return component_update(model, optimizer, **row)  # type: ignore[arg-type]

    replaced, replaced_state, temporaries = _replace_a_file(checkpoint, selected)
    return MeasuredReplay(
        encoded=encoded,
        stored=loaded,
        bytes_deterministic=checkpoint.encode().bytes == encoded.bytes,
        loaded_bytes_identical=loaded.encode().bytes == encoded.bytes,
        logits_bits_identical=original_logits.tobytes() == loaded_logits.tobytes(),
        logits_label=fingerprint([loaded_logits]),
        next_draw=next_draw,
        next_draw_identical=rng.next_u64() == next_draw,
        branch=update(checkpoint),
        loaded_branch=update(Checkpoint.from_bytes(encoded.bytes), consume=True),
        changed_batch=update(loaded, inputs=OTHER_INPUTS, targets=OTHER_TARGETS),
        changed_rate=update(loaded, learning_rate=OTHER_RATE),
        rejected=_reject_damage(encoded.bytes, selected, checkpoint.sampling_rng_state()),
        replaced_complete_file=replaced,
        replaced_rng_state=replaced_state,
        temporary_files=temporaries,
    )


def reseal(data: bytes) -> bytes:
    """The same file with its checksum computed anew: what a careful forger would do."""
    image = bytearray(data)
    image[CHECKSUM_OFFSET : CHECKSUM_OFFSET + 8] = bytes(8)
    struct.pack_into("<Q", image, CHECKSUM_OFFSET, fnv1a64(image))
    return bytes(image)


def _reject_damage(data: bytes, selected: SelectedTrainingState, rng_state: int) -> dict[str, bool]:
    other_version = data[:8] + struct.pack("<H", 2) + data[10:]
    other_step = data[:42] + struct.pack("<Q", selected.step + 1) + data[50:]
    one_token = TokenizerRecord.literal(PIECES[:1])
    return {
        "version": _gives("UnsupportedVersion", lambda: Checkpoint.from_bytes(other_version)),
        "vocabulary_mismatch": _gives(
            "VocabularyMismatch",
            lambda: Checkpoint.from_snapshot(one_token, selected, rng_state),
        ),
        "step_mismatch": _gives("StepMismatch", lambda: Checkpoint.from_bytes(reseal(other_step))),
        "truncation": _gives("FileExtent", lambda: Checkpoint.from_bytes(data[:-1])),
        "checksum": _gives(
            "ChecksumMismatch",
            lambda: Checkpoint.from_bytes(data[:-1] + bytes([data[-1] ^ 1])),
        ),
    }


def _gives(kind: str, attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except CheckpointError as error:
        return error.kind == kind
    return False


def _replace_a_file(
    checkpoint: Checkpoint, selected: SelectedTrainingState
) -> tuple[bool, int, int]:
    """Save, save a successor over it, and look at what is in the folder."""
    successor = Checkpoint.from_snapshot(
        checkpoint.tokenizer, selected, (checkpoint.sampling_rng_state() + 1) % 2**64
    )
    with tempfile.TemporaryDirectory(prefix="llmcy-") as folder:
        path = Path(folder) / "selected.ckpt"
        checkpoint.save_atomic(path)
        successor.save_atomic(path)
        seen = Checkpoint.load(path)
        complete = (
            path.read_bytes() == successor.encode().bytes
            and seen.encode().bytes == successor.encode().bytes
        )
        return complete, seen.sampling_rng_state(), len(os.listdir(folder)) - 1


def replay_report(measured: MeasuredReplay) -> str:
    """All lines of the report, each ending in a newline."""
    encoded, stored = measured.encoded, measured.stored
    data, records = encoded.bytes, encoded.records
    magic, version, marker = struct.unpack_from("<8sHI", data)
    layout_version, rng_version = struct.unpack_from("<HH", data, 38)
    parameters = [row for row in records if row.role is Role.MODEL_PARAMETER]
    tokens = [row for row in records if row.role in (Role.LITERAL_TOKEN, Role.BPE_PAIRS)]
    moments = len(records) - len(parameters) - len(tokens)
    model = stored.model_state
    branch, loaded_branch = measured.branch, measured.loaded_branch
    bare = b"".join(array.tobytes() for _, array in model.named_arrays())
    lines = [
        record(
            "schema",
            version=version,
            magic=magic.rstrip(b"\0").decode("ascii") if magic == MAGIC else "unknown",
            endian="little" if marker == BYTE_ORDER_MARK else "unknown",
            header_bytes=encoded.header_length,
            payload_bytes=encoded.payload_length,
            file_bytes=len(data),
            checksum=encoded.checksum_label,
        ),
        record(
            "tokenizer",
            kind=stored.tokenizer.kind,
            vocabulary=stored.tokenizer.vocab_size,
            decoder_vocabulary=model.config.vocab_size,
            layout_version=layout_version,
            pieces=len(stored.tokenizer.literal_pieces() or ()),
        ),
        record(
            "layout",
            records=len(records),
            first=_described(records[0]),
            first_parameter=_described(parameters[0]),
            final_end=records[-1].end,
            alignment_padding=encoded.payload_length - sum(row.byte_length for row in records),
        ),
        record("hex", first16=data[:16].hex()),
        record(
            "state",
            selected_step=stored.selected_step,
            optimizer_step=stored.optimizer.step,
            parameter_tensors=len(parameters),
            parameter_scalars=model.scalar_count(),
            sampling_rng="splitmix64" if rng_version == RNG_ALGORITHM_VERSION else "unknown",
            sampling_rng_state=hexadecimal(stored.sampling_rng_state()),
        ),
        record(
            "roundtrip",
            bytes_deterministic=measured.bytes_deterministic,
            loaded_bytes_identical=measured.loaded_bytes_identical,
            logits_bits_identical=measured.logits_bits_identical,
            logits_fingerprint=measured.logits_label,
            sampling_rng_next_identical=measured.next_draw_identical,
            sampling_rng_next=hexadecimal(measured.next_draw),
        ),
        record(
            "component_replay",
            inputs=_ids(INPUTS),
            targets=_ids(TARGETS),
            learning_rate=repr(RATE),
            next_step=branch.step,
            parameter_bits_identical=branch.parameters == loaded_branch.parameters,
            optimizer_state_identical=optimizer_bits(branch.optimizer)
            == optimizer_bits(loaded_branch.optimizer),
            logits_bits_identical=branch.logits == loaded_branch.logits,
            logits_fingerprint=loaded_branch.logits_label,
            changed_batch_diverges=measured.changed_batch.parameters != branch.parameters,
            changed_learning_rate_diverges=measured.changed_rate.parameters != branch.parameters,
        ),
        record(
            "scope",
            **{heading: ",".join(entries) for heading, entries in SCOPE.items()},
            whole_job_resume=False,
        ),
        record("reject", **measured.rejected),
        record(
            "atomic",
            replaced_complete_file=measured.replaced_complete_file,
            loaded_sampling_rng_state=hexadecimal(measured.replaced_rng_state),
            temporary_files=measured.temporary_files,
            unix_same_directory=os.name == "posix",
        ),
        record(
            "contrast",
            isolated_parameter_tensors=len(parameters),
            scalars=len(bare) // np.dtype(np.float64).itemsize,
            bytes=len(bare),
            checkpoint_records=len(records),
            tokenizer_records=len(tokens),
            optimizer_moment_records=moments,
            checkpoint_file_bytes=len(data),
            sampling_rng_state=hexadecimal(stored.sampling_rng_state()),
        ),
        "next=choose-a-token-from-the-loaded-state",
    ]
    return "\n".join(lines) + "\n"


def _described(row: Descriptor) -> str:
    shape = ",".join(str(size) for size in row.shape)
    return f"{row.name}:{row.role.label}/{row.dtype.label}[{shape}]@{row.offset}..{row.end}"


def _ids(token_ids: tuple[int, ...]) -> str:
    return ",".join(str(token_id) for token_id in token_ids)
