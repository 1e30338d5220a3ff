"""Tokenized documents, stored once in the run folder and read through a memory map.

``tokens.bin`` is every token as a little-endian unsigned 32-bit number: the documents of train,
then validation, then test, each in its order.  ``tokens.json`` lists the documents with their
number of tokens and the SHA-256 of their part, and the SHA-256 of the whole file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy.data import BatchDocument, EncodedPartitions, Partition
from llmcy.errors import RunError
from llmcy.run.canonical import sha256_hex

__all__ = ["encode_tokens", "open_tokens"]

FORMAT = "llmcy-tokens-1"
STORED = np.dtype("<u4")


def encode_tokens(documents: EncodedPartitions) -> tuple[bytes, dict[str, Any]]:
    """The content of ``tokens.bin`` and of ``tokens.json``."""
    listed, parts = [], []
    for partition in Partition:
        for document in documents.of(partition):
            part = np.ascontiguousarray(document.token_ids, STORED)
            parts.append(part)
            listed.append(
                {
                    "id": document.id,
                    "partition": partition.label,
                    "tokens": int(part.size),
                    "sha256": sha256_hex(part.data),
                }
            )
    data = np.concatenate([np.empty(0, STORED), *parts]).tobytes()
    index = {"format": FORMAT, "sha256": sha256_hex(data), "documents": listed}
    return data, index


def open_tokens(data_path: Path, index_path: Path) -> tuple[EncodedPartitions, str]:
    """The documents as views into the mapped file, and the digest of the file.

    Every byte is read once, to check the digests.

    Raises
    ------
    RunError
        ``Io``; ``InvalidTokens`` naming the document whose tokens are not those that were written.
    """
    try:
        index = json.loads(index_path.read_bytes())
        size = data_path.stat().st_size
        mapped: NDArray[np.uint32] = (
            np.memmap(data_path, STORED, "r") if size else np.empty(0, STORED)
        )
    except OSError as error:
        raise RunError(
            "Io",
            f"cannot read the tokens of the run: {error}",
            cause=error,
            operation="read",
            path=str(error.filename or data_path),
        ) from error
    except ValueError as error:  # no JSON, or a size that is no multiple of four
        raise _invalid(data_path, str(error), error) from error
    try:
        if index["format"] != FORMAT:
            raise ValueError(f"its format is {index['format']!r}")
        listed = [
            (str(d["id"]), Partition(d["partition"]), int(d["tokens"]), str(d["sha256"]))
            for d in index["documents"]
        ]
        digest = str(index["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise _invalid(index_path, repr(error), error) from error
    return _documents(data_path, mapped, listed, digest), digest


def _documents(
    path: Path,
    mapped: NDArray[np.uint32],
    listed: list[tuple[str, Partition, int, str]],
    digest: str,
) -> EncodedPartitions:
    total = sum(count for _, _, count, _ in listed)
    if any(count < 0 for _, _, count, _ in listed) or total != mapped.size:
        raise _invalid(path, f"it holds {mapped.size} tokens, its list has {total}")
    held: dict[Partition, list[BatchDocument]] = {partition: [] for partition in Partition}
    whole = hashlib.sha256()
    start = 0
    for id, partition, count, sha256 in listed:
        part = mapped[start : start + count]
        whole.update(part.data)
        if sha256_hex(part.data) != sha256:
            raise _invalid(path, f"the tokens of document {id!r} have changed")
        held[partition].append(BatchDocument.mapped(id, partition, part))
        start += count
    if whole.hexdigest() != digest:
        raise _invalid(path, "its digest is not the one written beside it")
    return EncodedPartitions(*(tuple(held[partition]) for partition in Partition))


def _invalid(path: Path, problem: str, cause: Exception | None = None) -> RunError:
    return RunError(
        "InvalidTokens", f"{str(path)!r}: {problem}", cause=cause, path=str(path), problem=problem
    )
