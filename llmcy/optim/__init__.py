"""AdamW, its settings and state, global-norm clipping and learning-rate schedules."""

from llmcy.optim.config import AdamWConfig
from llmcy.optim.groups import ParameterGroups
from llmcy.optim.state import AdamWState, AdamWStateEntry, OptimizerSnapshot

__all__ = [
    "AdamWConfig",
    "AdamWState",
    "AdamWStateEntry",
    "OptimizerSnapshot",
    "ParameterGroups",
]
