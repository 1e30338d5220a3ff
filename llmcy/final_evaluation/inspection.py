"""The test windows: their ids, their fingerprint, and how often each transition comes."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from llmcy.checksum import OFFSET_BASIS, fnv1a64, label
from llmcy.data import Batch, MiniBatchEpoch
from llmcy.errors import FinalEvaluationError

__all__ = ["Inspection"]


class Inspection:
    """Every test row looked at once: ids, fingerprint, and how often each transition appears."""

    def __init__(self, epoch: MiniBatchEpoch, vocab_size: int) -> None:
        state, self.slot_count = OFFSET_BASIS, 0
        documents: dict[str, None] = {}
        transitions: list[NDArray[np.int64]] = []
        for index, batch in enumerate(epoch.batches):
            _check_batch(index, batch, vocab_size)
            pairs = np.stack([batch.inputs, batch.targets], axis=-1).astype("<u4")
            for row, place in enumerate(batch.provenance):
                documents[place.document_id] = None
                head = place.document_id.encode() + b"\xff" + struct.pack("<Q", place.start)
                state = fnv1a64(head + pairs[row].tobytes(), state)
                positions = place.start + 1 + np.arange(batch.context_length)
                owner = np.full(batch.context_length, place.document_index)
                transitions.append(np.stack([owner, positions], axis=1))
            self.slot_count += batch.token_count
        self.fingerprint = label(state)
        self.document_ids = tuple(documents)
        _, multiplicity = np.unique(np.concatenate(transitions), axis=0, return_counts=True)
        self.transition_count = len(multiplicity)
        self.multiplicities = tuple(np.bincount(multiplicity)[1:].tolist())


def _check_batch(index: int, batch: Batch, vocab_size: int) -> None:
    inputs, targets = batch.inputs.reshape(-1), batch.targets.reshape(-1)
    if inputs.size != targets.size:
        raise FinalEvaluationError(
            "TargetAlignmentMismatch",
            f"batch {index} has {inputs.size} inputs and {targets.size} targets",
            batch=index,
            inputs=inputs.size,
            targets=targets.size,
        )
    wrong = (inputs < 0) | (inputs >= vocab_size)
    outside = np.flatnonzero(wrong | (targets < 0) | (targets >= vocab_size))
    if outside.size:
        position = int(outside[0])
        kind, what, ids = (
            ("InputTokenOutOfRange", "input", inputs)
            if wrong[position]
            else ("TargetTokenOutOfRange", "target", targets)
        )
        raise FinalEvaluationError(
            kind,
            f"batch {index}, position {position}: {what} {int(ids[position])} is outside the "
            f"vocabulary of {vocab_size}",
            batch=index,
            position=position,
            id=int(ids[position]),
            vocabulary_size=vocab_size,
        )
