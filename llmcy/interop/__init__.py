"""Models in other programs' formats: Hugging Face folders, GGUF, llama2.c (docs/interop.md)."""

from llmcy.interop.gguf import export_gguf
from llmcy.interop.gguf_import import import_gguf
from llmcy.interop.hf_llama import export_hf, import_hf
from llmcy.interop.imported import ImportedModel
from llmcy.interop.llama2c import export_llama2c, import_llama2c
from llmcy.interop.tokenizer_json import byte_pair_from_json, byte_pair_to_json

__all__ = [
    "ImportedModel",
    "byte_pair_from_json",
    "byte_pair_to_json",
    "export_gguf",
    "export_hf",
    "export_llama2c",
    "import_gguf",
    "import_hf",
    "import_llama2c",
]
