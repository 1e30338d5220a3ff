"""What the final evaluation says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from llmcy.final_evaluation.provenance import EvaluationProvenance

__all__ = ["REPORT_VERSION", "FinalEvaluationReport", "Score"]

REPORT_VERSION = 1


@dataclass(frozen=True)
class Score:
    """How one model did on the test windows, in nats a window slot.

    ``bits_per_byte`` is the total over the bytes of text that the slots stand for and ln 2; None
    when the number of bytes is not known.
    """

    total_nll: float
    target_count: int
    mean_nll: float
    perplexity: float
    bits_per_byte: float | None


@dataclass(frozen=True)
class FinalEvaluationReport:
    """What the one look at the test partition showed.

    Attributes
    ----------
    selected_step, selected_validation_loss, provenance
        Of the decoder.
    document_ids
        Test documents in the order they were first seen.
    fingerprint
        FNV-1a over every row: document id, 0xff, start (64 bits), then input and target of each
        slot (32 bits each), little-endian.
    window_count, batch_count, slot_count
        A slot is one position of one window.
    transition_count
        Different (document, position of the target): what the slots stand for without overlap.
    transition_multiplicity_counts
        Entry m - 1: how many transitions lie in m slots.
    decoder, bigram
        Scores on the same slots in the same order.
    access_count, recorded_graphs, parameters_unchanged, gradients_unchanged
        What was watched.
    """

    version: int
    selected_step: int
    selected_validation_loss: float
    provenance: EvaluationProvenance
    document_ids: tuple[str, ...]
    fingerprint: str
    window_count: int
    batch_count: int
    slot_count: int
    transition_count: int
    transition_multiplicity_counts: tuple[int, ...]
    decoder: Score
    bigram: Score
    access_count: int
    recorded_graphs: int
    parameters_unchanged: bool
    gradients_unchanged: bool

    @property
    def loss_gap(self) -> float:
        """Mean loss of the bigram model minus that of the decoder."""
        return self.bigram.mean_nll - self.decoder.mean_nll

    @property
    def decoder_has_lower_loss(self) -> bool:
        """Strictly lower than the bigram model's."""
        return self.decoder.mean_nll < self.bigram.mean_nll

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the two derived ones included."""
        return asdict(self) | {
            "document_ids": list(self.document_ids),
            "transition_multiplicity_counts": list(self.transition_multiplicity_counts),
            "loss_gap": self.loss_gap,
            "decoder_has_lower_loss": self.decoder_has_lower_loss,
        }
