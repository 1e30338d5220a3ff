"""A tokenizer that is a list of pieces: an id is a position in it.

It decodes; it has no encoder, because the models that use it are given ids directly.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmcy.errors import TokenizerError
from llmcy.tokenizer._ids import TokenIds, as_text, id_array, require_known

__all__ = ["LiteralTokenizer"]


class LiteralTokenizer:
    """Distinct nonempty byte pieces, frozen.

    Parameters
    ----------
    pieces
        The bytes of id 0, 1, 2, ...

    Raises
    ------
    TokenizerError
        ``EmptyVocabulary``; then, id by id, ``EmptyPiece`` or ``DuplicatePiece``.
    """

    __slots__ = ("_pieces",)

    bos_id: int | None = None
    eos_id: int | None = None

    def __init__(self, pieces: Iterable[bytes]) -> None:
        held = tuple(bytes(memoryview(piece)) for piece in pieces)
        if not held:
            raise TokenizerError("EmptyVocabulary", "a literal tokenizer needs at least one piece")
        first_with: dict[bytes, int] = {}
        for token_id, piece in enumerate(held):
            if not piece:
                raise TokenizerError(
                    "EmptyPiece", f"the piece of token {token_id} is empty", token_id=token_id
                )
            first = first_with.setdefault(piece, token_id)
            if first != token_id:
                raise TokenizerError(
                    "DuplicatePiece",
                    f"tokens {first} and {token_id} have the same piece {piece!r}",
                    token_id=token_id,
                    first=first,
                )
        self._pieces = held

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The pieces in id order."""
        return self._pieces

    @property
    def vocab_size(self) -> int:
        """Number of pieces."""
        return len(self._pieces)

    def token_bytes(self, token_id: int) -> bytes | None:
        """Bytes of one id; None outside the vocabulary."""
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else None

    def decode(self, token_ids: TokenIds) -> bytes:
        """The pieces of the ids, joined.

        Raises
        ------
        TokenizerError
            ``InvalidTokenIds`` or ``UnknownToken``.
        """
        ids = id_array(token_ids)
        require_known(ids, len(self._pieces))
        return b"".join(self._pieces[i] for i in ids.tolist())

    def decode_text(self, token_ids: TokenIds) -> str:
        """`decode` as strict UTF-8; bytes that are not text are ``InvalidUtf8``."""
        return as_text(self.decode(token_ids))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LiteralTokenizer) and self._pieces == other._pieces

    def __hash__(self) -> int:
        return hash(self._pieces)

    def __repr__(self) -> str:
        return f"LiteralTokenizer({self.vocab_size} pieces)"
