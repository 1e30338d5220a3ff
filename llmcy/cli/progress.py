"""What a person sees while a model trains: one line a measurement, a bar in a terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from llmcy.data import MiniBatchEpoch
from llmcy.model import Decoder
from llmcy.trainer import LossCheckpoint, TrainingStep

__all__ = ["TrainingProgress"]


class TrainingProgress:
    """Observer of a run: step, loss, validation loss, tokens per second, time left.

    Lines go to stdout.  A bar that redraws itself goes to stderr, and only on a terminal; elsewhere
    a line every twentieth of the run takes its place.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._steps = 0
        self._finished = 0  # before this process
        self._quiet = quiet
        self._out = Console(highlight=False, soft_wrap=True)
        self._errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self._live = self._errors.is_terminal and not quiet
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TimeRemainingColumn(),
            console=self._errors,
            transient=True,
            disable=not self._live,
        )
        self._task = self._bar.add_task("steps", total=None, loss="-", speed="-")
        self._tokens = 0
        self._seconds = 0.0
        self._last = time.monotonic()

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """One line on stdout."""
        if not self._quiet:
            self._out.print(text, markup=False)

    def on_save(self, step: int) -> None:
        """A checkpoint was written; that does not count as training time."""
        self._last = time.monotonic()

    def on_problem(self, text: str) -> None:
        """What went wrong without ending the run: one line on stderr, also when quiet."""
        self._errors.print(f"warning: {text}", markup=False)

    def on_start(self, model: Decoder, epoch: MiniBatchEpoch, finished: int, planned: int) -> None:
        self._steps, self._finished = planned, finished
        self._bar.update(self._task, total=planned, completed=finished)
        config = model.config
        self.say(
            f"model      {model.n_parameters:,} parameters, {config.dtype}: "
            f"vocab {config.vocab_size}, d_model {config.d_model}, {config.n_layers} layers, "
            f"{config.n_heads} heads, d_ff {config.d_ff}"
        )
        if finished:
            self.say(f"continues  after step {finished} of {planned}")
        self.say(
            f"updates    {self._steps} of {epoch.batch_count} batches an epoch, "
            f"{epoch.window_count} windows of {epoch.context_length} tokens"
        )
        self._last = time.monotonic()

    def on_step(self, step: TrainingStep) -> None:
        now = time.monotonic()
        self._tokens += step.target_count
        self._seconds += now - self._last
        self._last = now
        speed = self._tokens / self._seconds if self._seconds > 0 else 0.0
        self._bar.update(
            self._task, completed=step.step, loss=f"{step.train_loss:.4f}", speed=f"{speed:,.0f}"
        )
        every = max(1, self._steps // 20)
        if not self._live and step.step % every == 0:
            done = step.step - self._finished
            left = self._seconds / done * (self._steps - step.step)
            self.say(
                f"step {step.step:>6}  loss {step.train_loss:.4f}  "
                f"norm {step.norm_before:.3f}  {speed:,.0f} tokens/s  {left:.0f} s left"
            )

    def on_checkpoint(self, checkpoint: LossCheckpoint) -> None:
        best = "  best so far" if checkpoint.selected else ""
        self.say(
            f"step {checkpoint.step:>6}  train {checkpoint.train.loss:.4f}  "
            f"validation {checkpoint.validation.loss:.4f}{best}"
        )
        self._last = time.monotonic()  # measuring does not count as training time
