"""The tokenizer inside a checkpoint: sealed, so that its vocabulary cannot go stale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llmcy.checkpoint.layout import TokenizerKind
from llmcy.errors import CheckpointError, TokenizerError
from llmcy.tokenizer import BytePairTokenizer

__all__ = ["TokenizerRecord"]

BYTE_AND_CONTROL_TOKENS = 258  # BOS, EOS and the 256 bytes


class TokenizerRecord:
    """A tokenizer as a checkpoint stores it; make one with :meth:`literal` or :meth:`byte_bpe`.

    Attributes
    ----------
    kind : str
        ``"literal-u32"`` or ``"byte-bpe"``.
    vocab_size : int
        Number of pieces, or 258 + number of merges.
    """

    __slots__ = ("_pairs", "_pieces")

    _pieces: tuple[bytes, ...] | None
    _pairs: tuple[tuple[int, int], ...] | None

    def __init__(self) -> None:
        raise TypeError("use TokenizerRecord.literal or TokenizerRecord.byte_bpe")

    @classmethod
    def _sealed(
        cls, pieces: tuple[bytes, ...] | None, pairs: tuple[tuple[int, int], ...] | None
    ) -> TokenizerRecord:
        record = object.__new__(cls)
        object.__setattr__(record, "_pieces", pieces)
        object.__setattr__(record, "_pairs", pairs)
        return record

    @classmethod
    def literal(cls, pieces: Iterable[bytes]) -> TokenizerRecord:
        """A list of distinct, nonempty byte strings; the token id is the position.

        Raises
        ------
        CheckpointError
            ``Tokenizer``: no pieces at all; then, ids ascending, an empty or a repeated piece.
        """
        own = tuple(bytes(piece) for piece in pieces)
        if not own:
            raise _tokenizer_error("a literal tokenizer needs at least one piece")
        first_use: dict[bytes, int] = {}
        for token_id, piece in enumerate(own):
            if not piece:
                raise _tokenizer_error(f"piece {token_id} is empty")
            first = first_use.setdefault(piece, token_id)
            if first != token_id:
                raise _tokenizer_error(f"piece {token_id} repeats piece {first}: {piece!r}")
        return cls._sealed(own, None)

    @classmethod
    def byte_bpe(cls, tokenizer: BytePairTokenizer) -> TokenizerRecord:
        """The merges of a byte-level BPE tokenizer, in rank order.  Cannot fail."""
        return cls._sealed(None, tuple((int(left), int(right)) for left, right in tokenizer.pairs))

    @classmethod
    def from_training_pairs(cls, pairs: Sequence[tuple[int, int]]) -> TokenizerRecord:
        """The same from raw training-space pairs, which are validated.

        Raises
        ------
        CheckpointError
            ``Bpe`` with the tokenizer's own error as ``cause``.
        """
        try:
            tokenizer = BytePairTokenizer.from_pairs(pairs)
        except TokenizerError as cause:
            raise CheckpointError("Bpe", f"byte-pair merges: {cause}", cause=cause) from cause
        return cls.byte_bpe(tokenizer)

    @property
    def tag(self) -> TokenizerKind:
        """The kind as stored."""
        return TokenizerKind.BYTE_BPE if self._pieces is None else TokenizerKind.LITERAL

    @property
    def kind(self) -> str:
        """``"literal-u32"`` or ``"byte-bpe"``."""
        return "byte-bpe" if self._pieces is None else "literal-u32"

    @property
    def vocab_size(self) -> int:
        """Number of token ids, always derived from the content."""
        if self._pieces is not None:
            return len(self._pieces)
        return BYTE_AND_CONTROL_TOKENS + len(self._pairs or ())

    def literal_pieces(self) -> tuple[bytes, ...] | None:
        """The byte pieces by token id, or ``None`` for a BPE tokenizer."""
        return self._pieces

    def training_pairs(self) -> tuple[tuple[int, int], ...] | None:
        """The merges in training-space ids (byte b is b, merge r is 256 + r), or ``None``."""
        return self._pairs

    def restore_bpe(self) -> BytePairTokenizer | None:
        """A tokenizer rebuilt from the merges, or ``None`` for a literal one."""
        return None if self._pairs is None else BytePairTokenizer.from_pairs(self._pairs)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a tokenizer record is sealed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a tokenizer record is sealed")

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenizerRecord._sealed, (self._pieces, self._pairs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenizerRecord):
            return NotImplemented
        return self._pieces == other._pieces and self._pairs == other._pairs

    def __hash__(self) -> int:
        return hash((self._pieces, self._pairs))

    def __repr__(self) -> str:
        return f"TokenizerRecord(kind={self.kind!r}, vocab_size={self.vocab_size})"


def _tokenizer_error(text: str) -> CheckpointError:
    return CheckpointError("Tokenizer", f"literal tokenizer: {text}", text=text)
