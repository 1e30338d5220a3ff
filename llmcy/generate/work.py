"""What a cache has done, counted within 64 bits."""

from __future__ import annotations

from typing import NamedTuple

from llmcy.errors import CacheError

__all__ = ["WorkCounters"]

MAX_COUNT = 2**64 - 1


class WorkCounters(NamedTuple):
    """What a cache has done since it was made or reset.

    Attributes
    ----------
    token_forwards, prefill_tokens, decode_tokens
        Tokens that went through the model, in all and by phase.
    cache_appends
        Keys and values stored: one a layer and token.
    qkv_projection_rows
        Rows projected to queries, keys and values: three a layer and token.
    attention_score_values
        Scores between a token and itself or an earlier one: layers x heads x length, summed.
    """

    token_forwards: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    cache_appends: int = 0
    qkv_projection_rows: int = 0
    attention_score_values: int = 0

    def plus(self, n: int, scores: int, layers: int, *, prefill: bool) -> WorkCounters:
        """The work so far and that of n tokens more, each counter within 64 bits.

        Parameters
        ----------
        n, scores
            The tokens, and their attention scores in all layers and heads.
        layers
            Of the model.
        prefill
            Whether they belong to a prompt.

        Raises
        ------
        CacheError
            ``WorkOverflow`` naming the counter.
        """
        total = WorkCounters(
            self[0] + n,
            self[1] + (n if prefill else 0),
            self[2] + (0 if prefill else n),
            self[3] + layers * n,
            self[4] + 3 * layers * n,
            self[5] + scores,
        )
        if max(total) > MAX_COUNT:
            for name, count in zip(self._fields, total, strict=True):
                if count > MAX_COUNT:
                    raise CacheError(
                        "WorkOverflow", f"the counter {name} is full", counter=name
                    )
        return total
