"""The published final evaluation, sampling and cached generation, measured and compared."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from llmcy.reference import expected_inference as expected
from llmcy.reference.cache_report import MeasuredCache, cache_report, measure_cache
from llmcy.reference.evaluation_report import (
    MeasuredEvaluation,
    evaluation_report,
    measure_evaluation,
)
from llmcy.reference.sampling_report import MeasuredSampling, measure_sampling, sampling_report
from llmcy.reference.training import MeasuredTraining

__all__ = ["Inference", "measure_inference"]


@dataclass(frozen=True)
class Inference:
    """What was done with the decoder of the published run."""

    evaluation: MeasuredEvaluation
    sampling: MeasuredSampling
    cache: MeasuredCache

    def reports(self) -> dict[str, str]:
        """The lines of each report, under its name."""
        return {
            "evaluation report": evaluation_report(self.evaluation),
            "sampling report": sampling_report(self.sampling),
            "cache report": cache_report(self.cache),
        }

    def problems(self) -> Iterator[str]:
        """What differs from the published lines, '-' published and '+' measured."""
        wanted = {
            "evaluation report": expected.EVALUATION_REPORT,
            "sampling report": expected.SAMPLING_REPORT,
            "cache report": expected.CACHE_REPORT,
        }
        for name, text in self.reports().items():
            for line in difflib.ndiff(wanted[name].splitlines(), text.splitlines()):
                if line[:1] in "-+":
                    yield f"{name}: {line}"
        if self.cache.fingerprint != expected.CACHE_STATE:
            yield (
                f"parameters of the cached decoder: measured {self.cache.fingerprint}, "
                f"published {expected.CACHE_STATE}"
            )


def measure_inference(training: MeasuredTraining, checkpoint: bytes) -> Inference:
    """Evaluate the selected decoder, and continue prompts with its checkpoint."""
    return Inference(
        measure_evaluation(training), measure_sampling(checkpoint), measure_cache(checkpoint)
    )
