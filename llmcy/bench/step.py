"""One training step of a decoder on a fixed batch: what a benchmark of training repeats."""

from __future__ import annotations

import numpy as np

from llmcy.bench.cases import StepCase
from llmcy.model import Decoder
from llmcy.optim import AdamW, AdamWConfig, ParameterGroups
from llmcy.recorded import RECORDING_BYTES, RecordedStep

__all__ = ["TrainingStep"]

MAX_GRAD_NORM = 1.0


class TrainingStep:
    """Forward, backward, clipping, AdamW and clearing, on one batch of random tokens.

    Calling it does one step and returns the loss before the update.

    Parameters
    ----------
    case, dtype
        What is trained.
    recorded
        Repeat recorded steps, as the trainer does; False goes through the tape every time.
    """

    def __init__(self, case: StepCase, dtype: str, *, recorded: bool = True) -> None:
        self.model = Decoder.initialize(case.config(dtype), 1)
        names = [name for name, _ in self.model.named_parameters()]
        self.optimizer = AdamW(AdamWConfig(1e-3), ParameterGroups.from_rule(names))
        draw = np.random.default_rng(0)
        shape = (case.batch_size, case.context_length)
        self.inputs = draw.integers(0, case.vocab_size, shape)
        self.targets = draw.integers(0, case.vocab_size, shape)
        self.recorded = RecordedStep(self.model, limit=RECORDING_BYTES if recorded else 0)

    def __call__(self) -> float:
        loss = self.recorded.run(self.inputs, self.targets)
        self.optimizer.step_clipped(
            self.model.named_parameters(), MAX_GRAD_NORM, sums=self.recorded.sums
        )
        self.model.zero_grad()
        return loss
