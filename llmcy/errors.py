"""The one hierarchy of exceptions.

Every error has a ``kind``, a CamelCase word that never changes, and the fields that the kind
declares, as attributes.  The human text may change; programs look at kind and fields.  An error
that wraps another one (a checkpoint whose optimizer settings are invalid, say) has it as ``cause``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

__all__ = [
    "AutodiffError",
    "CacheError",
    "CachedGenerationError",
    "CheckpointError",
    "ConfigError",
    "DTypeError",
    "DataError",
    "FileError",
    "FinalEvaluationError",
    "GenerationError",
    "InitializationError",
    "InteropError",
    "LlmcyError",
    "MetricError",
    "ModelError",
    "NonFiniteError",
    "OptimizerError",
    "OptimizerStateError",
    "RangeError",
    "RunError",
    "SamplingError",
    "ShapeError",
    "TensorError",
    "TokenizerError",
    "TrainerError",
]


class LlmcyError(Exception):
    """Base of every error llmcy raises on purpose.

    Parameters
    ----------
    kind
        One of the class's ``KINDS``.
    message
        Who complains, about which argument, what was expected and what came.
    cause
        The wrapped error, for kinds that wrap one.
    **fields
        Exactly the fields that ``KINDS[kind]`` names.

    Raises
    ------
    TypeError
        For a kind or a set of fields that the class does not declare.
    """

    KINDS: ClassVar[dict[str, tuple[str, ...]]] = {}

    kind: str
    fields: dict[str, Any]
    cause: BaseException | None

    def __init__(
        self, kind: str, message: str, *, cause: BaseException | None = None, **fields: Any
    ) -> None:
        declared = type(self).KINDS.get(kind)
        if declared is None:
            raise TypeError(f"{type(self).__name__} has no kind {kind!r}")
        if set(declared) != set(fields):
            raise TypeError(
                f"{type(self).__name__}.{kind} takes fields {declared}, got {tuple(fields)}"
            )
        super().__init__(message)
        self.kind = kind
        self.fields = fields
        self.cause = cause
        if cause is not None:
            self.__cause__ = cause
        for name, value in fields.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # only reached for names that are not set; tells type checkers that fields exist
        raise AttributeError(
            f"{type(self).__name__} of kind {self.__dict__.get('kind')} has no {name!r}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.kind, str(self), self.cause, self.fields)


def _rebuild(
    cls: type[LlmcyError],
    kind: str,
    message: str,
    cause: BaseException | None,
    fields: dict[str, Any],
) -> LlmcyError:
    return cls(kind, message, cause=cause, **fields)


class ShapeError(LlmcyError, ValueError):
    """An array or a size that does not fit the others."""

    KINDS = {"ShapeMismatch": ("name", "expected", "actual")}


class DTypeError(LlmcyError, TypeError):
    """An array of another type, layout or kind than the function takes."""

    KINDS = {
        "UnsupportedDType": ("name", "expected", "actual"),
        "NotContiguous": ("name",),
        "Misaligned": ("name",),
        "NotAnArray": ("name", "actual"),
        "ReadOnly": ("name",),
        "Overlap": ("name", "other"),
    }


class RangeError(LlmcyError, ValueError):
    """A number outside the range the function takes."""

    KINDS = {
        "OutOfRange": ("name", "value", "expected"),
        "TokenOutOfRange": ("name", "index", "value", "vocab_size"),
    }


class NonFiniteError(LlmcyError, ArithmeticError):
    """A NaN or an infinity where only finite numbers have a meaning."""

    KINDS = {"NonFiniteValue": ("name", "index", "value")}


class ConfigError(LlmcyError, ValueError):
    """A setting of the process or of a command that cannot be used."""

    KINDS = {
        "InvalidThreadCount": ("value",),
        "UnknownInstructionSet": ("name", "available"),
        "InvalidSetting": ("name", "value"),
    }


class TensorError(LlmcyError, ValueError):
    """A tensor layout that cannot be represented."""

    KINDS = {"ShapeOverflow": ("shape",)}


class AutodiffError(LlmcyError, RuntimeError):
    """Recording and running gradients."""

    KINDS = {
        "NonFiniteLeaf": ("index", "value"),
        "NonFiniteValue": ("op", "index", "value"),
        "NonFiniteGradient": ("op", "index", "value"),
        "NonScalarBackward": ("shape",),
        "SeedShapeMismatch": ("expected", "actual"),
        "NotRecorded": (),
        "GraphReleased": ("op",),
        "ValueRevisionChanged": ("op", "recorded", "current"),
        "ParameterValueBorrowed": ("borrows",),
        "ValueBeingWritten": (),
        "LeaseReleased": (),
        "NotALeaf": (),
        "NotCarried": ("op",),
        "CarryFailed": (),
        "GradientMismatch": ("tensor", "index", "analytic", "numeric", "error"),
    }


class InitializationError(LlmcyError, ValueError):
    """Creating named parameters."""

    KINDS = {
        "EmptyName": (),
        "EmptyNameSegment": ("index",),
        "InvalidNameCharacter": ("index", "byte"),
        "DuplicateName": ("name",),
        "Autodiff": (),
    }


class ModelError(LlmcyError, ValueError):
    """A decoder configuration, or parameters that do not fit one."""

    KINDS = {
        "EmptyVocabulary": (),
        "ZeroModelWidth": (),
        "ZeroHeadCount": (),
        "ModelWidthNotDivisible": ("d_model", "n_heads"),
        "HeadsNotDivisible": ("n_heads", "n_kv_heads"),
        "OddHeadWidth": ("head_dim",),
        "ZeroFeedForwardWidth": (),
        "ZeroPositionCapacity": (),
        "InvalidRopeBase": ("value",),
        "InvalidRmsEpsilon": ("value",),
        "UnsupportedDType": ("dtype",),
        "InvalidTiedHead": ("value",),
        "InvalidSize": ("name", "value"),
        "ParameterAllocationFailed": ("n_layers",),
        "ParameterCountMismatch": ("expected", "actual"),
        "ParameterNameMismatch": ("index", "expected", "actual"),
        "Embedding": ("problem",),
        "Block": ("layer", "problem"),
        "FinalNorm": ("problem",),
        "OutputHead": ("problem",),
        "EmbeddingVocabularyMismatch": ("expected", "actual"),
        "EmbeddingWidthMismatch": ("expected", "actual"),
        "BlockModelWidthMismatch": ("layer", "expected", "actual"),
        "BlockFeedForwardWidthMismatch": ("layer", "expected", "actual"),
        "FinalNormWidthMismatch": ("expected", "actual"),
        "OutputHeadVocabularyMismatch": ("expected", "actual"),
        "OutputHeadWidthMismatch": ("expected", "actual"),
        "RotaryTableAllocationFailed": ("max_seq_len", "pairs"),
        "InputRank": ("shape",),
        "EmptyInput": ("shape",),
        "TargetShapeMismatch": ("expected", "actual"),
        "ContextTooLong": ("tokens", "max_seq_len"),
        "TokenOutOfBounds": ("index", "token_id", "vocab_size"),
    }


class OptimizerError(LlmcyError, ValueError):
    """AdamW settings, groups and updates."""

    KINDS = {
        "InvalidLearningRate": ("value",),
        "InvalidBeta1": ("value",),
        "InvalidBeta2": ("value",),
        "InvalidEpsilon": ("value",),
        "InvalidWeightDecay": ("value",),
        "InvalidDecayProduct": ("value",),
        "InvalidGradientScale": ("value",),
        "InvalidGradientNormalization": ("divisor", "multiplier"),
        "EmptyGroupedParameterName": (),
        "DuplicateGroupedParameter": ("name",),
        "EmptyParameterGroups": (),
        "ParameterInMultipleGroups": ("name",),
        "EmptyParameterSet": (),
        "DuplicateParameterName": ("name", "first", "repeated"),
        "ParameterSetChanged": ("expected", "actual"),
        "StepOverflow": ("step",),
        "MissingGradient": ("name",),
        "GradientShapeMismatch": ("name", "expected", "actual"),
        "ParameterShapeChanged": ("name", "expected", "actual"),
        "NonFiniteArithmetic": ("name", "index", "stage", "value"),
        "ParameterRevisionOverflow": ("name",),
        "ParameterValueBorrowed": ("name",),
        "NonFiniteGradient": ("name", "index", "value"),
        "InvalidMaximumGradientNorm": ("value",),
        "UnrepresentableGradientClip": ("maximum", "scaled_root"),
    }


class OptimizerStateError(LlmcyError, ValueError):
    """AdamW moments and powers that no run can have produced."""

    KINDS = {
        "EmptyParameterName": (),
        "ShapeOverflow": ("name", "shape"),
        "ElementCountMismatch": ("name", "moment", "expected", "actual"),
        "NonFiniteMoment": ("name", "moment", "index", "value"),
        "NegativeSecondMoment": ("name", "index", "value"),
        "InvalidBetaPower": ("name", "value", "step"),
        "StatePresence": ("step", "entries"),
        "DuplicateParameterName": ("name",),
        "ParameterGroupsMismatch": ("expected", "actual"),
    }


class FileError(LlmcyError, OSError):
    """Replacing a file in one visible step."""

    KINDS = {
        "NoFileName": ("path",),
        "UnsupportedAtomicReplacement": (),
        "NoSpace": ("path", "needed", "free"),
        "Io": ("operation", "path"),
    }


class TrainerError(LlmcyError, ValueError):
    """Training plans and training runs."""

    KINDS = {
        "EmptyLearningRateSchedule": (),
        "InvalidScheduledLearningRate": ("step", "value"),
        "InvalidMaximumGradientNorm": ("value",),
        "EmptyValidationSteps": (),
        "ValidationMustStartAtZero": ("actual",),
        "ValidationStepOutOfRange": ("step", "final_step"),
        "ValidationStepsNotIncreasing": ("previous", "next"),
        "ValidationMustEndAtFinalStep": ("expected", "actual"),
        "OptimizerNotFresh": ("step",),
        "WrongPartition": ("role", "expected", "actual"),
        "EmptyEpoch": ("role",),
        "ContextLengthMismatch": ("role", "expected", "actual"),
        "ContextLengthExceeded": ("role", "context_length", "max_positions"),
        "TokenIdOutOfBounds": ("role", "target", "index", "id", "vocabulary_size"),
        "NonScalarLoss": ("shape",),
        "NonFiniteLoss": ("value",),
        "MissingGradient": ("name",),
        "NonFiniteGradient": ("name", "index", "value"),
        "UnrepresentableGradientClip": ("maximum", "scaled_root"),
        "OptimizerStepMismatch": ("expected", "actual"),
        "ParameterGradientNotZero": ("name", "index", "value"),
        "ValidationRecordedGraph": ("partition", "batch"),
        "ValidationChangedGradient": (),
        "SealedState": (),
        "StateConsumed": (),
        "Model": (),
        "Optimizer": (),
        "Autodiff": (),
        "Initialization": (),
        "Tensor": (),
    }


_TRAINER_CAUSES: tuple[tuple[type[LlmcyError], str], ...] = (
    (ModelError, "Model"),
    (OptimizerError, "Optimizer"),
    (OptimizerStateError, "Optimizer"),
    (AutodiffError, "Autodiff"),
    (InitializationError, "Initialization"),
    (TensorError, "Tensor"),
)


@contextmanager
def trainer_errors(doing: str) -> Iterator[None]:
    """Inside the block, failures of the model, tape and optimizer become a TrainerError.

    ``doing`` opens the message; the original error is the ``cause``.
    """
    try:
        yield
    except LlmcyError as error:
        for cls, kind in _TRAINER_CAUSES:
            if isinstance(error, cls):
                raise TrainerError(kind, f"{doing}: {error}", cause=error) from error
        raise


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


class MetricError(LlmcyError, ValueError):
    """Baselines and scores."""

    KINDS = {
        "EmptyVocabulary": (),
        "InvalidAlpha": ("value",),
        "TableTooLarge": ("vocab_size",),
        "TokenOutOfRange": ("document", "position", "token_id", "vocab_size"),
        "EmptyTargets": (),
        "InvalidProbability": ("index", "probability"),
    }


class SamplingError(LlmcyError, ValueError):
    """Choosing a token from logits."""

    KINDS = {
        "EmptyLogits": (),
        "VocabularyTooLarge": ("vocabulary_size",),
        "NonFiniteLogit": ("token_id", "value"),
        "InvalidTemperature": ("value",),
        "InvalidTopK": ("top_k", "vocabulary_size"),
        "InvalidTopP": ("value",),
        "InvalidMinP": ("value",),
        "InvalidRepetitionPenalty": ("value",),
        "InvalidProbabilitySum": ("value",),
    }


class GenerationError(LlmcyError, ValueError):
    """Requests to continue a prompt."""

    KINDS = {
        "EmptyPrompt": (),
        "PromptTooLong": ("tokens", "max_positions"),
        "PromptTokenOutOfBounds": ("position", "token_id", "vocabulary_size"),
        "EosTokenOutOfBounds": ("token_id", "vocabulary_size"),
        "InvalidMaxNewTokens": ("value",),
        "LogitCountMismatch": ("expected", "actual"),
        "Sampling": (),
        "Model": (),
        "Autodiff": (),
    }


class CachedGenerationError(GenerationError):
    """Requests to continue a prompt with a cache; ``Cache`` wraps what the cache refused."""

    KINDS = GenerationError.KINDS | {
        "Cache": (),
        "StreamCountMismatch": ("expected", "actual"),
    }


class FinalEvaluationError(LlmcyError, ValueError):
    """The one look at the test partition."""

    KINDS = {
        "EmptyProvenance": ("field",),
        "ZeroContextLength": (),
        "WrongSelectionPartition": ("actual",),
        "InvalidSelectionLoss": ("value",),
        "WrongBaselinePartition": ("actual",),
        "UnfittedBigram": (),
        "WrongTestPartition": ("actual",),
        "EmptyTestEpoch": (),
        "EpochContextMismatch": ("expected", "actual"),
        "NotCopyable": (),
        "AlreadyEvaluated": (),
        "ProvenanceMismatch": ("field",),
        "SelectedStateMismatch": (),
        "ModelContextMismatch": ("expected", "actual"),
        "VocabularyMismatch": ("decoder", "bigram"),
        "TargetAlignmentMismatch": ("batch", "inputs", "targets"),
        "InputTokenOutOfRange": ("batch", "position", "id", "vocabulary_size"),
        "TargetTokenOutOfRange": ("batch", "position", "id", "vocabulary_size"),
        "MissingGradient": ("name",),
        "GraphRecorded": ("count",),
        "DecoderParameterChanged": (),
        "DecoderGradientChanged": (),
        "NonFiniteScore": ("model", "mean_nll"),
        "TargetCountMismatch": ("expected", "decoder", "bigram"),
        "Trainer": (),
        "Metric": (),
        "Bigram": (),
    }


class CacheError(LlmcyError, RuntimeError):
    """Caches of keys and values: of one attention layer, and of a whole model."""

    KINDS = {
        # making one
        "ZeroBatchSize": (),
        "ZeroCapacity": (),
        "CapacityExceedsPositions": ("capacity", "positions"),
        "ElementCountOverflow": ("elements",),
        "AllocationFailed": ("elements",),
        # one token through one layer
        "InputRank": ("shape",),
        "SingleTokenRequired": ("tokens",),
        "InputBatchMismatch": ("expected", "actual"),
        "InputWidthMismatch": ("expected", "actual"),
        "CacheModelWidthMismatch": ("cache", "layer"),
        "CacheHeadCountMismatch": ("cache", "layer"),
        "CacheHeadWidthMismatch": ("cache", "layer"),
        "CacheLayerMismatch": ("parameter",),
        "CacheLayerRevisionMismatch": ("parameter", "cache", "layer"),
        "CacheRopeMismatch": (),
        "Cache": (),
        "Full": ("capacity",),
        "Autodiff": (),
        # binding a whole model
        "ModelConfigMismatch": (),
        "ModelParameterCountMismatch": ("cache", "model"),
        "ModelParameterMismatch": ("index",),
        "ModelParameterRevisionMismatch": ("index", "cache", "model"),
        "LayerCountMismatch": ("cache", "model"),
        "LayerLengthInvariant": ("layer", "expected", "actual"),
        "LayerBatchSizeMismatch": ("layer", "expected", "actual"),
        "LayerCapacityMismatch": ("layer", "expected", "actual"),
        "IncrementalAttention": ("layer",),
        # a session
        "SessionClosed": (),
        "PromptCountMismatch": ("expected", "actual"),
        "EmptyPrompt": ("row",),
        "PrefillRequiresEmpty": ("len",),
        "PromptTooLong": ("tokens", "capacity"),
        "PromptTokenOutOfBounds": ("position", "token_id", "vocabulary_size"),
        "DecodeRequiresPrefill": (),
        "RowsMismatch": ("expected", "actual"),
        "DecodeTokenOutOfBounds": ("token_id", "vocabulary_size"),
        "PreparedCacheChanged": ("layer",),
        "WorkOverflow": ("counter",),
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
        "NoValidCheckpoint": ("path", "problems"),
        "NotResumable": ("path", "reason"),
        "SaveFailed": ("path", "step"),
        "Stopped": ("path", "step", "planned"),
        # the final evaluation of a run
        "NotFinished": ("path",),
        "TestAlreadyOpened": ("path", "openings"),
    }
