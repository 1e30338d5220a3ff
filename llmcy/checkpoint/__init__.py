"""Version-1 checkpoint files: one file, every byte accounted for (docs/formats.md)."""

from llmcy.checkpoint.checkpoint import Checkpoint, version_1_problem
from llmcy.checkpoint.encode import EncodedCheckpoint
from llmcy.checkpoint.inspect import Inspection, inspect_bytes, inspect_file
from llmcy.checkpoint.layout import Descriptor, DType, Role
from llmcy.checkpoint.tokenizer_record import TokenizerRecord

__all__ = [
    "Checkpoint",
    "DType",
    "Descriptor",
    "EncodedCheckpoint",
    "Inspection",
    "Role",
    "TokenizerRecord",
    "inspect_bytes",
    "inspect_file",
    "version_1_problem",
]
