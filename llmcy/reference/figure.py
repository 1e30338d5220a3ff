"""Measured losses as isolated marks on a grid of characters.

Nothing was measured between two checkpoints, so nothing is drawn between two marks.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmcy.reference.trace import axis
from llmcy.trainer import LossCheckpoint

__all__ = ["SELECTED", "TRAIN", "VALIDATION", "loss_figure"]

TRAIN, VALIDATION, SELECTED = "o", "x", "#"
COLUMN = 8  # characters a checkpoint takes; its two marks stand side by side
ROWS_PER_TENTH = 2


def loss_figure(checkpoints: Sequence[LossCheckpoint]) -> str:
    """Loss upwards, checkpoints to the right; one mark for each measured loss.

    ``o`` is a training loss, ``x`` a validation loss, ``#`` the validation loss that was selected.
    """
    low, _, high = axis(
        loss
        for checkpoint in checkpoints
        for loss in (checkpoint.train.loss, checkpoint.validation.loss)
    )
    tenths = round((high - low) * 10)
    last_row = tenths * ROWS_PER_TENTH
    grid = [[" "] * (COLUMN * len(checkpoints)) for _ in range(last_row + 1)]
    for place, checkpoint in enumerate(checkpoints):
        marks = (
            (TRAIN, checkpoint.train.loss, 3),
            (SELECTED if checkpoint.selected else VALIDATION, checkpoint.validation.loss, 5),
        )
        for glyph, loss, offset in marks:
            row = last_row - round((loss - low) * 10 * ROWS_PER_TENTH)
            grid[row][place * COLUMN + offset] = glyph
    lines = []
    for row, cells in enumerate(grid):
        tick = f"{high - row / (10 * ROWS_PER_TENTH):.1f}" if row % ROWS_PER_TENTH == 0 else ""
        lines.append(f"{tick:>4} |{''.join(cells)}".rstrip())
    lines.append("     +" + "-" * (COLUMN * len(checkpoints)))
    lines.append(
        "step  " + "".join(f"{c.step:^{COLUMN + 1}}"[:COLUMN] for c in checkpoints).rstrip()
    )
    lines.append(f"{TRAIN} training   {VALIDATION} validation   {SELECTED} selected")
    return "\n".join(lines) + "\n"
