"""GGUF import: Llama models whose tensors are not quantised, with a byte-level BPE tokenizer.

Names and layout are those of :mod:`llmcy.interop.gguf`: weights are transposed and not permuted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy.config import ModelConfig
from llmcy.errors import InteropError
from llmcy.interop.files import corrupt, io_error
from llmcy.interop.gguf import TABLES, gguf_name, gguf_package
from llmcy.interop.gguf_vocabulary import GgufVocabulary
from llmcy.interop.imported import ImportedModel
from llmcy.interop.narrow import state_of

__all__ = ["import_gguf"]

Array = NDArray[Any]
STORED = ("F64", "F32", "F16", "BF16")


def import_gguf(path: str | os.PathLike[str], *, dtype: str = "float32") -> ImportedModel:
    """Read a ``.gguf`` file of a Llama model; needs ``pip install 'llmcy[hf]'``.

    Parameters
    ----------
    path
        The file: tensors in F64, F32, F16 or BF16; a tokenizer of the kinds that
        `llmcy.interop.export_gguf` writes.
    dtype
        Type of the model: float32 keeps all but F64, which it rounds; float64 keeps all.

    Raises
    ------
    InteropError
        ``UnsupportedFeature`` for quantised tensors and for what llmcy does not compute;
        ``UnsupportedTokenizer``; ``CorruptFile``, ``Io``, ``MissingPackage``; ``MissingTensor``,
        ``UnknownTensor``, ``TensorShape``, ``NonFinite``.
    ModelError
        For sizes that make no model.

    Notes
    -----
    The file holds the base of the rotary frequencies and the norm's epsilon as float32.  Each is
    read as the shortest decimal with that value: 1e-05, not 9.999999747378752e-06.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
    except OSError as error:
        raise io_error("read", file, error) from error
    if magic != b"GGUF":
        raise corrupt(file, "it does not begin with GGUF")
    package = gguf_package("reading")
    try:
        reader = package.GGUFReader(str(file))
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except Exception as error:  # the library raises whatever its parsing meets
        raise corrupt(file, f"{type(error).__name__}: {error}") from error
    config = _config(file, fields, tensors, dtype)
    wanted = config.parameter_shapes()
    unknown = sorted(set(tensors) - {gguf_name(name) for name in wanted})
    if unknown:
        raise InteropError(
            "UnknownTensor",
            f"tensor {unknown[0]!r} has no place in a Llama model as llmcy computes it",
            name=unknown[0],
        )
    named = {name: _parameter(tensors, name, shape, dtype) for name, shape in wanted.items()}
    try:
        vocabulary = _vocabulary(package, fields, config.vocab_size)
    except (TypeError, AttributeError) as error:
        raise corrupt(file, f"tokenizer: {type(error).__name__}: {error}") from error
    except ValueError as error:
        if isinstance(error, InteropError):
            raise
        raise corrupt(file, f"tokenizer: {error}") from error
    return ImportedModel(state_of(config, named), vocabulary.tokenizer())


def _config(file: Path, fields: dict[str, Any], tensors: dict[str, Any], dtype: str) -> ModelConfig:
    architecture = fields.get("general.architecture")
    _only(architecture == "llama", "general.architecture", architecture)
    scaling = fields.get("llama.rope.scaling.type", "none")
    _only(scaling == "none", "llama.rope.scaling.type", scaling)
    experts = fields.get("llama.expert_count", 0)
    _only(not experts, "llama.expert_count", experts)
    table = tensors.get("token_embd.weight")
    if table is None:
        raise InteropError("MissingTensor", "there is no tensor 'token_embd.weight'",
                           name="token_embd.weight")  # fmt: skip
    try:
        d_model, n_heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
        head_dim = fields.get("llama.attention.key_length", d_model // max(1, n_heads))
        config = ModelConfig(
            vocab_size=int(table.shape[-1]),
            d_model=d_model,
            n_heads=n_heads,
            n_layers=fields["llama.block_count"],
            d_ff=fields["llama.feed_forward_length"],
            max_seq_len=fields["llama.context_length"],
            rope_theta=_decimal(fields.get("llama.rope.freq_base", 10000.0)),
            rms_norm_eps=_decimal(fields["llama.attention.layer_norm_rms_epsilon"]),
            dtype=dtype,
            n_kv_heads=fields.get("llama.attention.head_count_kv", n_heads),
            head_size=head_dim,
            tied_head="output.weight" not in tensors,
        )
    except KeyError as error:
        raise corrupt(file, f"it does not say {error.args[0]}") from error
    except TypeError as error:
        raise corrupt(file, f"a size is no number: {error}") from error
    for name in ("llama.attention.value_length", "llama.rope.dimension_count"):
        value = fields.get(name, head_dim)
        _only(value == head_dim, name, value)
    return config


def _decimal(value: float) -> float:
    return float(str(np.float32(value)))


def _parameter(tensors: dict[str, Any], name: str, shape: tuple[int, ...], dtype: str) -> Array:
    there = gguf_name(name)
    if there not in tensors:
        raise InteropError("MissingTensor", f"there is no tensor {there!r}", name=there)
    tensor = tensors[there]
    kind = tensor.tensor_type.name
    _only(kind in STORED, f"the type of tensor {there!r}", kind)
    transposed = len(shape) == 2 and name not in TABLES
    stored_shape = shape[::-1] if transposed else shape
    actual = tuple(int(size) for size in reversed(tensor.shape))
    if actual != stored_shape:
        raise InteropError(
            "TensorShape",
            f"tensor {there!r} has shape {actual}, the sizes ask for {stored_shape}",
            name=there,
            expected=stored_shape,
            actual=actual,
        )
    data = np.asarray(tensor.data)
    if kind == "BF16":  # the upper half of a float32
        data = (data.reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    values = data.reshape(stored_shape)
    with np.errstate(over="ignore"):
        ours = (values.T if transposed else values).astype(dtype)
    return np.array(ours, order="C")


def _vocabulary(package: Any, fields: dict[str, Any], vocab_size: int) -> GgufVocabulary:
    model = fields.get("tokenizer.ggml.model")
    if model != "gpt2":
        problem = f"the file's tokenizer is of the kind {model!r}, not 'gpt2'"
        raise InteropError("UnsupportedTokenizer", problem, problem=problem)
    tokens = tuple(fields.get("tokenizer.ggml.tokens", ()))
    if len(tokens) != vocab_size:
        problem = f"the file has {len(tokens)} tokens, the model {vocab_size}"
        raise InteropError("UnsupportedTokenizer", problem, problem=problem)
    normal = int(package.TokenType.NORMAL)
    numbers = fields.get("tokenizer.ggml.token_type") or [normal] * vocab_size
    return GgufVocabulary(
        tokens,
        tuple(package.TokenType(number).name for number in numbers),
        tuple(fields.get("tokenizer.ggml.merges", ())),
        str(fields.get("tokenizer.ggml.pre")),
        fields.get("tokenizer.ggml.bos_token_id"),
        fields.get("tokenizer.ggml.eos_token_id"),
    )


def _only(right: bool, name: str, value: object) -> None:
    if not right:
        raise InteropError(
            "UnsupportedFeature", f"{name} is {value!r}, which llmcy cannot read or compute",
            name=name, value=value,
        )  # fmt: skip
