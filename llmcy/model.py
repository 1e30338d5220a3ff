"""The decoder: embedding, blocks, final norm, head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import ops
from llmcy.config import ModelConfig
from llmcy.errors import DTypeError, ModelError
from llmcy.nn.attention import Attention
from llmcy.nn.block import Block
from llmcy.nn.embedding import Embedding, OutputHead
from llmcy.nn.init import drawn_matrix, unit_gain
from llmcy.nn.layout import check_decoder_layout
from llmcy.nn.linear import Linear
from llmcy.nn.module import Module, Parameter
from llmcy.nn.rms_norm import RMSNorm
from llmcy.nn.rope import rotary_table
from llmcy.nn.swiglu import SwiGLU
from llmcy.ops.ids import as_ids
from llmcy.rng import SplitMix64
from llmcy.tape import Tensor

__all__ = ["Decoder"]

Array = NDArray[Any]
NamedArrays = Mapping[str, Array] | Iterable[tuple[str, Array]]


class Decoder(Module):
    """A decoder-only language model (numerics contract, section 6).

    Build one with :meth:`initialize` or :meth:`from_parameters`.

    Attributes
    ----------
    config
        Sizes and constants.
    token_embedding, blocks, final_norm
        The layers.  The output head of a tied model is the embedding table itself: one parameter,
        used twice.
    output_head
        The head of an untied model; None otherwise.
    """

    token_embedding: Embedding
    blocks: tuple[Block, ...]
    final_norm: RMSNorm
    output_head: OutputHead | None

    def __init__(self, config: ModelConfig, parameters: Iterable[Parameter]) -> None:
        """Wire parameters, in stable order, into layers; they are not copied."""
        nodes = list(parameters)
        check_decoder_layout(config, [p.name for p in nodes], [p.shape for p in nodes])
        for node in nodes:
            _check_dtype(node.name, node.dtype, config)
        rotary = rotary_table(
            config.max_seq_len, config.head_dim, config.rope_theta, config.dtype
        )
        following = iter(nodes)

        def norm() -> RMSNorm:
            return RMSNorm(next(following), config.rms_norm_eps)

        def linear() -> Linear:
            return Linear(next(following))

        self.config = config
        self.token_embedding = Embedding(next(following))
        blocks = []
        for _ in range(config.n_layers):
            attention_norm = norm()
            attention = Attention(
                linear(),
                linear(),
                linear(),
                linear(),
                n_heads=config.n_heads,
                n_kv_heads=config.kv_heads,
                rotary=rotary,
            )
            ffn_norm = norm()
            ffn = SwiGLU(linear(), linear(), linear())
            blocks.append(Block(attention_norm, attention, ffn_norm, ffn))
        self.blocks = tuple(blocks)
        self.final_norm = norm()
        self.output_head = None if config.tied_head else OutputHead(next(following))

    # ------------------------------------------------------------------ building
    @classmethod
    def initialize(cls, config: ModelConfig, seed: int | SplitMix64) -> Decoder:
        """A model with drawn weights and gains of one (numerics contract, section 3).

        Parameters
        ----------
        config
            Sizes and constants.
        seed
            A seed, or a generator that continues where it stands.
        """
        rng = seed if isinstance(seed, SplitMix64) else SplitMix64(seed)
        dtype = np.dtype(config.dtype)
        parameters = []
        for name, shape in config.parameter_shapes().items():
            if len(shape) == 2:
                values = drawn_matrix(shape[0], shape[1], rng, dtype)
            else:
                values = unit_gain(shape[0], dtype)
            parameters.append(Parameter(name, values, copy=False))
        return cls(config, parameters)

    @classmethod
    def from_parameters(
        cls, config: ModelConfig, parameters: NamedArrays, *, copy: bool = True
    ) -> Decoder:
        """A model with given values.

        Parameters
        ----------
        config
            Sizes and constants.
        parameters
            Names and arrays in stable order.
        copy
            ``False`` moves the arrays into the model: they must be C-contiguous and writable, and
            the caller must not use them any more.

        Raises
        ------
        InitializationError
            A name outside the grammar, or a value that is NaN or infinite.
        ModelError
            As :func:`llmcy.nn.check_decoder_layout`.
        DTypeError
            An array of another dtype than ``config.dtype``, or one that cannot be moved.
        """
        given = parameters.items() if isinstance(parameters, Mapping) else parameters
        return cls(config, [Parameter(name, array, copy=copy) for name, array in given])

    # ------------------------------------------------------------------ parameters
    @property
    def n_parameters(self) -> int:
        """Scalars over all parameters; a tied table counts once."""
        return sum(parameter.size for _, parameter in self.named_parameters())

    # ------------------------------------------------------------------ computing
    def forward(self, inputs: ArrayLike) -> Tensor:
        """Logits of the next token at every position.

        Parameters
        ----------
        inputs
            Token ids (B, T), 1 <= T <= max_seq_len.

        Returns
        -------
        Tensor
            Shape (B, T, V).  A position's logits depend on its row up to that position only.

        Raises
        ------
        ModelError
            ``InputRank``, ``EmptyInput``, ``ContextTooLong``, ``TokenOutOfBounds``.
        AutodiffError
            ``NonFiniteValue`` naming the operation that overflowed.
        """
        return self._head().logits(self._hidden(self._checked_inputs(inputs)))

    __call__ = forward

    def _hidden(self, ids: NDArray[np.int64]) -> Tensor:
        """What the head scores, shape (B, T, D)."""
        x = self.token_embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def _head(self) -> OutputHead:
        return self.token_embedding if self.output_head is None else self.output_head

    def loss(
        self,
        inputs: ArrayLike,
        targets: ArrayLike,
        n_total: int | None = None,
        *,
        row_losses: NDArray[np.float64] | None = None,
    ) -> Tensor:
        """Mean negative log-likelihood of ``targets`` (B, T) in nats, as a float64 scalar.

        Parameters
        ----------
        inputs, targets
            Token ids (B, T).
        n_total
            When the rows are a piece of a larger batch: the number of targets of the whole batch
            (see :class:`llmcy.tape.CarriedGradients`).
        row_losses
            Receives the loss of every target in flat order, float64 of shape (B * T,).

        Raises
        ------
        ModelError
            As :meth:`forward`; ``TargetShapeMismatch``.

        Notes
        -----
        Where logits are many, they exist for some rows of the batch at a time
        (:func:`llmcy.ops.linear_cross_entropy`).  A subclass's own :meth:`forward` is called.
        """
        ids = self._checked_inputs(inputs)
        wanted = as_ids("targets", targets)
        if wanted.shape != ids.shape:
            raise ModelError(
                "TargetShapeMismatch",
                f"targets must have the shape of inputs, {ids.shape}, got {wanted.shape}",
                expected=ids.shape,
                actual=wanted.shape,
            )
        self._check_tokens("targets", wanted)
        if getattr(self.forward, "__func__", None) is not _FORWARD:
            return ops.cross_entropy(self.forward(ids), wanted, n_total, row_losses=row_losses)
        return self._head().loss(self._hidden(ids), wanted, n_total, row_losses=row_losses)

    def _checked_inputs(self, inputs: ArrayLike) -> NDArray[np.int64]:
        ids = as_ids("inputs", inputs)
        if ids.ndim != 2:
            raise ModelError(
                "InputRank", f"inputs must have shape (B, T), got {ids.shape}", shape=ids.shape
            )
        if ids.size == 0:
            raise ModelError(
                "EmptyInput", f"inputs must not be empty, got shape {ids.shape}", shape=ids.shape
            )
        if ids.shape[1] > self.config.max_seq_len:
            raise ModelError(
                "ContextTooLong",
                f"inputs are {ids.shape[1]} tokens long, the model holds "
                f"{self.config.max_seq_len} positions",
                tokens=ids.shape[1],
                max_seq_len=self.config.max_seq_len,
            )
        self._check_tokens("inputs", ids)
        return ids

    def _check_tokens(self, name: str, ids: NDArray[np.int64]) -> None:
        vocab_size = self.config.vocab_size
        if ids.min() >= 0 and ids.max() < vocab_size:
            return
        flat = ids.reshape(-1)
        index = int(np.argmax((flat < 0) | (flat >= vocab_size)))
        raise ModelError(
            "TokenOutOfBounds",
            f"{name} hold token {flat[index]} at flat index {index}; the vocabulary has "
            f"{vocab_size} tokens",
            index=index,
            token_id=int(flat[index]),
            vocab_size=vocab_size,
        )


_FORWARD = Decoder.forward


def _check_dtype(name: str, dtype: np.dtype[Any], config: ModelConfig) -> None:
    if dtype != np.dtype(config.dtype):
        raise DTypeError(
            "UnsupportedDType",
            f"{name} must have the model's dtype {config.dtype}, got {dtype}",
            name=name,
            expected=config.dtype,
            actual=dtype.name,
        )
