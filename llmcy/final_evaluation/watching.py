"""That scoring a decoder changes nothing, and that it is the one that was selected."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import asdict
from typing import Any

from llmcy.config import ModelConfig
from llmcy.data import MiniBatchEpoch
from llmcy.errors import FinalEvaluationError, TrainerError
from llmcy.evaluate import evaluate_no_grad
from llmcy.model import Decoder
from llmcy.state import DecoderModelState

__all__ = ["is_state_of", "watched_evaluation"]


def watched_evaluation(model: Decoder, epoch: MiniBatchEpoch) -> Any:
    """The graph-free evaluation, with bits of parameters and gradients compared around it."""
    parameters, gradients = _parameter_bits(model), _gradient_bits(model)
    try:
        evaluation = evaluate_no_grad(model, epoch)
    except TrainerError as error:
        raise FinalEvaluationError("Trainer", str(error), cause=error) from error
    if evaluation.recorded_graphs:
        raise FinalEvaluationError(
            "GraphRecorded",
            f"{evaluation.recorded_graphs} losses were recorded",
            count=evaluation.recorded_graphs,
        )
    if _parameter_bits(model) != parameters:
        raise FinalEvaluationError("DecoderParameterChanged", "a parameter has changed meanwhile")
    if _gradient_bits(model) != gradients:
        raise FinalEvaluationError("DecoderGradientChanged", "a gradient has changed meanwhile")
    return evaluation


def _parameter_bits(model: Decoder) -> list[bytes]:
    return [hashlib.blake2b(p.data.data).digest() for _, p in model.named_parameters()]


def _gradient_bits(model: Decoder) -> list[bytes]:
    bits = []
    for name, parameter in model.named_parameters():
        if parameter.grad_is_zero:
            bits.append(b"zero")
            continue
        gradient = parameter.grad
        if gradient is None:
            raise FinalEvaluationError(
                "MissingGradient", f"parameter {name!r} has no gradient to watch", name=name
            )
        bits.append(hashlib.blake2b(gradient.data).digest())
    return bits


def is_state_of(state: DecoderModelState, model: Decoder) -> bool:
    """Whether configuration, names, shapes and every bit agree."""
    named = model.named_parameters()
    held = state.named_arrays()
    return (
        _config_bits(state.config) == _config_bits(model.config)
        and [name for name, _ in held] == [name for name, _ in named]
        and all(
            array.shape == parameter.shape and array.tobytes() == parameter.data.tobytes()
            for (_, array), (_, parameter) in zip(held, named, strict=True)
        )
    )


def _config_bits(config: ModelConfig) -> tuple[Any, ...]:
    return tuple(
        struct.pack("<d", value) if isinstance(value, float) else value
        for value in asdict(config).values()
    )
