"""Learning byte-pair rules from text.

Every sequence starts as its bytes, ids 0..255.  Rule ``r`` takes the most frequent adjacent pair
(counted with overlaps, inside each sequence; ties go to the smaller left id, then the smaller right
id) and replaces it everywhere, left to right without overlap, by id ``256 + r``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy._kernels.bpe_learn import MAX_SLOTS, Learner
from llmcy.errors import TokenizerError
from llmcy.tokenizer._ids import checked_count

__all__ = ["MAX_MERGES", "BpeRule", "LearnedBpe", "learn_bpe"]

MAX_MERGES = 2**32 - 1 - 255
"""Beyond this a rule's id would not fit 32 bits."""


@dataclass(frozen=True)
class BpeRule:
    """One learned rule.

    Attributes
    ----------
    rank
        Place in the order of learning, from 0.
    pair
        Training-space ids (left, right).
    new_id
        Training-space id of the token made, 256 + rank.
    candidate_count
        Adjacent places that held the pair, overlaps counted: "aaa" has two of (a, a).
    replacement_count
        Replacements made, 1 <= replacement_count <= candidate_count.
    """

    rank: int
    pair: tuple[int, int]
    new_id: int
    candidate_count: int
    replacement_count: int


@dataclass(frozen=True, eq=False)
class LearnedBpe:
    """What learning found.

    Attributes
    ----------
    requested_merges
        The maximum asked for; ``len(rules)`` is smaller when no pair was left.
    rules
        In rank order.
    document_ids
        Names of the sequences learned from, where given.
    sequences
        The sequences after the last rule, uint32 training-space ids.
    """

    requested_merges: int
    rules: tuple[BpeRule, ...]
    document_ids: tuple[str, ...] = ()
    sequences: tuple[NDArray[np.uint32], ...] = field(default=(), repr=False)

    @property
    def vocab_size(self) -> int:
        """Training-space ids in use: 256 + number of rules."""
        return 256 + len(self.rules)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pair of every rule, in rank order."""
        return tuple(rule.pair for rule in self.rules)


def learn_bpe(
    sequences: Iterable[bytes | bytearray | memoryview],
    max_merges: int,
    *,
    document_ids: Sequence[str] = (),
    progress: Callable[[int, int], Any] | None = None,
) -> LearnedBpe:
    """Learn at most ``max_merges`` rules; fewer when no adjacent pair is left.

    Parameters
    ----------
    sequences
        The bytes of each training document; pairs never span two of them.
    max_merges
        0 <= max_merges <= MAX_MERGES.
    document_ids
        Names to keep with the result, one a sequence, or none.
    progress
        Called after each rule with the number of rules so far and ``max_merges``.

    Raises
    ------
    TokenizerError
        ``InvalidSize`` or ``TooManyMerges`` before any work; ``NameCountMismatch``;
        ``TextTooLarge``; ``AllocationFailed``.

    Notes
    -----
    Time grows with the text plus the replacements made, not with rules times text.  Memory is about
    16 bytes for each byte of text.  After Sennrich, Haddow and Birch, "Neural machine translation
    of rare words with subword units" (ACL 2016), on bytes and without splitting into words.

    Compatibility guarantee: rules and counts are those of the definition at the top of this module.
    """
    max_merges = checked_count("max_merges", max_merges)
    if max_merges > MAX_MERGES:
        raise TokenizerError(
            "TooManyMerges",
            f"max_merges must be at most {MAX_MERGES}, got {max_merges}",
            requested=max_merges,
            maximum=MAX_MERGES,
        )
    held = [s if isinstance(s, bytes) else bytes(memoryview(s)) for s in sequences]
    if document_ids and len(document_ids) != len(held):
        raise TokenizerError(
            "NameCountMismatch",
            f"{len(document_ids)} document ids for {len(held)} sequences",
            expected=len(held),
            actual=len(document_ids),
        )
    n_bytes = sum(map(len, held))
    if n_bytes + len(held) + 1 > MAX_SLOTS:
        raise TokenizerError(
            "TextTooLarge",
            f"{n_bytes} bytes are too many to learn from; the limit is about 2 GiB",
            n_bytes=n_bytes,
            maximum=MAX_SLOTS,
        )
    rules: list[BpeRule] = []
    try:
        learner = Learner(held)
        del held
        while len(rules) < max_merges and (found := learner.step()) is not None:
            left, right, candidates, replacements = found
            rank = len(rules)
            rules.append(BpeRule(rank, (left, right), 256 + rank, candidates, replacements))
            if progress is not None:
                progress(len(rules), max_merges)
        final = tuple(learner.sequences())
    except MemoryError as error:
        raise TokenizerError(
            "AllocationFailed",
            f"no memory to learn from {n_bytes} bytes",
            cause=error,
            n_bytes=n_bytes,
        ) from error
    return LearnedBpe(max_merges, tuple(rules), tuple(document_ids), final)
