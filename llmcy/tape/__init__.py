"""Reverse-mode differentiation: tensors, recorded operations, backward passes."""

from llmcy.tape.backward import BackwardPass, CarriedGradients
from llmcy.tape.recorded import RecordedPass, ready_to_record
from llmcy.tape.recording import is_recording, no_grad
from llmcy.tape.tensor import Node, Tensor, record

__all__ = [
    "BackwardPass",
    "CarriedGradients",
    "Node",
    "RecordedPass",
    "Tensor",
    "is_recording",
    "no_grad",
    "ready_to_record",
    "record",
]
