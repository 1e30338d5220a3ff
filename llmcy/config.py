"""The shape of a model: checked once, never changed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from llmcy.errors import ModelError

__all__ = ["CONTRACT_VERSION", "ModelConfig"]

CONTRACT_VERSION = 1  # of docs/numerics.md; recorded in runs and model files
DTYPES = ("float64", "float32")


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
        Attention heads, H; ``d_model / n_heads`` must be a whole even number.
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

    Raises
    ------
    ModelError
        The first rule broken, in the order of the fields above.
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

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_heads", "n_layers", "d_ff", "max_seq_len"):
            value = getattr(self, name)
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
        if self.d_model % self.n_heads:
            raise ModelError(
                "ModelWidthNotDivisible",
                f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}",
                d_model=self.d_model,
                n_heads=self.n_heads,
            )
        if self.head_dim % 2:
            raise ModelError(
                "OddHeadWidth",
                f"head width d_model / n_heads must be even for rotary pairs, got {self.head_dim}",
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

    @property
    def head_dim(self) -> int:
        """Width of one attention head, w = D / H."""
        return self.d_model // self.n_heads

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name to shape of every parameter, in stable order (numerics contract, section 3)."""
        d, f = self.d_model, self.d_ff
        shapes: dict[str, tuple[int, ...]] = {"token_embedding.weight": (self.vocab_size, d)}
        for n in range(self.n_layers):
            shapes[f"blocks.{n}.attention_norm.gain"] = (d,)
            for part in ("query", "key", "value", "output"):
                shapes[f"blocks.{n}.attention.{part}.weight"] = (d, d)
            shapes[f"blocks.{n}.ffn_norm.gain"] = (d,)
            shapes[f"blocks.{n}.ffn.gate.weight"] = (d, f)
            shapes[f"blocks.{n}.ffn.up.weight"] = (d, f)
            shapes[f"blocks.{n}.ffn.down.weight"] = (f, d)
        shapes["final_norm.gain"] = (d,)
        return shapes

    @property
    def n_parameters(self) -> int:
        """Number of scalars over all parameters (the tied head counts once)."""
        return sum(math.prod(shape) for shape in self.parameter_shapes().values())

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """Build from :meth:`to_dict`'s form.

        Raises
        ------
        ModelError
            ``InvalidSize`` naming a missing or unknown key, else as the constructor.
        """
        known = {f.name for f in fields(cls)}
        required = known - {"rope_theta", "rms_norm_eps", "dtype"}
        for name in sorted((set(values) - known) | (required - set(values))):
            word = "unknown" if name in values else "missing"
            raise ModelError(
                "InvalidSize",
                f"{word} key {name!r} in the model configuration",
                name=name,
                value=values.get(name),
            )
        return cls(**values)
