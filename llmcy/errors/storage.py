"""Files and folders: checkpoints, run folders, formats of other programs."""

from __future__ import annotations

from llmcy.errors.base import LlmcyError

__all__ = [
    "CheckpointError",
    "FileError",
    "InteropError",
    "RunError",
]


class FileError(LlmcyError, OSError):
    """Replacing a file in one visible step."""

    KINDS = {
        "NoFileName": ("path",),
        "UnsupportedAtomicReplacement": (),
        "NoSpace": ("path", "needed", "free"),
        "Io": ("operation", "path"),
    }


class CheckpointError(LlmcyError, ValueError):
    """Creating, reading and writing checkpoints.

    The kinds and the order in which they are raised are part of the format (docs/formats.md).
    """

    KINDS = {
        "InvalidMagic": (),
        "UnsupportedVersion": ("found",),
        "UnsupportedEndianness": ("found",),
        "UnsupportedTokenizerLayout": ("found",),
        "UnsupportedRngAlgorithm": ("found",),
        "Truncated": ("context",),
        "FileExtent": ("header", "payload", "actual"),
        "ChecksumMismatch": ("expected", "actual"),
        "UnknownTokenizerKind": ("tag",),
        "UnknownDType": ("tag",),
        "UnknownTensorRole": ("tag",),
        "InvalidUtf8": ("context",),
        "SizeOverflow": ("context",),
        "Allocation": ("context",),
        "VocabularyMismatch": ("tokenizer", "decoder"),
        "StepMismatch": ("selected", "optimizer"),
        "OptimizerNames": ("expected", "actual"),
        "OptimizerShape": ("name", "model", "optimizer"),
        "Tokenizer": ("text",),
        "Layout": ("text",),
        "NonCanonical": ("text",),
        "UnsupportedAtomicReplacement": (),
        "Io": ("operation", "path"),
        "Model": (),
        "Trainer": (),
        "Tensor": (),
        "Initialization": (),
        "Bpe": (),
        "AdamW": (),
        "AdamWState": (),
        # not in the published list of kinds: misuse that only this package can meet
        "UnsupportedModelDType": ("dtype",),
        "UnsupportedModelShape": ("name", "value"),
        "NotSealed": ("actual",),
        "Consumed": (),
    }


class InteropError(LlmcyError, ValueError):
    """Models in the formats of other programs."""

    KINDS = {
        "MissingPackage": ("package", "extra"),
        "NotAModel": ("path", "problem"),
        "CorruptFile": ("path", "problem"),
        "Io": ("operation", "path"),
        "FolderNotEmpty": ("path",),
        # what another format says and llmcy does not do, and the reverse
        "UnsupportedFeature": ("name", "value"),
        "UnsupportedTokenizer": ("problem",),
        "DuplicateToken": ("token_id", "first"),
        "NotRepresentable": ("name", "index", "value"),
        # tensors of a file
        "MissingTensor": ("name",),
        "UnknownTensor": ("name",),
        "DuplicateTensor": ("name",),
        "TensorShape": ("name", "expected", "actual"),
        "TensorType": ("name", "dtype"),
        "NonFinite": ("name", "index", "value"),
    }


class RunError(LlmcyError, RuntimeError):
    """Run folders and model files."""

    KINDS = {
        "NotTheSameKind": ("folder", "file"),
        "FolderNotEmpty": ("path",),
        "Io": ("operation", "path"),
        "NoMeasurements": ("path", "problem"),
        "NotARun": ("path",),
        "UnknownModelFile": ("path",),
        "CorruptModelFile": ("path", "problem"),
        "Locked": ("path",),
        # job checkpoints and continuing a run
        "InvalidJobFile": ("path", "field", "problem"),
        "InvalidRecord": ("path", "step", "problem"),
        "InvalidTokens": ("path", "problem"),
        "RunChanged": ("field", "expected", "actual"),
        "InitialModelMismatch": ("field", "expected", "actual"),
        "NoValidCheckpoint": ("path", "problems"),
        "NotResumable": ("path", "reason"),
        "ExtensionRefused": ("after", "last", "problem"),
        "SaveFailed": ("path", "step"),
        "Stopped": ("path", "step", "planned"),
        # the final evaluation of a run
        "NotFinished": ("path",),
        "TestAlreadyOpened": ("path", "openings"),
    }
