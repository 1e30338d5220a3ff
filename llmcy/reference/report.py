"""The training report: one line a record, ``key=field:value field:value ...``.

Losses, flags and steps come from the run that is reported.  What is only configuration is printed
from the configuration, and the words after ``criterion``, ``snapshot`` and ``next`` are labels.
"""

from __future__ import annotations

from llmcy.reference.text import decimal6, record
from llmcy.reference.training import MeasuredTraining, earliest_minimum

__all__ = ["training_report"]

TRAINING_ONLY = (2.0, 1.5, 1.2)  # falls to its end
HELD_OUT = (2.0, 1.3, 1.4)  # turns up again


def training_report(measured: MeasuredTraining) -> str:
    """All lines of the report, each ending in a newline."""
    fixture, result = measured.fixture, measured.result
    config, plan = fixture.model_config, fixture.trainer_config()
    steps = result.steps
    events = {step.events for step in steps}
    lines = [
        record(
            "config",
            vocabulary=config.vocab_size,
            model_width=config.d_model,
            layers=config.n_layers,
            heads=config.n_heads,
            context=fixture.context_length,
            updates=len(steps),
            batch=fixture.batch_size,
            clip_norm=plan.max_grad_norm,
            parameters=result.final_state.scalar_count(),
        ),
        # every update must have gone through the same events, else there is no one order to print
        "order=" + ("|".join(",".join(order) for order in sorted(events))),
        "schedule=" + ",".join(decimal6(step.learning_rate) for step in steps),
    ]
    lines += [
        record(
            "checkpoint",
            step=checkpoint.step,
            train_loss=checkpoint.train.loss,
            validation_loss=checkpoint.validation.loss,
            selected=checkpoint.selected,
            train_graphs=checkpoint.train.recorded_graphs,
            validation_graphs=checkpoint.validation.recorded_graphs,
        )
        for checkpoint in result.checkpoints
    ]
    lines += [
        record(
            "selection",
            step=result.selected_step,
            validation_loss=result.selected_validation_loss,
            criterion="earliest-minimum-validation-loss",
            snapshot="model-and-optimizer",
            test_partition_rejected=measured.test_partition_rejected,
        ),
        record(
            "clipping",
            observed=any(step.clipped for step in steps),
            max_norm=plan.max_grad_norm,
            finite=all(step.finite_gradients for step in steps),
            nodes_preserved=all(step.parameter_nodes_preserved for step in steps),
            cleared=all(step.cleared_gradients for step in steps),
        ),
        record(
            "ownership",
            input_model_unchanged=measured.input_model_unchanged,
            input_optimizer_unchanged=measured.input_optimizer_unchanged,
            selected_restored=measured.selected_restored,
        ),
        record(
            "selection_contrast",
            training_only_step=earliest_minimum(TRAINING_ONLY),
            validation_step=earliest_minimum(HELD_OUT),
        ),
        record("replay", bitwise=measured.replay_bitwise),
        "next=save-the-selected-state",
    ]
    return "\n".join(lines) + "\n"
