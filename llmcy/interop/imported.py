"""What an importer returns."""

from __future__ import annotations

from dataclasses import dataclass

from llmcy.state import DecoderModelState
from llmcy.tokenizer import LiteralTokenizer, Tokenizer

__all__ = ["ImportedModel", "numbered_tokens"]


@dataclass(frozen=True)
class ImportedModel:
    """A model from another program.

    Attributes
    ----------
    state
        Configuration and parameters; ``state.restore_independent_model()`` makes a decoder.
    tokenizer
        Its tokenizer; `numbered_tokens` when the file has none.
    """

    state: DecoderModelState
    tokenizer: Tokenizer


def numbered_tokens(vocab_size: int) -> LiteralTokenizer:
    """A stand-in for a missing tokenizer: token 17 is written ``<17>``."""
    return LiteralTokenizer(b"<%d>" % token_id for token_id in range(vocab_size))
