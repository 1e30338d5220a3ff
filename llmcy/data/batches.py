"""Mini-batches: groups of windows of one partition, in document order or in a seeded order.

An epoch holds the list of (document, start) pairs and nothing else; a batch copies its rows when it
is asked for, so an epoch over millions of overlapping windows stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from llmcy.data._sizes import MAX_SIZE, checked_size
from llmcy.data.partition import Partition
from llmcy.data.windows import WindowConfig
from llmcy.errors import DataError
from llmcy.rng import SplitMix64

__all__ = [
    "Batch",
    "BatchDocument",
    "BatchOrder",
    "MiniBatchConfig",
    "MiniBatchEpoch",
    "WindowProvenance",
]

TokenIds = NDArray[np.int64]
MAX_TOKEN_ID = 2**32 - 1


@dataclass(frozen=True)
class BatchOrder:
    """In which order an epoch visits its windows; use the two constructors."""

    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            object.__setattr__(self, "seed", checked_size("seed", self.seed))

    @classmethod
    def sequential(cls) -> BatchOrder:
        """Documents in order, starts ascending."""
        return cls(None)

    @classmethod
    def shuffled(cls, seed: int) -> BatchOrder:
        """The sequential list after one descending Fisher-Yates with ``SplitMix64(seed)``."""
        return cls(checked_size("seed", seed))


@dataclass(frozen=True)
class MiniBatchConfig:
    """How windows are grouped.

    Parameters
    ----------
    batch_size
        Windows in a batch, >= 1; the last batch of an epoch may be smaller.
    order
        Order of the windows; sequential unless said otherwise.

    Raises
    ------
    DataError
        ``InvalidSize`` or ``ZeroBatchSize``.
    """

    batch_size: int
    order: BatchOrder = BatchOrder()

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", checked_size("batch_size", self.batch_size))
        if self.batch_size == 0:
            raise DataError("ZeroBatchSize", "batch_size must be at least 1, got 0")


class BatchDocument:
    """One document's tokens with its name and partition.

    Parameters
    ----------
    id
        Unique among the documents of an epoch, not empty.
    partition
        The use the document is reserved for.
    token_ids
        Whole numbers in [0, 2**32), (n,); copied.  A vocabulary is not known here, so ids are not
        compared with one.

    Raises
    ------
    DataError
        ``EmptyDocumentId`` or ``InvalidTokenId``.
    """

    __slots__ = ("id", "partition", "token_ids")

    def __init__(
        self, id: str, partition: Partition, token_ids: Sequence[int] | NDArray[np.integer]
    ) -> None:
        if not id:
            raise DataError("EmptyDocumentId", "a batch document needs an id, got ''")
        self.id = id
        self.partition = partition
        self.token_ids: NDArray[np.integer] = _checked_token_ids(id, token_ids)

    @classmethod
    def mapped(cls, id: str, partition: Partition, token_ids: NDArray[np.uint32]) -> BatchDocument:
        """A document over ``token_ids`` themselves, which stay where they are, for example in a
        mapped file; every uint32 is a token id.
        """
        document = cls(id, partition, ())
        document.token_ids = token_ids.view()
        document.token_ids.flags.writeable = False
        return document

    def __repr__(self) -> str:
        return f"BatchDocument({self.id!r}, {self.partition}, {len(self.token_ids)} tokens)"


def _checked_token_ids(id: str, token_ids: Sequence[int] | NDArray[np.integer]) -> TokenIds:
    given = np.asarray(token_ids)
    if given.ndim == 1 and given.dtype.kind in "iu":
        outside = np.flatnonzero((given < 0) | (given > MAX_TOKEN_ID))
        if outside.size == 0:
            ids = given.astype(np.int64)
            ids.flags.writeable = False
            return ids
        position = int(outside[0])
        value: object = int(given[position])
    elif given.shape == (0,):
        return np.empty(0, np.int64)
    else:
        position, value = next(
            ((p, t) for p, t in enumerate(token_ids) if not _is_token_id(t)), (0, token_ids)
        )
    raise DataError(
        "InvalidTokenId",
        f"document {id!r}: token ids are whole numbers from 0 to 2**32 - 1, "
        f"got {value!r} at position {position}",
        id=id,
        position=position,
        value=value,
    )


def _is_token_id(value: object) -> bool:
    return (
        isinstance(value, (int, np.integer))
        and not isinstance(value, bool)
        and 0 <= int(value) <= MAX_TOKEN_ID
    )


@dataclass(frozen=True)
class WindowProvenance:
    """Where a row of a batch comes from."""

    partition: Partition
    document_index: int
    document_id: str
    start: int


class Batch:
    """Rows of one mini-batch.

    Attributes
    ----------
    partition
        Partition of every row.
    inputs, targets
        Token ids, (B, T) int64, row-major, read-only; ``targets[r, t] == inputs[r, t + 1]``
        wherever both exist.
    provenance
        One `WindowProvenance` per row.
    """

    __slots__ = ("inputs", "partition", "provenance", "targets")

    def __init__(
        self,
        partition: Partition,
        inputs: TokenIds,
        targets: TokenIds,
        provenance: tuple[WindowProvenance, ...],
    ) -> None:
        inputs.flags.writeable = False
        targets.flags.writeable = False
        self.partition = partition
        self.inputs = inputs
        self.targets = targets
        self.provenance = provenance

    @property
    def width(self) -> int:
        """Number of rows, B."""
        return int(self.inputs.shape[0])

    @property
    def context_length(self) -> int:
        """Tokens in a row, T."""
        return int(self.inputs.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)."""
        return self.width, self.context_length

    @property
    def token_count(self) -> int:
        """Number of targets, B * T."""
        return self.width * self.context_length

    def input_row(self, row: int) -> TokenIds | None:
        """Inputs of one row, (T,), or None when there is no such row."""
        return self.inputs[row] if 0 <= row < self.width else None

    def target_row(self, row: int) -> TokenIds | None:
        """Targets of one row, (T,), or None when there is no such row."""
        return self.targets[row] if 0 <= row < self.width else None


class MiniBatchEpoch:
    """One pass over every complete window of some documents of one partition.

    Make it with `build`.  Zero windows is a valid, empty epoch.

    Attributes
    ----------
    partition, window_config, batch_config
        As given.
    shuffle_state_after
        Raw random state after the shuffle; None for the sequential order.
    batches
        The batches as a sequence; each access copies the rows anew.
    """

    __slots__ = (
        "_documents",
        "_windows",
        "batch_config",
        "partition",
        "shuffle_state_after",
        "window_config",
    )

    def __init__(
        self,
        partition: Partition,
        documents: tuple[BatchDocument, ...],
        windows: TokenIds,
        window_config: WindowConfig,
        batch_config: MiniBatchConfig,
        shuffle_state_after: int | None,
    ) -> None:
        self.partition = partition
        self._documents = documents
        self._windows = windows
        self.window_config = window_config
        self.batch_config = batch_config
        self.shuffle_state_after = shuffle_state_after

    @classmethod
    def build(
        cls,
        partition: Partition,
        documents: Iterable[BatchDocument],
        window_config: WindowConfig,
        batch_config: MiniBatchConfig,
    ) -> MiniBatchEpoch:
        """List the windows of ``documents`` and put them into order.

        Raises
        ------
        DataError
            In this order: ``PartitionMismatch`` and ``DuplicateDocumentId`` document by document,
            ``WindowCountOverflow``, ``AllocationFailed``, ``TokenCountOverflow``.
        """
        held = tuple(documents)
        _check_documents(partition, held)
        counts = [window_config.window_count(len(d.token_ids)) for d in held]
        windows = _list_windows(counts, window_config.stride)
        state = None
        if batch_config.order.seed is not None:
            rng = SplitMix64(batch_config.order.seed)
            rng.shuffle(windows)
            state = rng.state
        windows.flags.writeable = False
        _token_count(min(batch_config.batch_size, len(windows)), window_config.context_length)
        return cls(partition, held, windows, window_config, batch_config, state)

    @property
    def context_length(self) -> int:
        """Tokens in a row, T."""
        return self.window_config.context_length

    @property
    def window_count(self) -> int:
        """Number of windows of the epoch."""
        return len(self._windows)

    @property
    def batch_count(self) -> int:
        """Number of batches of the epoch."""
        return -(-self.window_count // self.batch_config.batch_size)

    @property
    def documents(self) -> tuple[BatchDocument, ...]:
        """The documents the windows come from."""
        return self._documents

    @property
    def windows(self) -> TokenIds:
        """(document index, start) of every window in epoch order, (window_count, 2), read-only."""
        return self._windows

    @property
    def batches(self) -> BatchSequence:
        """The batches of the epoch, made when asked for."""
        return BatchSequence(self)

    def batch(self, index: int) -> Batch:
        """Copy the rows of batch ``index``, 0 <= index < batch_count.

        Raises
        ------
        DataError
            ``AllocationFailed`` when memory for the rows cannot be had.
        """
        first = index * self.batch_config.batch_size
        rows = self._windows[first : first + self.batch_config.batch_size].tolist()
        context = self.context_length
        inputs = _allocate(len(rows), context)
        targets = _allocate(len(rows), context)
        provenance = []
        for row, (document_index, start) in enumerate(rows):
            document = self._documents[document_index]
            inputs[row] = document.token_ids[start : start + context]
            targets[row] = document.token_ids[start + 1 : start + context + 1]
            provenance.append(WindowProvenance(self.partition, document_index, document.id, start))
        return Batch(self.partition, inputs, targets, tuple(provenance))


class BatchSequence(Sequence[Batch]):
    """The batches of an epoch; nothing is kept between two accesses."""

    __slots__ = ("_epoch",)

    def __init__(self, epoch: MiniBatchEpoch) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._epoch.batch_count

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self._epoch.batch(i) for i in range(*index.indices(len(self)))]
        return self._epoch.batch(range(len(self))[index])


def _check_documents(partition: Partition, documents: tuple[BatchDocument, ...]) -> None:
    first_with: dict[str, int] = {}
    for index, document in enumerate(documents):
        if document.partition is not partition:
            raise DataError(
                "PartitionMismatch",
                f"document {index} ({document.id!r}) belongs to {document.partition}, "
                f"the epoch is for {partition}",
                document_index=index,
                expected=partition,
                actual=document.partition,
            )
        first = first_with.setdefault(document.id, index)
        if first != index:
            raise DataError(
                "DuplicateDocumentId",
                f"documents {first} and {index} have the same id {document.id!r}",
                id=document.id,
                first=first,
                repeated=index,
            )


def _list_windows(counts: Sequence[int], stride: int) -> TokenIds:
    """(document index, start) rows: documents in order, starts ascending."""
    total = sum(counts)
    if total > MAX_SIZE:
        raise DataError("WindowCountOverflow", f"{total} windows are more than 2**64 - 1")
    windows = _allocate(total, 2)
    row = 0
    for document_index, count in enumerate(counts):
        if count:
            windows[row : row + count, 0] = document_index
            # a stride beyond int64 leaves one window, which starts at 0
            step = stride if count > 1 else 1
            windows[row : row + count, 1] = np.arange(count, dtype=np.int64) * step
            row += count
    return windows


def _token_count(width: int, context_length: int) -> int:
    count = width * context_length
    if count > MAX_SIZE:
        raise DataError(
            "TokenCountOverflow", f"{width} rows of {context_length} tokens exceed 2**64 - 1"
        )
    return count


def _allocate(rows: int, columns: int) -> TokenIds:
    try:
        return np.empty((rows, columns), np.int64)
    except (MemoryError, ValueError) as error:
        raise DataError(
            "AllocationFailed",
            f"no memory for {rows} rows of {columns} token ids",
            cause=error,
            elements=rows * columns,
        ) from error
