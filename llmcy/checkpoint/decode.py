"""Loading, from bytes to content: every check in its place, nothing exposed before the last one."""

from __future__ import annotations

from llmcy.checkpoint.decode_header import (
    check_fixed_header,
    check_record_counts,
    check_record_table,
    read_variable_header,
)
from llmcy.checkpoint.decode_state import (
    check_relations,
    decode_model,
    decode_optimizer,
    decode_tokenizer,
)
from llmcy.checkpoint.encode import Content, encode_image
from llmcy.errors import CheckpointError

__all__ = ["decode"]


def decode(data: bytes) -> Content:
    """Validate a version-1 file and return what it stores, in memory of its own.

    Parameters
    ----------
    data
        The whole file.

    Raises
    ------
    CheckpointError
        The first check that fails, in the order of docs/formats.md, "Loading".
    """
    try:
        return _decode(memoryview(data))
    except MemoryError as cause:
        raise CheckpointError(
            "Allocation", "no memory for the file's content", cause=cause, context="content"
        ) from cause


def _decode(data: memoryview) -> Content:
    header_length = check_fixed_header(data)  # A
    header = read_variable_header(data, header_length)  # B
    check_record_table(header, header_length, len(data))  # C
    check_record_counts(header)  # D
    tokenizer = decode_tokenizer(data, header)  # E
    model = decode_model(data, header)  # F
    optimizer, moment_shapes = decode_optimizer(data, header)  # G
    check_relations(  # H
        tokenizer.vocab_size, model, optimizer, header.selected_step, moment_shapes
    )
    content = Content(tokenizer, model, optimizer, header.selected_step, header.rng_state)
    if not encode_image(content).equals(data):  # I
        text = "the file is valid but not in the one form version 1 writes"
        raise CheckpointError("NonCanonical", text, text=text)
    return content
