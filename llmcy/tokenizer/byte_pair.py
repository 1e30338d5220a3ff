"""The frozen byte-level tokenizer, layout version 1.

====================  =======================
id                    meaning
====================  =======================
0                     begin of document (BOS)
1                     end of document (EOS)
2 .. 257              byte 0 .. 255
258 + r               rule of rank r
====================  =======================

A content id is a training-space id plus 2.  Every byte string has an encoding, so there is no
unknown token; a control id never comes out of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy._kernels.bpe_encode import MAX_BYTES, Encoder
from llmcy.errors import TokenizerError
from llmcy.tokenizer._ids import TokenIds, as_text, id_array, require_known
from llmcy.tokenizer.learn import LearnedBpe

__all__ = ["BytePairTokenizer", "EncodingStep", "EncodingTrace"]

BOS_ID = 0
EOS_ID = 1
CONTROLS = 2
FIRST_RULE_ID = CONTROLS + 256
MAX_TOKEN_ID = 2**32 - 1
MAX_DECODED_BYTES = 2**40  # rules that double each other name longer tokens than any memory holds


@dataclass(frozen=True)
class EncodingStep:
    """A rule that changed something: content ids before and after its pass."""

    rank: int
    replacement_count: int
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class EncodingTrace:
    """An encoding shown pass by pass; ``token_ids`` equals the plain encoding."""

    initial_ids: tuple[int, ...]
    steps: tuple[EncodingStep, ...]
    token_ids: tuple[int, ...]


class BytePairTokenizer:
    """Byte-pair rules, frozen.

    Make it with `from_pairs` or `from_learned`; nothing can be changed afterwards, so the
    vocabulary size always fits the rules.
    """

    __slots__ = ("_encoder", "_lengths", "_pairs")

    bos_id = BOS_ID
    eos_id = EOS_ID

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._pairs = _validated(pairs)
        self._encoder = Encoder(np.array(self._pairs, np.int64).reshape(-1, 2))
        lengths = np.concatenate([np.zeros(CONTROLS, np.int64), self._encoder.token_lengths()])
        lengths.flags.writeable = False
        self._lengths = lengths

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[int, int]]) -> BytePairTokenizer:
        """Rules from training-space pairs in rank order.

        Raises
        ------
        TokenizerError
            ``LayoutOverflow`` when the highest id does not fit 32 bits; then, rank by rank,
            ``InvalidPair``, ``UnknownMergeOperand`` for an operand that no lower rank has made,
            ``DuplicateMergePair``.
        """
        return cls(pairs)

    @classmethod
    def from_learned(cls, learned: LearnedBpe) -> BytePairTokenizer:
        """The rules of a learning result."""
        return cls(learned.pairs)

    # -- what it knows

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Training-space pairs in rank order."""
        return self._pairs

    @property
    def merge_count(self) -> int:
        """Number of rules."""
        return len(self._pairs)

    @property
    def vocab_size(self) -> int:
        """258 + number of rules."""
        return FIRST_RULE_ID + len(self._pairs)

    @property
    def token_lengths(self) -> NDArray[np.int64]:
        """Bytes that each id stands for, (vocab_size,), read-only; 0 for the two controls.

        Lengths of 2**62 and more, which no text reaches, all read 2**62.
        """
        return self._lengths

    def token_bytes(self, token_id: int) -> bytes | None:
        """Bytes of one id; None for BOS, EOS and ids outside the vocabulary."""
        if not CONTROLS <= token_id < self.vocab_size:
            return None
        return self._decode(np.array([token_id], np.int64))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BytePairTokenizer) and self._pairs == other._pairs

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __repr__(self) -> str:
        return f"BytePairTokenizer({self.merge_count} merges, vocab_size={self.vocab_size})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._pairs,)

    # -- encoding

    def encode(self, content: bytes | bytearray | memoryview | str) -> NDArray[np.int64]:
        """Content ids of ``content``, (n,) int64, without BOS and EOS; text is taken as UTF-8.

        Each rule is applied once, in rank order, left to right without overlap.

        Raises
        ------
        TokenizerError
            ``InvalidText`` for a string with a lone surrogate, ``TextTooLarge`` beyond 1 GiB,
            ``AllocationFailed``.
        """
        return self._encode(_as_bytes(content))

    def encode_document(self, content: bytes | bytearray | memoryview | str) -> NDArray[np.int64]:
        """BOS, the content ids, EOS; see `encode`."""
        return self._encode(_as_bytes(content), BOS_ID, EOS_ID)

    def _encode(
        self, data: bytes, first: int | None = None, last: int | None = None
    ) -> NDArray[np.int64]:
        if len(data) > MAX_BYTES:
            raise TokenizerError(
                "TextTooLarge",
                f"one document of {len(data)} bytes; at most {MAX_BYTES} can be encoded at once",
                n_bytes=len(data),
                maximum=MAX_BYTES,
            )
        try:
            return self._encoder.encode(data, CONTROLS, first, last)
        except MemoryError as error:
            raise _no_memory(len(data), "encode", error) from error

    def encode_traced(self, content: bytes | bytearray | memoryview | str) -> EncodingTrace:
        """`encode`, with what every effective rule did; takes rules times tokens steps."""
        ids = [byte + CONTROLS for byte in _as_bytes(content)]
        initial = tuple(ids)
        steps = []
        for rank, (left, right) in enumerate(self._pairs):
            before = ids
            pair = (left + CONTROLS, right + CONTROLS)
            ids, count = _replace_pair(before, pair, FIRST_RULE_ID + rank)
            if count:
                steps.append(EncodingStep(rank, count, tuple(before), tuple(ids)))
        return EncodingTrace(initial, tuple(steps), tuple(ids))

    # -- decoding

    def decode(self, token_ids: TokenIds) -> bytes:
        """Bytes of content ids; exact for every sequence of them, canonical or not.

        Raises
        ------
        TokenizerError
            ``InvalidTokenIds``; ``ControlTokenInContent`` for the first BOS or EOS anywhere;
            ``UnknownToken`` for the first id outside the vocabulary; ``AllocationFailed``.
        """
        ids = id_array(token_ids)
        controls = np.flatnonzero((ids == BOS_ID) | (ids == EOS_ID))
        if controls.size:
            position = int(controls[0])
            raise TokenizerError(
                "ControlTokenInContent",
                f"control token {int(ids[position])} at position {position} of content",
                position=position,
                token_id=int(ids[position]),
            )
        require_known(ids, self.vocab_size)
        return self._decode(ids)

    def decode_document(self, token_ids: TokenIds) -> bytes:
        """Bytes between BOS and EOS.

        Raises
        ------
        TokenizerError
            In this order ``InvalidTokenIds``, ``DocumentTooShort``, ``ExpectedBos``,
            ``ExpectedEos``, ``InteriorControlToken``, ``UnknownToken`` (positions count from the
            start of the document), ``AllocationFailed``.
        """
        ids = id_array(token_ids)
        if len(ids) < CONTROLS:
            raise TokenizerError(
                "DocumentTooShort",
                f"a document has BOS and EOS at least, got {len(ids)} tokens",
                length=len(ids),
            )
        if ids[0] != BOS_ID:
            raise TokenizerError(
                "ExpectedBos",
                f"a document starts with BOS ({BOS_ID}), got {int(ids[0])}",
                found=int(ids[0]),
            )
        if ids[-1] != EOS_ID:
            raise TokenizerError(
                "ExpectedEos",
                f"a document ends with EOS ({EOS_ID}), got {int(ids[-1])}",
                found=int(ids[-1]),
            )
        inside = ids[1:-1]
        controls = np.flatnonzero((inside == BOS_ID) | (inside == EOS_ID))
        if controls.size:
            at = int(controls[0])
            raise TokenizerError(
                "InteriorControlToken",
                f"control token {int(inside[at])} at position {at + 1} inside a document",
                position=at + 1,
                token_id=int(inside[at]),
            )
        require_known(inside, self.vocab_size, 1)
        return self._decode(inside)

    def decode_text(self, token_ids: TokenIds) -> str:
        """`decode` as strict UTF-8; bytes that are not text are ``InvalidUtf8``."""
        return as_text(self.decode(token_ids))

    def decode_document_text(self, token_ids: TokenIds) -> str:
        """`decode_document` as strict UTF-8; bytes that are not text are ``InvalidUtf8``."""
        return as_text(self.decode_document(token_ids))

    def _decode(self, ids: NDArray[np.integer[Any]]) -> bytes:
        content = np.ascontiguousarray(ids, np.int64)
        lengths = self._lengths[content]
        # a float sum cannot wrap; it only has to tell sane sizes from absurd ones
        n_bytes = float(lengths.sum(dtype=np.float64))
        try:
            if n_bytes > MAX_DECODED_BYTES:
                raise MemoryError
            return self._encoder.decode(content, CONTROLS, int(lengths.sum()))
        except MemoryError as error:
            raise _no_memory(int(n_bytes), "decode to", error) from error


def _no_memory(n_bytes: int, verb: str, cause: MemoryError) -> TokenizerError:
    return TokenizerError(
        "AllocationFailed", f"no memory to {verb} {n_bytes} bytes", cause=cause, n_bytes=n_bytes
    )


def _as_bytes(content: bytes | bytearray | memoryview | str) -> bytes:
    if not isinstance(content, str):
        return bytes(memoryview(content))
    try:
        return content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            "InvalidText",
            f"text has a lone surrogate at character {error.start}",
            cause=error,
            position=error.start,
        ) from error


def _replace_pair(ids: list[int], pair: tuple[int, int], new_id: int) -> tuple[list[int], int]:
    out: list[int] = []
    at = 0
    while at < len(ids):
        if ids[at] == pair[0] and at + 1 < len(ids) and ids[at + 1] == pair[1]:
            out.append(new_id)
            at += 2
        else:
            out.append(ids[at])
            at += 1
    return out, len(ids) - len(out)


def _check_layout(pairs: Sized) -> None:
    if FIRST_RULE_ID + len(pairs) - 1 > MAX_TOKEN_ID:
        raise TokenizerError(
            "LayoutOverflow",
            f"{len(pairs)} merges need ids beyond 2**32 - 1",
            merge_count=len(pairs),
        )


def _validated(pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    _check_layout(pairs)
    checked: list[tuple[int, int]] = []
    seen: set[tuple[int, int]] = set()
    for rank, pair in enumerate(pairs):
        left, right = _operands(rank, pair)
        for token_id in (left, right):
            if not 0 <= token_id < 256 + rank:
                raise TokenizerError(
                    "UnknownMergeOperand",
                    f"rule {rank} merges token {token_id}, but only 0..{255 + rank} exist there",
                    rank=rank,
                    token_id=token_id,
                )
        if (left, right) in seen:
            raise TokenizerError(
                "DuplicateMergePair",
                f"rule {rank} merges ({left}, {right}) again",
                rank=rank,
                left=left,
                right=right,
            )
        seen.add((left, right))
        checked.append((left, right))
    return tuple(checked)


def _operands(rank: int, pair: Iterable[Any]) -> tuple[int, int]:
    try:
        left, right = pair
        if any(isinstance(o, bool) or not isinstance(o, (int, np.integer)) for o in (left, right)):
            raise TypeError
        return int(left), int(right)
    except (TypeError, ValueError) as error:
        raise TokenizerError(
            "InvalidPair",
            f"rule {rank} must be a pair of token ids, got {pair!r}",
            rank=rank,
        ) from error
