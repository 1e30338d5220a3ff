"""A byte-pair tokenizer as other programs store one: token strings and merges of strings."""

from __future__ import annotations

from dataclasses import dataclass

from llmcy.errors import InteropError
from llmcy.tokenizer import BytePairTokenizer
from llmcy.tokenizer.byte_alphabet import as_text

__all__ = ["BOS", "EOS", "Vocabulary"]

BOS, EOS = "<|bos|>", "<|eos|>"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in id order and merges in rank order, in the byte alphabet.

    Attributes
    ----------
    tokens
        One distinct string an id; the first two are the control tokens.
    merges
        Left and right token of every rule.
    """

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, tokenizer: BytePairTokenizer) -> Vocabulary:
        """Strings for every id.

        A rule there is two strings and makes the joined one; here it is two ids and makes an id of
        its own.  Both agree as long as no two ids stand for the same bytes.  Rules that text taught
        hardly ever do that, rules written by hand may.

        Raises
        ------
        InteropError
            ``DuplicateToken``.
        """
        tokens = [BOS, EOS]
        for token_id in range(2, tokenizer.vocab_size):
            tokens.append(as_text(tokenizer.token_bytes(token_id) or b""))
        first_with: dict[str, int] = {}
        for token_id, token in enumerate(tokens):
            first = first_with.setdefault(token, token_id)
            if first != token_id:
                raise InteropError(
                    "DuplicateToken",
                    f"tokens {first} and {token_id} are both {token!r}; other formats tell tokens "
                    "apart by their bytes only",
                    token_id=token_id,
                    first=first,
                )
        merges = tuple((tokens[left + 2], tokens[right + 2]) for left, right in tokenizer.pairs)
        return cls(tuple(tokens), merges)
