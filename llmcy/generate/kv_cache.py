"""The cache of a whole model: prefill in one pass, then one row a token.

Every output of the forward pass is one chain over its row's prefix, so a token computed alone from
cached keys and values has the bits it has in a full pass: at every position, for every split
between prefill and decoding, alone or in any batch (numerics contract, part two, section 4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.config import ModelConfig
from llmcy.errors import AutodiffError, CacheError
from llmcy.generate.layer_cache import LayerKVCache, PreparedTokens
from llmcy.model import Decoder
from llmcy.tape.tensor import check_finite

__all__ = ["CacheSession", "KVCache", "StepOutput", "WorkCounters"]

Array = NDArray[Any]
Ids = NDArray[np.int64]
Prompts = Sequence[int] | Sequence[Sequence[int]] | Ids | Sequence[Ids]
MAX_COUNT = 2**64 - 1
FUSED_ROWS = 4  # tokens that a fused block takes at once


@dataclass(frozen=True)
class WorkCounters:
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

    def plus(self, other: WorkCounters) -> WorkCounters:
        """The sum, each counter within 64 bits.

        Raises
        ------
        CacheError
            ``WorkOverflow`` naming the counter.
        """
        sums = {}
        for field in fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            if total > MAX_COUNT:
                raise CacheError(
                    "WorkOverflow", f"the counter {field.name} is full", counter=field.name
                )
            sums[field.name] = total
        return WorkCounters(**sums)


@dataclass(frozen=True, eq=False)
class StepOutput:
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


class KVCache:
    """Cached keys and values of every layer of a model, for one sequence or a batch of them.

    Parameters
    ----------
    model
        The model.  The cache belongs to its very parameter nodes at their present revisions: after
        an optimizer step, or for another model with equal values, :meth:`bind` refuses.
    batch
        Sequences, B.
    capacity
        Positions a sequence can fill; nothing means the model's.

    Raises
    ------
    CacheError
        As :class:`~llmcy.generate.layer_cache.LayerKVCache`.
    """

    def __init__(self, model: Decoder, batch: int = 1, capacity: int | None = None) -> None:
        config = model.config
        self.batch = batch
        self.capacity = config.max_seq_len if capacity is None else capacity
        self._config = config
        self._parameters = [parameter for _, parameter in model.named_parameters()]
        self._revisions = [parameter.revision for parameter in self._parameters]
        if not model.blocks:  # with no layer to ask, the same questions
            _check_sizes(batch, self.capacity, config.max_seq_len)
        self._layers = tuple(
            LayerKVCache(block.attention, batch, self.capacity) for block in model.blocks
        )
        self._lengths = np.zeros(batch, np.int64)
        self._work = WorkCounters()

    # ------------------------------------------------------------------ looking
    @property
    def layers(self) -> tuple[LayerKVCache, ...]:
        """The cache of each block."""
        return self._layers

    @property
    def lengths(self) -> Ids:
        """Filled positions of every sequence, (B,); a copy."""
        return self._lengths.copy()

    def __len__(self) -> int:
        """Filled positions of the longest sequence."""
        return int(self._lengths.max())

    def __bool__(self) -> bool:
        return True

    @property
    def work(self) -> WorkCounters:
        """What has been done since the cache was made or reset."""
        return self._work

    # ------------------------------------------------------------------ binding
    def bind(self, model: Decoder) -> CacheSession:
        """Open a session: the model's parameters cannot be written until it is closed.

        Raises
        ------
        CacheError
            The first of ``ModelConfigMismatch``, ``ModelParameterCountMismatch``,
            ``ModelParameterMismatch``, ``ModelParameterRevisionMismatch``,
            ``LayerCountMismatch``, ``LayerLengthInvariant``, then layer by layer
            ``LayerBatchSizeMismatch``, ``LayerCapacityMismatch``, ``IncrementalAttention``.
        """
        if _config_bits(model.config) != _config_bits(self._config):
            raise CacheError("ModelConfigMismatch", "the model has another configuration")
        self._check_parameters(model)
        self._check_layers(model)
        return CacheSession(self, model)

    def _check_parameters(self, model: Decoder) -> None:
        nodes = [parameter for _, parameter in model.named_parameters()]
        if len(nodes) != len(self._parameters):
            raise CacheError(
                "ModelParameterCountMismatch",
                f"the cache is for {len(self._parameters)} parameters, the model has {len(nodes)}",
                cache=len(self._parameters),
                model=len(nodes),
            )
        for index, (mine, node) in enumerate(zip(self._parameters, nodes, strict=True)):
            if mine is not node:
                raise CacheError(
                    "ModelParameterMismatch",
                    f"the cache belongs to another model: parameter {index} ({node.name}) is "
                    "another node",
                    index=index,
                )
        for index, (revision, node) in enumerate(zip(self._revisions, nodes, strict=True)):
            if node.revision != revision:
                raise CacheError(
                    "ModelParameterRevisionMismatch",
                    f"parameter {index} ({node.name}) has changed: the cache is for revision "
                    f"{revision}, the model is at {node.revision}; make a new cache",
                    index=index,
                    cache=revision,
                    model=node.revision,
                )

    def _check_layers(self, model: Decoder) -> None:
        if len(self._layers) != len(model.blocks):
            raise CacheError(
                "LayerCountMismatch",
                f"the cache has {len(self._layers)} layers, the model {len(model.blocks)}",
                cache=len(self._layers),
                model=len(model.blocks),
            )
        for index, layer in enumerate(self._layers):
            for row, (expected, actual) in enumerate(
                zip(self._lengths.tolist(), layer.lengths.tolist(), strict=False)
            ):
                if expected != actual:
                    raise CacheError(
                        "LayerLengthInvariant",
                        f"layer {index} holds {actual} positions of sequence {row}, the cache "
                        f"{expected}",
                        layer=index,
                        expected=expected,
                        actual=actual,
                    )
        for index, (layer, block) in enumerate(zip(self._layers, model.blocks, strict=True)):
            for kind, expected, actual in (
                ("LayerBatchSizeMismatch", self.batch, layer.batch),
                ("LayerCapacityMismatch", self.capacity, layer.capacity),
            ):
                if expected != actual:
                    raise CacheError(
                        kind,
                        f"layer {index} is made for {actual}, the cache for {expected}",
                        layer=index,
                        expected=expected,
                        actual=actual,
                    )
            try:
                layer.check_binding(block.attention)
            except CacheError as error:
                raise CacheError(
                    "IncrementalAttention", f"layer {index}: {error}", cause=error, layer=index
                ) from error

    # ------------------------------------------------------------------ changing (sessions only)
    def _commit(
        self, prepared: list[PreparedTokens], rows: Ids, lengths: Ids, work: WorkCounters
    ) -> None:
        """Everything at once, after everything has succeeded."""
        for index, (layer, tokens) in enumerate(zip(self._layers, prepared, strict=True)):
            if not layer.accepts(tokens):
                raise CacheError(
                    "PreparedCacheChanged",
                    f"layer {index} has changed since its new row was prepared",
                    layer=index,
                )
        total = self._work.plus(work)
        for layer, tokens in zip(self._layers, prepared, strict=True):
            layer.commit(tokens)
        self._lengths[rows] = lengths
        self._work = total

    def _reset(self) -> None:
        for layer in self._layers:
            layer.reset()
        self._lengths[:] = 0
        self._work = WorkCounters()


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
        self._fused = [
            kernels.DecodeBlock(
                kernels.BlockWeights(
                    block.attention_norm.gain.data,
                    block.attention.query.weight.data,
                    block.attention.key.weight.data,
                    block.attention.value.weight.data,
                    block.attention.output.weight.data,
                    block.ffn_norm.gain.data,
                    block.ffn.gate.weight.data,
                    block.ffn.up.weight.data,
                    block.ffn.down.weight.data,
                ),
                block.attention_norm.eps,
                block.ffn_norm.eps,
                block.attention.n_heads,
                block.attention.n_kv_heads,
            )
            for block in model.blocks
        ]

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
            return self._advance(prompts, rows, keep, prefill=True)
        last: list[Array] = [np.empty(0)] * len(prompts)
        kept: list[list[Array]] = [[] for _ in prompts]
        scores = 0
        for position in range(max(len(prompt) for prompt in prompts)):
            going = np.array([r for r in rows.tolist() if position < len(prompts[r])])
            step = self._advance(
                [prompts[r][position : position + 1] for r in going.tolist()], going, prefill=True
            )
            scores += step.score_values
            for row, logits in zip(going.tolist(), step.logits, strict=True):
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
        if not len(cache):
            raise CacheError("DecodeRequiresPrefill", "there is no prompt in the cache yet")
        ids = [tokens] if isinstance(tokens, (int, np.integer)) else list(tokens)
        chosen = list(range(cache.batch)) if rows is None else [int(row) for row in rows]
        known = set(range(cache.batch))
        if len(ids) != len(chosen) or not chosen or len(set(chosen) & known) != len(chosen):
            raise CacheError(
                "RowsMismatch",
                f"decode takes one token for each of some different rows of {cache.batch}, got "
                f"{len(ids)} tokens for rows {chosen}",
                expected=len(chosen),
                actual=len(ids),
            )
        vocab_size = cache._config.vocab_size
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise CacheError(
                    "DecodeTokenOutOfBounds",
                    f"token {token_id} is outside the vocabulary of {vocab_size}",
                    token_id=int(token_id),
                    vocabulary_size=vocab_size,
                )
        places = np.array(chosen)
        if int(cache._lengths[places].max()) == cache.capacity:
            raise CacheError(
                "Full", f"all {cache.capacity} positions are filled", capacity=cache.capacity
            )
        return self._advance([np.array([token_id]) for token_id in ids], places, prefill=False)

    # ------------------------------------------------------------------ the forward pass
    def _advance(
        self, tokens: list[Ids], rows: Ids, keep: bool = False, *, prefill: bool
    ) -> StepOutput:
        """Tokens of each of ``rows`` through the model, and into the cache when all is done.

        Either every row is empty, or every row takes one token.
        """
        cache, model = self._cache, self._model
        counts = np.array([len(ids) for ids in tokens])
        starts = cache._lengths[rows]
        flat = np.concatenate(tokens)
        owners = np.repeat(rows, counts)
        ends = np.cumsum(counts)
        positions = np.arange(len(flat)) - np.repeat(ends - counts - starts, counts)
        try:
            fused = self._fused_blocks(flat, rows, positions) if len(flat) <= FUSED_ROWS else None
            x, prepared = fused or self._blocks(flat, owners, positions, counts)
            if not keep:
                x = np.ascontiguousarray(x[ends - 1])
            x = _norm(x, model.final_norm.gain.data, model.final_norm.eps)
            logits = kernels.matmul(x, self._head(), transpose_b=True)
            check_finite("tied_linear", logits)
        except AutodiffError as error:
            raise CacheError("Autodiff", f"forward pass: {error}", cause=error) from error
        layers, heads = len(cache.layers), cache._config.n_heads
        scores = layers * heads * int((positions + 1).sum())
        n = len(flat)
        work = WorkCounters(
            n, n if prefill else 0, 0 if prefill else n, layers * n, 3 * layers * n, scores
        )
        lengths = starts + counts
        cache._commit(prepared, rows, lengths, work)
        last = logits[ends - 1] if keep else logits
        kept = tuple(np.split(logits, ends[:-1])) if keep else ()
        return StepOutput(last[:, None], rows, lengths - 1, lengths, scores, kept)

    def _head(self) -> Array:
        model = self._model
        head = model.token_embedding if model.output_head is None else model.output_head
        return head.weight.data

    def _fused_blocks(
        self, flat: Ids, rows: Ids, positions: Ids
    ) -> tuple[Array, list[PreparedTokens]] | None:
        """As `_blocks` for a few single tokens; None when `_blocks` has to do it.

        That is for several tokens of one row, which see one another, and for values that are not
        finite, which `_blocks` finds and names.
        """
        model = self._model
        if len(flat) != len(rows) or not model.blocks:
            return None
        rotary = model.blocks[0].attention.rotary
        factors = kernels.turning_factors(rotary.cos[positions], rotary.sin[positions])
        x = kernels.embedding(model.token_embedding.weight.data, flat[None])[0]
        prepared = []
        for block, layer in zip(self._fused, self._cache.layers, strict=True):
            taken = layer.step(block, x, factors, rows, positions)
            if taken is None:
                return None
            prepared.append(taken)
        return x, prepared

    def _blocks(
        self, flat: Ids, owners: Ids, positions: Ids, counts: Ids
    ) -> tuple[Array, list[PreparedTokens]]:
        """The residual stream (n, D) after all blocks, and what each layer's cache will take."""
        model, n = self._model, len(flat)
        x = kernels.embedding(model.token_embedding.weight.data, flat[None])[0]
        prepared = []
        table: tuple[Array, Array] | None = None
        for block, layer in zip(model.blocks, self._cache.layers, strict=True):
            attention, ffn = block.attention, block.ffn
            if table is None:
                rotary = attention.rotary
                table = rotary.cos[positions], rotary.sin[positions]
            h = _norm(x, block.attention_norm.gain.data, block.attention_norm.eps)
            q = _rotated(_linear(h, attention.query.weight.data), layer.head_dim, table)
            k = _rotated(_linear(h, attention.key.weight.data), layer.head_dim, table)
            v = _linear(h, attention.value.weight.data)
            if len(counts) == n and positions.any():
                mixed, taken = layer.attend(q, k, v, owners)
            else:  # whole prompts into empty sequences
                mixed = _full_attention(q, k, v, counts, layer)
                taken = PreparedTokens(owners, positions, k, v)
            check_finite("attention", mixed)
            prepared.append(taken)
            x = _sum(x, _linear(mixed, attention.output.weight.data))
            h = _norm(x, block.ffn_norm.gain.data, block.ffn_norm.eps)
            hidden = kernels.swiglu(
                _linear(h, ffn.gate.weight.data), _linear(h, ffn.up.weight.data)
            )
            check_finite("swiglu", hidden)
            x = _sum(x, _linear(hidden, ffn.down.weight.data))
        return x, prepared

    def _check_open(self) -> None:
        if not self._open:
            raise CacheError("SessionClosed", "this session has been closed; bind the cache again")


# ---------------------------------------------------------------------- checked operations
# The same kernels, in the same order and with the same checks as the operations of the tape.


def _norm(x: Array, gain: Array, eps: float) -> Array:
    out = kernels.rms_norm(x, gain, eps).out
    check_finite("rms_norm", out)
    return out


def _linear(x: Array, weight: Array) -> Array:
    out = kernels.matmul(x, weight)
    check_finite("linear", out)
    return out


def _sum(x: Array, y: Array) -> Array:
    out = kernels.add(x, y)
    check_finite("add", out)
    return out


def _rotated(x: Array, head_dim: int, table: tuple[Array, Array]) -> Array:
    heads = x.reshape(len(x), -1, head_dim)
    kernels.rope(heads, *table, out=heads)
    check_finite("rope", x)
    return x


def _full_attention(q: Array, k: Array, v: Array, counts: Ids, layer: LayerKVCache) -> Array:
    """Causal attention inside each of some sequences that lie one after the other."""
    heads, kv_heads = layer.n_heads, layer.n_kv_heads
    if (counts == counts[0]).all():
        shape = (len(counts), int(counts[0]), -1)
        mixed = kernels.attention(
            q.reshape(shape), k.reshape(shape), v.reshape(shape), heads, n_kv_heads=kv_heads
        )
        return mixed.reshape(q.shape)
    out = kernels.empty_like(q)
    start = 0
    for count in counts.tolist():
        part = slice(start, start + count)
        kernels.attention(
            q[None, part],
            k[None, part],
            v[None, part],
            heads,
            n_kv_heads=kv_heads,
            out=out[None, part],
        )
        start += count
    return out


def _config_bits(config: ModelConfig) -> tuple[Any, ...]:
    """The configuration with floats as bits, so that -0 is not 0."""
    return tuple(
        struct.pack("<d", value) if isinstance(value, float) else value
        for value in config.to_dict().values()
    )


def _check_sizes(batch: int, capacity: int, positions: int) -> None:
    if batch <= 0:
        raise CacheError("ZeroBatchSize", f"a cache needs at least one sequence, got {batch}")
    if capacity <= 0:
        raise CacheError("ZeroCapacity", f"a cache needs at least one position, got {capacity}")
    if capacity > positions:
        raise CacheError(
            "CapacityExceedsPositions",
            f"capacity {capacity} is more than the model's {positions} positions",
            capacity=capacity,
            positions=positions,
        )
