"""Tensors, gradients, models, optimizers and training runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmcy.errors.base import LlmcyError

__all__ = [
    "AutodiffError",
    "InitializationError",
    "ModelError",
    "OptimizerError",
    "OptimizerStateError",
    "TensorError",
    "TrainerError",
    "trainer_errors",
]


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
