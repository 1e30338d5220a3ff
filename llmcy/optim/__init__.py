"""AdamW, its settings and state, global-norm clipping and learning-rate schedules."""

from llmcy.optim.adamw import AdamW
from llmcy.optim.clip import (
    ClipTransform,
    GradientClip,
    clip_grad_norm,
    clip_to,
    measure_grad_norm,
)
from llmcy.optim.config import AdamWConfig
from llmcy.optim.groups import ParameterGroups
from llmcy.optim.schedule import LearningRateSchedule
from llmcy.optim.state import AdamWState, AdamWStateEntry, OptimizerSnapshot
from llmcy.optim.trace import AdamWParameterTrace, AdamWTrace

__all__ = [
    "AdamW",
    "AdamWConfig",
    "AdamWParameterTrace",
    "AdamWState",
    "AdamWStateEntry",
    "AdamWTrace",
    "ClipTransform",
    "GradientClip",
    "LearningRateSchedule",
    "OptimizerSnapshot",
    "ParameterGroups",
    "clip_grad_norm",
    "clip_to",
    "measure_grad_norm",
]
