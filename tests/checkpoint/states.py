"""Sealed training states without a training run.

Only the trainer issues :class:`SelectedTrainingState`; these tests take the issuer's token from the
module where it is kept, which no program should do.
"""

import numpy as np

from llmcy import state as state_module
from llmcy.checkpoint import Checkpoint, TokenizerRecord
from llmcy.config import ModelConfig
from llmcy.model import Decoder
from llmcy.optim import AdamWConfig, AdamWState, AdamWStateEntry, ParameterGroups
from llmcy.state import DecoderModelState, OptimizerSnapshot, SelectedTrainingState

DIGITS = TokenizerRecord.literal([b"0", b"1", b"2", b"3", b"4"])
SMALL = ModelConfig(vocab_size=5, d_model=2, n_heads=1, n_layers=1, d_ff=2, max_seq_len=2)


def sealed(step, model, optimizer):
    return SelectedTrainingState(state_module._ISSUER, step, model, optimizer)


def seal_of(checkpoint: Checkpoint) -> SelectedTrainingState:
    """The sealed state that a loaded checkpoint could have been made from."""
    return sealed(checkpoint.selected_step, checkpoint.model_state, checkpoint.optimizer)


def fresh_state(
    config=SMALL, seed=35, adamw=None, groups=None, step=0, moments=None
) -> SelectedTrainingState:
    """A newly drawn model with an optimizer at ``step``; moments default to zeros."""
    model = DecoderModelState.snapshot(Decoder.initialize(config, seed))
    adamw = AdamWConfig(0.01, weight_decay=0.0) if adamw is None else adamw
    entries = []
    if step:
        for name, array in model.named_arrays():
            first, second = (moments or {}).get(name, (np.zeros_like(array),) * 2)
            entries.append(AdamWStateEntry(name, np.shape(first), first, second))
    powers = (0.9**step, 0.999**step) if step else (1.0, 1.0)
    snapshot = OptimizerSnapshot(adamw, groups, AdamWState(step, *powers, entries))
    return sealed(step, model, snapshot)


def rule_groups(config=SMALL) -> ParameterGroups:
    return ParameterGroups.from_rule(config.parameter_shapes())
