"""A cache in use with its model: prefill in one pass, then one row a token.

Every output of the forward pass is one chain over its row's prefix, so a token computed alone from
cached keys and values has the bits it has in a full pass: at every position, for every split
between prefill and decoding, alone or in any batch (numerics contract, part two, section 4).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.errors import AutodiffError, CacheError
from llmcy.generate.cached_pass import final_norm, head_logits, through_blocks
from llmcy.generate.layer_cache import changed_cache
from llmcy.generate.work import WorkCounters
from llmcy.model import Decoder

if TYPE_CHECKING:
    from llmcy.generate.kv_cache import KVCache

__all__ = ["CacheSession", "StepOutput"]

Array = NDArray[Any]
Ids = NDArray[np.int64]
Prompts = Sequence[int] | Sequence[Sequence[int]] | Ids | Sequence[Ids]
FUSED_ROWS = 4  # tokens that one call takes through all layers
MANY = 2**62  # no call can overflow a counter below this


class StepOutput(NamedTuple):
    """The result of a prefill or of one decoded token a row.

    Attributes
    ----------
    logits
        (n, 1, V): of the next token after each row's last one.
    rows
        Int64 (n,): which sequence of the batch each entry is.
    positions, cache_lengths
        Int64 (n,): place of each row's last token; filled positions afterwards.
    score_values
        Attention scores of this call, all layers and heads.
    prompt_logits
        For a prefill that was asked to keep them: (T, V) of every prompt; else empty.
    """

    logits: Array
    rows: Ids
    positions: Ids
    cache_lengths: Ids
    score_values: int
    prompt_logits: tuple[Array, ...] = ()


class CacheSession:
    """A cache in use with its model; get one from :meth:`KVCache.bind`.

    A context manager.  While it is open every parameter of the model is held by a read lease, so
    an optimizer step fails with ``ParameterValueBorrowed``.
    """

    def __init__(self, cache: KVCache, model: Decoder) -> None:
        self._cache = cache
        self._model = model
        self._leases = [parameter.borrow() for _, parameter in model.named_parameters()]
        self._open = True
        self._step: kernels.CachedDecodeStep | None = None
        self._every_row = list(range(cache.batch))
        self._lanes = len(cache.layers) * cache._config.n_heads

    @property
    def cache(self) -> KVCache:
        """The cache."""
        return self._cache

    @property
    def work(self) -> WorkCounters:
        """The cache's counters."""
        return self._cache.work

    def close(self) -> None:
        """Release the model's parameters; closing twice is fine."""
        self._open = False
        for lease in self._leases:
            lease.release()

    def __enter__(self) -> CacheSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def reset(self) -> None:
        """Forget all tokens; storage and binding are kept, counters start at zero."""
        self._check_open()
        self._cache._reset()

    # ------------------------------------------------------------------ prefill
    def prefill(
        self, prompts: Prompts, *, serial: bool = False, keep_logits: bool = False
    ) -> StepOutput:
        """Fill the empty cache with a prompt for every sequence.

        Parameters
        ----------
        prompts
            One prompt, for a cache of one sequence, or a sequence of as many prompts as the cache
            has sequences; lengths may differ, and no padding is computed.
        serial
            Go through the tokens one by one, on the path that decoding takes, instead of all at
            once; no bit depends on it.
        keep_logits
            Keep the logits of every prompt position, not of the last ones only.

        Raises
        ------
        CacheError
            The first of ``PromptCountMismatch``, ``EmptyPrompt``, ``PrefillRequiresEmpty``,
            ``PromptTooLong``, ``PromptTokenOutOfBounds``; ``Autodiff`` when a result is not
            finite.  The cache is then empty.
        """
        self._check_open()
        checked = self._checked_prompts(prompts)
        try:
            return self._prefill(checked, serial, keep_logits)
        except BaseException:
            self._cache._reset()
            raise

    def _prefill(self, prompts: list[Ids], serial: bool, keep: bool) -> StepOutput:
        rows = np.arange(len(prompts))
        if not serial:
            return self._advance(prompts, rows, keep=keep, prefill=True)
        last: list[Array] = [np.empty(0)] * len(prompts)
        kept: list[list[Array]] = [[] for _ in prompts]
        scores = 0
        for position in range(max(len(prompt) for prompt in prompts)):
            going = [row for row in rows.tolist() if position < len(prompts[row])]
            ids = [int(prompts[row][position]) for row in going]
            step = self._advance_one(ids, going, [position] * len(going), prefill=True)
            scores += step.score_values
            for row, logits in zip(going, step.logits, strict=True):
                last[row] = logits
                if keep:
                    kept[row].append(logits[0])
        lengths = self._cache.lengths
        return StepOutput(
            np.stack(last), rows, lengths - 1, lengths, scores,
            tuple(np.stack(logits) for logits in kept) if keep else (),
        )  # fmt: skip

    def _checked_prompts(self, prompts: Prompts) -> list[Ids]:
        cache = self._cache
        given: list[Any] = list(prompts)
        if cache.batch == 1 and (not given or isinstance(given[0], (int, np.integer))):
            given = [given]
        if len(given) != cache.batch:
            raise CacheError(
                "PromptCountMismatch",
                f"the cache has {cache.batch} sequences, got {len(given)} prompts",
                expected=cache.batch,
                actual=len(given),
            )
        for row, prompt in enumerate(given):
            if len(prompt) == 0:
                raise CacheError("EmptyPrompt", f"prompt {row} has no token", row=row)
        if len(cache):
            raise CacheError(
                "PrefillRequiresEmpty",
                f"the cache holds {len(cache)} positions; reset it before another prompt",
                len=len(cache),
            )
        for row, prompt in enumerate(given):
            if len(prompt) > cache.capacity:
                raise CacheError(
                    "PromptTooLong",
                    f"prompt {row} has {len(prompt)} tokens, the cache {cache.capacity} positions",
                    tokens=len(prompt),
                    capacity=cache.capacity,
                )
        vocab_size = cache._config.vocab_size
        checked = []
        for row, prompt in enumerate(given):
            for position, token_id in enumerate(prompt):
                if not 0 <= token_id < vocab_size:
                    raise CacheError(
                        "PromptTokenOutOfBounds",
                        f"token {token_id} at position {position} of prompt {row} is outside the "
                        f"vocabulary of {vocab_size}",
                        position=position,
                        token_id=int(token_id),
                        vocabulary_size=vocab_size,
                    )
            checked.append(np.array(prompt, np.int64))
        return checked

    # ------------------------------------------------------------------ decode
    def decode(self, tokens: int | Iterable[int], rows: Iterable[int] | None = None) -> StepOutput:
        """One more token for some sequences of the batch, or for all.

        Parameters
        ----------
        tokens
            A token id, or one for every row.
        rows
            Which sequences, each at most once; nothing means all, in order.

        Raises
        ------
        CacheError
            The first of ``DecodeRequiresPrefill``, ``RowsMismatch``, ``DecodeTokenOutOfBounds``,
            ``Full``; ``Autodiff`` when a result is not finite.  The cache is then unchanged.
        """
        self._check_open()
        cache = self._cache
        if self._step is not None and max(cache._work) < MANY:
            usual = [tokens] if type(tokens) is int else tokens
            of = self._every_row if rows is None else rows
            if type(usual) is list and type(of) is list:
                found = self._step.advance(usual, of, cache._lengths)
                if isinstance(found, int):
                    raise changed_cache(found)
                if found is not None:
                    return self._count(*found)
        lengths = cache._lengths.tolist()
        if not any(lengths):
            raise CacheError("DecodeRequiresPrefill", "there is no prompt in the cache yet")
        given = (tokens,) if isinstance(tokens, (int, np.integer)) else tokens
        ids = [operator.index(token_id) for token_id in given]
        chosen = list(range(cache.batch)) if rows is None else [int(row) for row in rows]
        self._check_rows(ids, chosen)
        vocab_size = cache._config.vocab_size
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise CacheError(
                    "DecodeTokenOutOfBounds",
                    f"token {token_id} is outside the vocabulary of {vocab_size}",
                    token_id=token_id,
                    vocabulary_size=vocab_size,
                )
        starts = [lengths[row] for row in chosen]
        if max(starts) == cache.capacity:
            raise CacheError(
                "Full", f"all {cache.capacity} positions are filled", capacity=cache.capacity
            )
        return self._advance_one(ids, chosen, starts, prefill=False)

    def _count(
        self, logits: Array, rows: Ids, positions: Ids, lengths: Ids, total: int
    ) -> StepOutput:
        """What :meth:`kernels.CachedDecodeStep.advance` has done."""
        cache, scores = self._cache, self._lanes * total
        cache._work = cache._work.plus(len(rows), scores, len(cache.layers), prefill=False)
        return StepOutput(logits[:, None], rows, positions, lengths, scores)

    def _check_rows(self, ids: list[int], rows: list[int]) -> None:
        batch = self._cache.batch
        fit = len(ids) == len(rows) == len(set(rows)) > 0
        if not (fit and min(rows) >= 0 and max(rows) < batch):
            raise CacheError(
                "RowsMismatch",
                f"decode takes one token for each of some different rows of {batch}, got "
                f"{len(ids)} tokens for rows {rows}",
                expected=len(rows),
                actual=len(ids),
            )

    # ------------------------------------------------------------------ the forward pass
    def _advance_one(
        self, ids: list[int], chosen: list[int], starts: list[int], *, prefill: bool
    ) -> StepOutput:
        """One token of each of some sequences: for a few of them, all layers in one call."""
        cache = self._cache
        rows, tokens, positions = np.array(chosen), np.array(ids), np.array(starts)
        step = found = None
        if len(ids) <= FUSED_ROWS and cache.layers:
            step = self._step = self._step or cache._decode_step(self._model)
            found = step.step(tokens, rows, positions)
        if step is None or found is None:  # many sequences, or a value to be found and named
            return self._advance(np.split(tokens, len(ids)), rows, prefill=prefill)
        lengths = np.array([start + 1 for start in starts])
        scores = self._lanes * (sum(starts) + len(starts))
        cache._take_in(step, found, rows, positions, lengths, scores, prefill)
        return StepOutput(found.logits[:, None], rows, positions, lengths, scores)

    def _advance(
        self, tokens: list[Ids], rows: Ids, *, keep: bool = False, prefill: bool
    ) -> StepOutput:
        """Tokens of each of ``rows`` through the model, and into the cache when all is done.

        Either every row is empty, or every row takes one token.
        """
        cache, model = self._cache, self._model
        counts = np.array([len(ids) for ids in tokens])
        starts = cache._lengths[rows]
        flat = np.concatenate(tokens)
        ends = np.cumsum(counts)
        positions = np.arange(len(flat)) - np.repeat(ends - counts - starts, counts)
        try:
            x, prepared = through_blocks(
                model, cache.layers, flat, np.repeat(rows, counts), positions, counts
            )
            if not keep:
                x = np.ascontiguousarray(x[ends - 1])
            logits = head_logits(model, final_norm(model, x))
        except AutodiffError as error:
            raise CacheError("Autodiff", f"forward pass: {error}", cause=error) from error
        scores = self._lanes * (int(positions.sum()) + len(flat))
        lengths = starts + counts
        cache._commit(prepared, rows, lengths, len(flat), scores, prefill)
        last = logits[ends - 1] if keep else logits
        kept = tuple(np.split(logits, ends[:-1])) if keep else ()
        return StepOutput(last[:, None], rows, lengths - 1, lengths, scores, kept)

    def _check_open(self) -> None:
        if not self._open:
            raise CacheError("SessionClosed", "this session has been closed; bind the cache again")
