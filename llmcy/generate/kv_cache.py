"""The cache of a whole model: keys and values of every layer, and what it may be used with.

Using it is the business of :mod:`llmcy.generate.session`.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.config import ModelConfig
from llmcy.errors import CacheError
from llmcy.generate.layer_cache import LayerKVCache, PreparedTokens, changed_cache
from llmcy.generate.session import CacheSession, StepOutput
from llmcy.generate.work import WorkCounters
from llmcy.model import Decoder

__all__ = ["CacheSession", "KVCache", "StepOutput", "WorkCounters"]

Ids = NDArray[np.int64]


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
        self._layer_lengths = np.zeros((len(model.blocks), max(batch, 0)), np.int64)
        self._layers = tuple(
            LayerKVCache(block.attention, batch, self.capacity, lengths)
            for block, lengths in zip(model.blocks, self._layer_lengths, strict=True)
        )
        self._lengths = np.zeros(batch, np.int64)
        self._work = WorkCounters()
        self._step: kernels.CachedDecodeStep | None = None

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

    # ------------------------------------------------------------------ for sessions only
    def _decode_step(self, model: Decoder) -> kernels.CachedDecodeStep:
        """A model with blocks as single tokens go through it.

        Its weights are packed once: while a cache is of use, parameters cannot change.
        """
        if self._step is None:
            try:
                step = _packed(model)
            except MemoryError as error:
                elements = sum(parameter.data.size for parameter in self._parameters)
                raise CacheError(
                    "AllocationFailed",
                    f"no memory for the copy of {elements} weights that decoding reads",
                    cause=error,
                    elements=elements,
                ) from error
            keys, values = zip(*(layer.arrays for layer in self._layers), strict=True)
            self._step = step.over(keys, values, self._layer_lengths)
        return self._step

    def _commit(
        self,
        prepared: list[PreparedTokens],
        rows: Ids,
        lengths: Ids,
        tokens: int,
        scores: int,
        prefill: bool,
    ) -> None:
        """Everything at once, after everything has succeeded."""
        for index, (layer, taken) in enumerate(zip(self._layers, prepared, strict=True)):
            if not layer.accepts(taken):
                raise changed_cache(index)
        work = self._work.plus(tokens, scores, len(self._layers), prefill=prefill)
        for layer, taken in zip(self._layers, prepared, strict=True):
            layer.commit(taken)
        self._lengths[rows] = lengths
        self._work = work

    def _take_in(
        self,
        step: kernels.CachedDecodeStep,
        found: kernels.StepResult,
        rows: Ids,
        positions: Ids,
        lengths: Ids,
        scores: int,
        prefill: bool,
    ) -> None:
        """As `_commit`, for one token of each of a few sequences."""
        try:
            work = self._work.plus(len(rows), scores, len(self._layers), prefill=prefill)
        except CacheError:
            stale = (self._layer_lengths[:, rows] != positions).any(1)
            if stale.any():
                raise changed_cache(int(stale.argmax())) from None
            raise
        changed = step.append(found, rows, positions)
        if changed is not None:
            raise changed_cache(changed)
        self._lengths[rows] = lengths
        self._work = work

    def _reset(self) -> None:
        for layer in self._layers:
            layer.reset()
        self._lengths[:] = 0
        self._work = WorkCounters()


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


def _packed(model: Decoder) -> kernels.DecodeStep:
    """A copy of the model's weights as single tokens want them."""
    first = model.blocks[0].attention
    head = model.token_embedding if model.output_head is None else model.output_head
    blocks = tuple(
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
        )
        for block in model.blocks
    )
    return kernels.DecodeStep(
        kernels.DecoderWeights(
            model.token_embedding.weight.data, blocks, model.final_norm.gain.data,
            head.weight.data, first.rotary.cos, first.rotary.sin,
        ),
        model.config.rms_norm_eps, first.n_heads, first.n_kv_heads,
    )  # fmt: skip
