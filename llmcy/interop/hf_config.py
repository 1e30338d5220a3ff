"""``config.json`` of a Hugging Face Llama model, in both directions.

Everything in such a file that changes what the model computes is either understood or refused by
name.  The base of the rotary frequencies stands in two places, depending on the age of the file:
``rope_theta`` at the top, or inside ``rope_parameters``.  Written are both, because a reader of
the older kind silently takes 10000 when its own key is missing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

from llmcy.config import ModelConfig
from llmcy.errors import InteropError
from llmcy.interop.files import corrupt

__all__ = ["config_from_hf", "config_to_hf"]

DEFAULT_THETA = 10000.0
# what transformers takes when a key is missing
DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
# keys that change the computation, and the only values that llmcy computes
ONLY: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu", "swish", None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "quantization_config": (None,),
    "sliding_window": (None,),
    "partial_rotary_factor": (1.0, None),
}


def config_to_hf(
    config: ModelConfig, bos_token_id: int | None, eos_token_id: int | None
) -> dict[str, Any]:
    """The values of ``config.json`` for a float32 copy of the model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied_head,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "torch_dtype": "float32",
        "dtype": "float32",
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
        "use_cache": True,
    }


def config_from_hf(values: dict[str, Any], dtype: str, path: Path) -> ModelConfig:
    """The configuration of an imported model.

    Parameters
    ----------
    values
        Content of ``config.json``.
    dtype
        Type that the model shall compute in.
    path
        Of the file, for messages.

    Raises
    ------
    InteropError
        ``UnsupportedFeature`` with name and value of the first setting that llmcy does not
        compute; ``CorruptFile`` for a key that is missing or of the wrong kind.
    ModelError
        For sizes that make no model.
    """
    architectures = values.get("architectures") or ["LlamaForCausalLM"]
    if architectures != ["LlamaForCausalLM"]:
        _unsupported("architectures", architectures)
    for name, allowed in ONLY.items():
        value = values.get(name)
        if name in values and value not in allowed:
            _unsupported(name, value)
    if "model_type" not in values:
        raise corrupt(path, "model_type is missing")
    heads = _size(values, "num_attention_heads", path)
    width = _size(values, "hidden_size", path)
    head_dim = None if values.get("head_dim") is None else _size(values, "head_dim", path)
    kv_heads = values.get("num_key_value_heads")
    tied = values.get("tie_word_embeddings", DEFAULTS["tie_word_embeddings"])
    if not isinstance(tied, bool):
        raise corrupt(path, f"tie_word_embeddings must be true or false, got {tied!r}")
    return ModelConfig(
        vocab_size=_size(values, "vocab_size", path),
        d_model=width,
        n_heads=heads,
        n_layers=_size(values, "num_hidden_layers", path),
        d_ff=_size(values, "intermediate_size", path),
        max_seq_len=_size(values, "max_position_embeddings", path),
        rope_theta=_rope_theta(values, path),
        rms_norm_eps=_number(values, "rms_norm_eps", path),
        dtype=dtype,
        n_kv_heads=None if kv_heads is None else _size(values, "num_key_value_heads", path),
        head_size=head_dim,
        tied_head=tied,
    )


def _rope_theta(values: dict[str, Any], path: Path) -> float:
    """The base, from either place; scaled rotary positions are refused."""
    thetas = [_number(values, "rope_theta", path)] if "rope_theta" in values else []
    for name in ("rope_scaling", "rope_parameters"):
        described = values.get(name)
        if described is None:
            continue
        if not isinstance(described, dict):
            raise corrupt(path, f"{name} must be an object, got {described!r}")
        kind = described.get("rope_type", described.get("type", "default"))
        if kind != "default":
            _unsupported(f"{name}.rope_type", kind)
        partial = described.get("partial_rotary_factor", 1.0)
        if partial != 1.0:
            _unsupported(f"{name}.partial_rotary_factor", partial)
        if described.get("rope_theta") is not None:
            thetas.append(_number(described, "rope_theta", path))
    if len(set(thetas)) > 1:
        raise corrupt(path, f"rope_theta is given twice, as {thetas[0]!r} and {thetas[1]!r}")
    return thetas[0] if thetas else DEFAULT_THETA


def _size(values: dict[str, Any], name: str, path: Path) -> int:
    value = values.get(name, DEFAULTS.get(name))
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise corrupt(path, f"{name} must be a whole number, got {value!r}")
    return value


def _number(values: dict[str, Any], name: str, path: Path) -> float:
    value = values.get(name, DEFAULTS.get(name))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise corrupt(path, f"{name} must be a finite number, got {value!r}")
    return float(value)


def _unsupported(name: str, value: Any) -> NoReturn:
    raise InteropError(
        "UnsupportedFeature",
        f"this model has {name} = {value!r}, which llmcy does not compute",
        name=name,
        value=value,
    )
