"""The shape of a model: checked once, never changed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from llmcy.errors import ModelError

__all__ = ["CONTRACT_VERSION", "ModelConfig"]

CONTRACT_VERSION = 1  # of docs/numerics.md; recorded in runs and model files
DTYPES = ("float64", "float32")
_OPTIONAL_SIZES = ("n_kv_heads", "head_size")
_SIZES = ("vocab_size", "d_model", "n_heads", "n_layers", "d_ff", "max_seq_len", *_OPTIONAL_SIZES)
_SPECIAL = {"n_kv_heads": None, "head_size": None, "tied_head": True}  # what most models have


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder-only model.

    Parameters
    ----------
    vocab_size
        Number of token ids, V.
    d_model
        Width of the residual stream, D.
    n_heads
        Attention heads, H; without ``head_size``, ``d_model / n_heads`` must be whole and even.
    n_layers
        Blocks, L; 0 is allowed.
    d_ff
        Width of the feed-forward layer, F.
    max_seq_len
        Positions the model can hold, C.
    rope_theta
        Base of the rotary frequencies; finite, > 0.
    rms_norm_eps
        Added to the mean square; finite, >= 0.
    dtype
        ``"float64"`` (the published contract) or ``"float32"``.
    n_kv_heads
        Heads of keys and values, K, a divisor of H: each serves ``H / K`` neighbouring query heads.
        None, also when H is given: as many as query heads.  :attr:`kv_heads` is the number itself.
    head_size
        Width of one head, w, even.  None, also when that width is given: ``d_model / n_heads``.
        :attr:`head_dim` is the number itself.
    tied_head
        Whether the embedding table is the output head as well; if not, the head is a table of its
        own, ``output_head.weight``.

    Raises
    ------
    ModelError
        The first rule broken, in the order of the fields above, those of heads together.
    """

    vocab_size: int
    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    max_seq_len: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    dtype: str = "float64"
    n_kv_heads: int | None = None
    head_size: int | None = None
    tied_head: bool = True

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL_SIZES:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ModelError(
                    "InvalidSize",
                    f"{name} must be a whole number, got {value!r}",
                    name=name,
                    value=value,
                )
        if self.vocab_size == 0:
            raise ModelError("EmptyVocabulary", "vocab_size must be at least 1, got 0")
        if self.d_model == 0:
            raise ModelError("ZeroModelWidth", "d_model must be at least 1, got 0")
        if self.n_heads == 0:
            raise ModelError("ZeroHeadCount", "n_heads must be at least 1, got 0")
        if self.n_kv_heads is not None:
            if self.n_kv_heads == 0 or self.n_heads % self.n_kv_heads:
                raise ModelError(
                    "HeadsNotDivisible",
                    f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.n_kv_heads}",
                    n_heads=self.n_heads,
                    n_kv_heads=self.n_kv_heads,
                )
            if self.n_kv_heads == self.n_heads:  # one model, one configuration
                object.__setattr__(self, "n_kv_heads", None)
        if self.head_size is not None and self.head_size * self.n_heads == self.d_model:
            object.__setattr__(self, "head_size", None)
        if self.head_size is None and self.d_model % self.n_heads:
            raise ModelError(
                "ModelWidthNotDivisible",
                f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}",
                d_model=self.d_model,
                n_heads=self.n_heads,
            )
        if self.head_dim % 2 or self.head_dim == 0:
            source = "d_model / n_heads" if self.head_size is None else "head_size"
            raise ModelError(
                "OddHeadWidth",
                f"head width {source} must be even for rotary pairs, got {self.head_dim}",
                head_dim=self.head_dim,
            )
        if self.d_ff == 0:
            raise ModelError("ZeroFeedForwardWidth", "d_ff must be at least 1, got 0")
        if self.max_seq_len == 0:
            raise ModelError("ZeroPositionCapacity", "max_seq_len must be at least 1, got 0")
        if not math.isfinite(self.rope_theta) or self.rope_theta <= 0.0:
            raise ModelError(
                "InvalidRopeBase",
                f"rope_theta must be finite and > 0, got {self.rope_theta!r}",
                value=self.rope_theta,
            )
        if not math.isfinite(self.rms_norm_eps) or self.rms_norm_eps < 0.0:
            raise ModelError(
                "InvalidRmsEpsilon",
                f"rms_norm_eps must be finite and >= 0, got {self.rms_norm_eps!r}",
                value=self.rms_norm_eps,
            )
        if self.dtype not in DTYPES:
            raise ModelError(
                "UnsupportedDType",
                f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}",
                dtype=self.dtype,
            )
        if not isinstance(self.tied_head, bool):
            raise ModelError(
                "InvalidTiedHead",
                f"tied_head must be True or False, got {self.tied_head!r}",
                value=self.tied_head,
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head, w: ``head_size``, or D / H."""
        return self.d_model // self.n_heads if self.head_size is None else self.head_size

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, K: ``n_kv_heads``, or H."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name to shape of every parameter, in stable order (numerics contract, section 3)."""
        d, f = self.d_model, self.d_ff
        heads, kv_heads = self.n_heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"token_embedding.weight": (self.vocab_size, d)}
        for n in range(self.n_layers):
            shapes[f"blocks.{n}.attention_norm.gain"] = (d,)
            shapes[f"blocks.{n}.attention.query.weight"] = (d, heads)
            shapes[f"blocks.{n}.attention.key.weight"] = (d, kv_heads)
            shapes[f"blocks.{n}.attention.value.weight"] = (d, kv_heads)
            shapes[f"blocks.{n}.attention.output.weight"] = (heads, d)
            shapes[f"blocks.{n}.ffn_norm.gain"] = (d,)
            shapes[f"blocks.{n}.ffn.gate.weight"] = (d, f)
            shapes[f"blocks.{n}.ffn.up.weight"] = (d, f)
            shapes[f"blocks.{n}.ffn.down.weight"] = (f, d)
        shapes["final_norm.gain"] = (d,)
        if not self.tied_head:
            shapes["output_head.weight"] = (self.vocab_size, d)
        return shapes

    @property
    def n_parameters(self) -> int:
        """Number of scalars over all parameters (the tied head counts once)."""
        return sum(math.prod(shape) for shape in self.parameter_shapes().values())

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON; ``from_dict`` reads it back.

        The last three fields are in it only where they say something.
        """
        values = asdict(self)
        return {k: v for k, v in values.items() if k not in _SPECIAL or v != _SPECIAL[k]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """Build from :meth:`to_dict`'s form.

        Raises
        ------
        ModelError
            ``InvalidSize`` naming a missing or unknown key, else as the constructor.
        """
        known = {f.name for f in fields(cls)}
        required = known - {"rope_theta", "rms_norm_eps", "dtype", *_SPECIAL}
        for name in sorted((set(values) - known) | (required - set(values))):
            word = "unknown" if name in values else "missing"
            raise ModelError(
                "InvalidSize",
                f"{word} key {name!r} in the model configuration",
                name=name,
                value=values.get(name),
            )
        return cls(**values)
