"""One update from a checkpoint's state: no trainer, no schedule, no clipping.

What the update needs beyond the file (the rows and the rate) is supplied by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy.checksum import fingerprint
from llmcy.model import Decoder
from llmcy.optim import AdamW, AdamWState
from llmcy.tape import no_grad

__all__ = ["Branch", "component_update", "logits_of"]


@dataclass(frozen=True)
class Branch:
    """Where one update led.

    Attributes
    ----------
    step
        The optimizer's step after the update.
    parameters
        Bytes of all parameters in stable order.
    optimizer
        The optimizer's state after the update.
    logits
        Bytes of the logits of the same inputs after the update.
    logits_label
        Their fingerprint.
    """

    step: int
    parameters: bytes
    optimizer: AdamWState
    logits: bytes
    logits_label: str


def logits_of(model: Decoder, token_ids: Sequence[int]) -> NDArray[Any]:
    """Logits of one row, (T, V), without a graph."""
    with no_grad():
        return np.array(model.forward(np.array([token_ids], np.int64)).data[0])


def component_update(
    model: Decoder,
    optimizer: AdamW,
    inputs: Sequence[int],
    targets: Sequence[int],
    learning_rate: float,
) -> Branch:
    """Forward, backward, one AdamW step on one row, and the row's logits afterwards."""
    model.zero_grad()
    loss = model.loss(np.array([inputs], np.int64), np.array([targets], np.int64))
    loss.backward()
    step = optimizer.step(model.named_parameters(), learning_rate=learning_rate)
    model.zero_grad()
    logits = logits_of(model, inputs)
    return Branch(
        step=step,
        parameters=b"".join(node.data.tobytes() for _, node in model.named_parameters()),
        optimizer=optimizer.state(),
        logits=logits.tobytes(),
        logits_label=fingerprint([logits]),
    )
