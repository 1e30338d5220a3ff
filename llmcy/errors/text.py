"""Corpora, windows and tokenizers."""

from __future__ import annotations

from llmcy.errors.base import LlmcyError

__all__ = [
    "DataError",
    "TokenizerError",
]


class DataError(LlmcyError, ValueError):
    """Corpora, splits, windows and batches."""

    KINDS = {
        "InvalidSize": ("name", "value"),
        # JSON corpora
        "InvalidJson": ("document", "problem"),
        "Empty": (),
        "BadIdentifier": ("position", "field"),
        "EmptyText": ("position",),
        "DuplicateId": ("id", "first", "position"),
        "DuplicateText": ("first", "position"),
        # split manifests
        "UnsupportedSchemaVersion": ("found",),
        "UnknownStrategy": ("found",),
        "CorpusChecksumMismatch": ("expected", "actual"),
        "EmptyPartition": ("partition",),
        "PartitionOrder": ("partition", "id"),
        "UnknownDocument": ("partition", "id"),
        "RepeatedDocument": ("partition", "id"),
        "UnlistedDocument": ("id",),
        "GroupSplit": ("group", "first", "id"),
        # text sources and their split
        "NoSuchSource": ("source",),
        "NoTextFiles": ("source",),
        "NoDocuments": (),
        "UnreadableSource": ("path",),
        "InvalidRecord": ("path", "line"),
        "SplitManifestMissing": ("path",),
        "ManifestNeedsOneCorpus": ("sources",),
        "InvalidFraction": ("name", "value"),
        "SplitRecordMismatch": ("field", "expected", "actual"),
        "NoWindows": ("partition", "context_length", "longest"),
        # windows
        "ZeroContextLength": (),
        "ZeroStride": (),
        "ContextLengthOverflow": ("context_length",),
        # mini-batches
        "ZeroBatchSize": (),
        "EmptyDocumentId": (),
        "InvalidTokenId": ("id", "position", "value"),
        "PartitionMismatch": ("document_index", "expected", "actual"),
        "DuplicateDocumentId": ("id", "first", "repeated"),
        "WindowCountOverflow": (),
        "TokenCountOverflow": (),
        "AllocationFailed": ("elements",),
        # token-mean accumulation
        "NonFiniteLoss": ("value",),
        "ZeroGradientWidth": (),
        "NonFiniteGradient": ("coordinate", "value"),
        "GradientWidthMismatch": ("expected", "actual"),
        "NonFiniteAccumulation": ("quantity", "coordinate"),
        "EmptyAccumulator": (),
        "ContributionCountMismatch": ("expected", "actual"),
    }


class TokenizerError(LlmcyError, ValueError):
    """Learning, building and applying tokenizers."""

    KINDS = {
        "InvalidSize": ("name", "value"),
        "AllocationFailed": ("n_bytes",),
        "TextTooLarge": ("n_bytes", "maximum"),
        # learning
        "TooManyMerges": ("requested", "maximum"),
        "NameCountMismatch": ("expected", "actual"),
        # building
        "LayoutOverflow": ("merge_count",),
        "InvalidPair": ("rank",),
        "UnknownMergeOperand": ("rank", "token_id"),
        "DuplicateMergePair": ("rank", "left", "right"),
        "EmptyVocabulary": (),
        "EmptyPiece": ("token_id",),
        "DuplicatePiece": ("token_id", "first"),
        "MissingPackage": ("package", "extra"),
        "InvalidTokenizerFile": ("problem",),
        "Io": ("path",),
        # encoding and decoding
        "InvalidText": ("position",),
        "InvalidTokenIds": (),
        "ControlTokenInContent": ("position", "token_id"),
        "UnknownToken": ("position", "token_id"),
        "DocumentTooShort": ("length",),
        "ExpectedBos": ("found",),
        "ExpectedEos": ("found",),
        "InteriorControlToken": ("position", "token_id"),
        "InvalidUtf8": ("valid_up_to", "error_len"),
    }
