"""The data of a run in its folder: written once, checked whenever the run continues."""

from __future__ import annotations

from llmcy.data import TextDataset
from llmcy.data.split_record import SplitRecord
from llmcy.errors import LlmcyError, RunError
from llmcy.run.canonical import sha256_hex
from llmcy.run.directory import RunDirectory, json_bytes
from llmcy.run.model_file import tokenizer_from_record, tokenizer_record
from llmcy.run.tokens import encode_tokens, open_tokens
from llmcy.tokenizer import LiteralTokenizer

__all__ = ["read_dataset", "write_dataset"]


def write_dataset(run: RunDirectory, dataset: TextDataset) -> dict[str, str]:
    """Store split, tokenizer and tokens; return the digests of the data.

    Raises
    ------
    RunError
        ``Io`` naming the file.
    """
    split = json_bytes(dataset.split.to_dict())
    tokenizer = json_bytes(tokenizer_record(dataset.tokenizer))
    tokens, index = encode_tokens(dataset.documents)
    run.write_bytes("split.json", split)
    run.write_bytes("tokenizer.json", tokenizer)
    run.write_bytes("tokens.bin", tokens)
    run.write_json("tokens.json", index)
    return {
        "corpus": dataset.split.corpus_digest,
        "split": sha256_hex(split),
        "tokenizer": sha256_hex(tokenizer),
        "tokens": index["sha256"],
    }


def read_dataset(run: RunDirectory) -> tuple[TextDataset, dict[str, str]]:
    """The stored data, its tokens mapped, and the digests of what is there now.

    Raises
    ------
    RunError
        ``Io``; ``InvalidTokens``; ``RunChanged`` for a split or tokenizer that is none.
    """
    split_text, tokenizer_text = run.read_bytes("split.json"), run.read_bytes("tokenizer.json")
    try:
        split = SplitRecord.from_json(split_text)
    except LlmcyError as error:
        raise _changed("split", error) from error
    try:
        tokenizer = tokenizer_from_record(run.read_json("tokenizer.json"))
        if isinstance(tokenizer, LiteralTokenizer):
            raise ValueError("a list of pieces encodes no text")
    except (LlmcyError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, LlmcyError) and error.kind == "MissingPackage":
            raise  # nothing has changed
        raise _changed("tokenizer", error) from error
    documents, tokens = open_tokens(run.path / "tokens.bin", run.path / "tokens.json")
    digests = {
        "corpus": split.corpus_digest,
        "split": sha256_hex(split_text),
        "tokenizer": sha256_hex(tokenizer_text),
        "tokens": tokens,
    }
    return TextDataset(tokenizer, None, documents, split), digests


def _changed(field: str, error: Exception) -> RunError:
    return RunError(
        "RunChanged",
        f"the run has changed: its {field} cannot be used: {error}",
        cause=error,
        field=f"data.{field}",
        expected=None,
        actual=str(error),
    )
