"""GGUF export, for llama.cpp and what is built on it.

The architecture ``llama`` of such files turns rotary neighbours, as llmcy does, so weights are
transposed and nothing is permuted.  All tensors are float32.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy.config import ModelConfig
from llmcy.errors import InteropError
from llmcy.interop.files import io_error
from llmcy.interop.gguf_vocabulary import GgufVocabulary
from llmcy.interop.narrow import float32_parameters
from llmcy.state import DecoderModelState
from llmcy.tokenizer import Tokenizer

__all__ = ["TABLES", "export_gguf", "gguf_name", "gguf_package"]

Array = NDArray[Any]

PARTS = {
    "attention_norm.gain": "attn_norm.weight",
    "attention.query.weight": "attn_q.weight",
    "attention.key.weight": "attn_k.weight",
    "attention.value.weight": "attn_v.weight",
    "attention.output.weight": "attn_output.weight",
    "ffn_norm.gain": "ffn_norm.weight",
    "ffn.gate.weight": "ffn_gate.weight",
    "ffn.up.weight": "ffn_up.weight",
    "ffn.down.weight": "ffn_down.weight",
}
WHOLE = {
    "token_embedding.weight": "token_embd.weight",
    "final_norm.gain": "output_norm.weight",
    "output_head.weight": "output.weight",
}
TABLES = {"token_embedding.weight", "output_head.weight"}


def gguf_name(name: str) -> str:
    """``blocks.3.ffn.up.weight`` is ``blk.3.ffn_up.weight`` there."""
    if name in WHOLE:
        return WHOLE[name]
    _, layer, part = name.split(".", 2)
    return f"blk.{layer}.{PARTS[part]}"


def export_gguf(
    state: DecoderModelState,
    tokenizer: Tokenizer,
    path: str | os.PathLike[str],
    *,
    name: str = "llmcy",
) -> Path:
    """Write a ``.gguf`` file that llama.cpp runs; needs ``pip install 'llmcy[hf]'``.

    Parameters
    ----------
    state
        The model; float64 parameters are rounded once to float32.  A tied head is written once.
    tokenizer
        A byte-pair tokenizer, or a byte-level BPE of a ``tokenizer.json`` that cuts texts as GPT-2,
        SmolLM or Llama 3 does.  llama.cpp cuts text into words first, always; the byte-pair
        tokenizer here does not, and where one of its rules reaches over a cut of GPT-2's pattern,
        the ids of a text differ.  Ids given as ids, and decoding, do not.
    path
        The file; replaced when it exists.
    name
        Stands in the file as the model's name.

    Raises
    ------
    InteropError
        ``MissingPackage``, ``UnsupportedTokenizer``, ``DuplicateToken``, ``NotRepresentable``,
        ``Io``.
    """
    vocabulary = GgufVocabulary.of(tokenizer)
    tensors = [
        (gguf_name(name), _to_gguf(name, array)) for name, array in float32_parameters(state)
    ]
    file = Path(path)
    temporary = file.with_name(f".{file.name}.tmp-{os.getpid()}")
    package = gguf_package("writing")
    writer = package.GGUFWriter(str(temporary), "llama", use_temp_file=False)
    _describe(writer, package, state.config, vocabulary, name)
    for tensor_name, array in tensors:
        writer.add_tensor(tensor_name, array)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(temporary, file)
    except OSError as error:
        raise io_error("write", file, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return file


def gguf_package(doing: str) -> Any:
    """The package ``gguf``.

    Raises
    ------
    InteropError
        ``MissingPackage``.
    """
    try:
        import gguf
    except ImportError as error:
        raise InteropError(
            "MissingPackage",
            f"{doing} a GGUF file needs the package gguf: pip install 'llmcy[hf]'",
            package="gguf",
            extra="hf",
        ) from error
    return gguf


def _to_gguf(name: str, array: Array) -> Array:
    return array if array.ndim == 1 or name in TABLES else np.ascontiguousarray(array.T)


def _describe(
    writer: Any, package: Any, config: ModelConfig, vocabulary: GgufVocabulary, name: str
) -> None:
    types = package.TokenType
    writer.add_name(name)
    writer.add_file_type(int(package.LlamaFileType.ALL_F32))
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.cut)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types([types[kind] for kind in vocabulary.kinds])
    writer.add_token_merges(list(vocabulary.merges))
    if vocabulary.bos_id is not None:
        writer.add_bos_token_id(vocabulary.bos_id)
    if vocabulary.eos_id is not None:
        writer.add_eos_token_id(vocabulary.eos_id)
    writer.add_add_bos_token(vocabulary.bos_id is not None)
    writer.add_add_eos_token(False)
