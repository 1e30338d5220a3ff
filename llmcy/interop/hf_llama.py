"""Hugging Face Llama folders: the only file that knows their names.

Three differences to a decoder here, all in the weights: a projection is stored (out, in) and not
(in, out); rotary heads turn halves and not neighbours (`llmcy.interop.rotary_order`); and a gain is
called a weight.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as save_tensors

from llmcy.config import ModelConfig
from llmcy.errors import InteropError
from llmcy.interop.files import as_json, new_folder, read_bytes, read_json, write
from llmcy.interop.hf_config import config_from_hf, config_to_hf
from llmcy.interop.imported import ImportedModel, numbered_tokens
from llmcy.interop.narrow import float32_parameters, state_of
from llmcy.interop.rotary_order import adjacent_to_half, half_to_adjacent
from llmcy.interop.tensor_files import TensorFiles
from llmcy.interop.tokenizer_json import byte_pair_from_json, tokenizer_files
from llmcy.state import DecoderModelState
from llmcy.tokenizer import JsonTokenizer, Tokenizer

__all__ = ["export_hf", "hf_name", "import_hf"]

Array = NDArray[Any]

PARTS = {
    "attention_norm.gain": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "ffn_norm.gain": "post_attention_layernorm.weight",
    "ffn.gate.weight": "mlp.gate_proj.weight",
    "ffn.up.weight": "mlp.up_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
}
WHOLE = {
    "token_embedding.weight": "model.embed_tokens.weight",
    "final_norm.gain": "model.norm.weight",
    "output_head.weight": "lm_head.weight",
}
HEAD = WHOLE["output_head.weight"]
TABLES = {"token_embedding.weight", "output_head.weight"}  # (V, D) in both
IGNORED = ".rotary_emb.inv_freq"  # a table that old files carry along


def hf_name(name: str) -> str:
    """``blocks.3.ffn.up.weight`` is ``model.layers.3.mlp.up_proj.weight`` there."""
    if name in WHOLE:
        return WHOLE[name]
    _, layer, part = name.split(".", 2)
    return f"model.layers.{layer}.{PARTS[part]}"


# --------------------------------------------------------------------------- export
def export_hf(
    state: DecoderModelState, tokenizer: Tokenizer, folder: str | os.PathLike[str]
) -> Path:
    """Write a folder that ``transformers`` opens as a ``LlamaForCausalLM``.

    Parameters
    ----------
    state
        The model.  Float64 parameters are rounded once to float32.
    tokenizer
        Its tokenizer; a list of pieces has no form there and is left out.
    folder
        Does not exist, or is empty.

    Returns
    -------
    pathlib.Path
        The folder, with ``config.json``, ``generation_config.json``, ``model.safetensors``, and,
        for a tokenizer of text, ``tokenizer.json`` and ``tokenizer_config.json``.

    Raises
    ------
    InteropError
        ``NotRepresentable``, ``DuplicateToken``, ``FolderNotEmpty``, ``Io``.
    """
    config = state.config
    tensors = {
        hf_name(name): _to_hf(name, array, config) for name, array in float32_parameters(state)
    }
    controls = tokenizer.bos_id, tokenizer.eos_id
    files = {
        "config.json": as_json(config_to_hf(config, *controls)),
        "generation_config.json": as_json(
            {"_from_model_config": True, "bos_token_id": controls[0], "eos_token_id": controls[1]}
        ),
        **tokenizer_files(tokenizer, config.max_seq_len),
        "model.safetensors": save_tensors(tensors, metadata={"format": "pt"}),
    }
    path = new_folder(folder)
    for name, data in files.items():
        write(path / name, data)
    return path


def _to_hf(name: str, array: Array, config: ModelConfig) -> Array:
    if array.ndim == 1 or name in TABLES:
        return array
    weight = np.ascontiguousarray(array.T)
    if name.endswith("query.weight"):
        return adjacent_to_half(weight, config.n_heads)
    if name.endswith("key.weight"):
        return adjacent_to_half(weight, config.kv_heads)
    return weight


# --------------------------------------------------------------------------- import
def import_hf(folder: str | os.PathLike[str], *, dtype: str = "float32") -> ImportedModel:
    """Read a folder of a Llama model: tied or untied, grouped or not, any even head width.

    Parameters
    ----------
    folder
        With ``config.json`` and ``model.safetensors`` (or several files and their index).  Its
        ``tokenizer.json``, if there is one, becomes the model's tokenizer.
    dtype
        Type of the model: float32 keeps stored float32, float16 and bfloat16 values exactly and
        rounds float64; float64 keeps all of them.

    Raises
    ------
    InteropError
        ``UnsupportedFeature`` for what llmcy does not compute; ``NotAModel``, ``CorruptFile``,
        ``Io``; ``MissingTensor``, ``UnknownTensor``, ``DuplicateTensor``, ``TensorShape``,
        ``TensorType``, ``NonFinite``.
    ModelError
        For sizes that make no model.
    TokenizerError
        As `JsonTokenizer`.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        problem = "no config.json in it"
        raise InteropError(
            "NotAModel", f"{str(path)!r}: {problem}", path=str(path), problem=problem
        )
    values = read_json(path / "config.json")
    config = config_from_hf(values, dtype, path / "config.json")
    files = TensorFiles(path)
    files.shape(hf_name("token_embedding.weight"))
    if config.n_layers > len(list(files)):  # before as many names are made
        files.shape(hf_name(f"blocks.{config.n_layers - 1}.ffn.down.weight"))
    named: dict[str, Array] = {}
    for name, shape in config.parameter_shapes().items():
        stored_shape = shape if len(shape) == 1 or name in TABLES else shape[::-1]
        there = hf_name(name)
        if files.shape(there) != stored_shape:
            raise InteropError(
                "TensorShape",
                f"tensor {there!r} has shape {files.shape(there)}, the configuration asks for "
                f"{stored_shape}",
                name=there,
                expected=stored_shape,
                actual=files.shape(there),
            )
        named[name] = _from_hf(name, files.read(there, np.dtype(dtype)), config)
    _check_others(files, {hf_name(name) for name in named}, named, config)
    state = state_of(config, named)
    return ImportedModel(state, _tokenizer(path, config.vocab_size))


def _from_hf(name: str, array: Array, config: ModelConfig) -> Array:
    if array.ndim == 1 or name in TABLES:
        return array
    if name.endswith("query.weight"):
        array = half_to_adjacent(array, config.n_heads)
    elif name.endswith("key.weight"):
        array = half_to_adjacent(array, config.kv_heads)
    return np.ascontiguousarray(array.T)


def _check_others(
    files: TensorFiles, used: set[str], named: dict[str, Array], config: ModelConfig
) -> None:
    """Every other tensor must be one that changes nothing."""
    for name in files:
        if name in used or name.endswith(IGNORED):
            continue
        if name == HEAD and config.tied_head:  # written twice by some programs
            table = named["token_embedding.weight"]
            head = files.read(name, table.dtype)
            if head.shape == table.shape and head.tobytes() == table.tobytes():
                continue
            raise InteropError(
                "UnsupportedFeature",
                f"tie_word_embeddings is true, but {HEAD} differs from the embedding",
                name="tie_word_embeddings",
                value=True,
            )
        raise InteropError(
            "UnknownTensor", f"tensor {name!r} belongs to nothing that llmcy computes", name=name
        )


def _tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        return numbered_tokens(vocab_size)
    own = byte_pair_from_json(read_bytes(file))
    if own is not None and own.vocab_size == vocab_size:
        return own
    return JsonTokenizer.from_file(file, vocab_size=vocab_size)
