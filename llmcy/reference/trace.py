"""The trace of a run, ``|``-separated, one record a line.

```
TRAINING_SELECTION_TRACE_V1
CONFIG|seed|updates|batch|context|validation_every|clip
ORDER|the six events
SCHEDULE|first|last|learning_rate               one line for each stretch of equal rates
UPDATE|step|windows|learning_rate|train_loss|norm_before|norm_after|scale|clipped|flags
AXIS|min|middle|max                              of all measured losses, in tenths
CHECKPOINT|step|train|validation|selected
SELECT|step|validation|partition|rule
PROOF|who updates, who selects, who is refused, and what was observed
END
```

A trace holds measurements only; nothing stands between two of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from llmcy.reference.text import Value, spelled
from llmcy.reference.training import MeasuredTraining

__all__ = ["TRACE_HEADER", "axis", "schedule_ranges", "training_trace"]

TRACE_HEADER = "TRAINING_SELECTION_TRACE_V1"


def axis(losses: Iterable[float]) -> tuple[float, float, float]:
    """Smallest, middle and largest tick: tenths around the losses, at least a tenth apart."""
    losses = list(losses)
    low, high = math.floor(10.0 * min(losses)), math.ceil(10.0 * max(losses))
    if low == high:
        high += 1
    return low / 10.0, (low + high) / 20.0, high / 10.0


def schedule_ranges(rates: Sequence[float]) -> list[tuple[int, int, float]]:
    """(first step, last step, rate) of each stretch of equal rates."""
    ranges, step = [], 1
    for rate, stretch in groupby(rates):
        count = len(list(stretch))
        ranges.append((step, step + count - 1, rate))
        step += count
    return ranges


def training_trace(measured: MeasuredTraining) -> str:
    """The whole trace, each line ending in a newline."""
    fixture, result = measured.fixture, measured.result
    steps, checkpoints = result.steps, result.checkpoints
    gaps = {b.step - a.step for a, b in pairwise(checkpoints)}
    lines = [
        TRACE_HEADER,
        _line(
            "CONFIG",
            seed=fixture.init_seed,
            updates=len(steps),
            batch=fixture.batch_size,
            context=fixture.context_length,
            validation_every=",".join(str(gap) for gap in sorted(gaps)),
            clip=repr(fixture.max_grad_norm),
        ),
        "|".join(("ORDER", *steps[0].events)),
    ]
    lines += [
        _line("SCHEDULE", first=first, last=last, learning_rate=rate)
        for first, last, rate in schedule_ranges([step.learning_rate for step in steps])
    ]
    lines += [
        _line(
            "UPDATE",
            step=step.step,
            windows=",".join(step.windows),
            learning_rate=step.learning_rate,
            train_loss=step.train_loss,
            norm_before=step.norm_before,
            norm_after=step.norm_after,
            scale=step.transform.scale,
            clipped=step.clipped,
            finite=step.finite_gradients,
            nodes_preserved=step.parameter_nodes_preserved,
            cleared=step.cleared_gradients,
        )
        for step in steps
    ]
    low, middle, high = axis(
        loss
        for checkpoint in checkpoints
        for loss in (checkpoint.train.loss, checkpoint.validation.loss)
    )
    lines.append(_line("AXIS", min=f"{low:g}", middle=f"{middle:g}", max=f"{high:g}"))
    lines += [
        _line(
            "CHECKPOINT",
            step=checkpoint.step,
            train=checkpoint.train.loss,
            validation=checkpoint.validation.loss,
            selected=checkpoint.selected,
        )
        for checkpoint in checkpoints
    ]
    lines += [
        _line(
            "SELECT",
            step=result.selected_step,
            validation=result.selected_validation_loss,
            partition=fixture.validation_epoch().partition.value,
            rule="earliest-minimum",
        ),
        _line(
            "PROOF",
            updates=fixture.update_epoch().partition.value,
            selection=fixture.validation_epoch().partition.value,
            test="rejected" if measured.test_partition_rejected else "accepted",
            finite=all(step.finite_gradients for step in steps),
            nodes_preserved=all(step.parameter_nodes_preserved for step in steps),
            cleared=all(step.cleared_gradients for step in steps),
            input_model_unchanged=measured.input_model_unchanged,
            input_optimizer_unchanged=measured.input_optimizer_unchanged,
            selected_restored=measured.selected_restored,
            replay_bitwise=measured.replay_bitwise,
        ),
        "END",
    ]
    return "\n".join(lines) + "\n"


def _line(key: str, **fields: Value) -> str:
    return "|".join((key, *(f"{name}={spelled(value)}" for name, value in fields.items())))
