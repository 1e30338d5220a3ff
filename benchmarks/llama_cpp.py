"""llama.cpp without its server: the C functions that the Python package ``xllamacpp`` carries.

Its server adds work of its own to every token.  Structures are taken from the library's functions
for defaults and given back, so little about their layout has to be known here; that is checked.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llmcy.interop.gguf import TABLES, gguf_name
from llmcy.interop.narrow import float32_parameters
from llmcy.state import DecoderModelState

FLOAT32, FLOAT16 = 0, 1  # ggml_type
CONTEXT_ENUMS = range(96, 132, 4)  # where in the context's parameters the types of the cache stand


class _Given(ctypes.Structure):
    """A structure of the library, with room to spare."""

    _fields_ = (("bytes", ctypes.c_uint8 * 512),)


def write_gguf(state: DecoderModelState, path: Path) -> None:
    """The model as llama.cpp reads it, float32, for token ids: without a vocabulary of text."""
    from gguf import GGUFWriter, LlamaFileType

    config = state.config
    writer = GGUFWriter(str(path), "llama", use_temp_file=False)
    writer.add_file_type(int(LlamaFileType.ALL_F32))
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("none")
    for name, array in float32_parameters(state):
        plain = array.ndim == 1 or name in TABLES
        writer.add_tensor(gguf_name(name), array if plain else np.ascontiguousarray(array.T))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """A model, and one context of the default length whose cache holds float32."""

    def __init__(self, path: Path, threads: int) -> None:
        from xllamacpp import xllamacpp

        self.c = c = ctypes.CDLL(xllamacpp.__file__)
        for name in ("llama_model_default_params", "llama_context_default_params",
                     "llama_batch_get_one"):  # fmt: skip
            getattr(c, name).restype = _Given
        for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory",
                     "llama_get_logits", "llama_model_get_vocab"):  # fmt: skip
            getattr(c, name).restype = ctypes.c_void_p
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda level, text, _: None
        )
        c.llama_log_set(self._quiet, None)
        c.llama_backend_init()
        self._model = ctypes.c_void_p(
            c.llama_model_load_from_file(os.fsencode(path), c.llama_model_default_params())
        )
        if not self._model.value:
            raise RuntimeError(f"llama.cpp cannot read {path}")
        vocabulary = ctypes.c_void_p(c.llama_model_get_vocab(self._model))
        self.vocab_size: int = c.llama_vocab_n_tokens(vocabulary)
        self._context = ctypes.c_void_p(c.llama_init_from_model(self._model, self._parameters()))
        if not self._context.value:
            raise RuntimeError("llama.cpp makes no context")
        c.llama_set_n_threads(self._context, threads, threads)
        self._memory = ctypes.c_void_p(c.llama_get_memory(self._context))

    def _parameters(self) -> _Given:
        given = self.c.llama_context_default_params()
        words = np.frombuffer(given.bytes, np.int32)
        pairs = [at for at in CONTEXT_ENUMS if (words[at // 4 : at // 4 + 2] == FLOAT16).all()]
        if len(pairs) != 1:
            raise RuntimeError("the types of keys and values are not where they were")
        words[pairs[0] // 4 : pairs[0] // 4 + 2] = FLOAT32
        return given

    def clear(self) -> None:
        """Forget all tokens."""
        self.c.llama_memory_clear(self._memory, ctypes.c_bool(False))

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Take tokens in; logits behind the last one, in memory of the library."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        status = self.c.llama_decode(self._context, self.c.llama_batch_get_one(ids, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode: {status}")
        address = self.c.llama_get_logits(self._context)
        row = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(row, (self.vocab_size,))

    def facts(self) -> str:
        """What it was built for."""
        self.c.llama_print_system_info.restype = ctypes.c_char_p
        return str(self.c.llama_print_system_info().decode())
