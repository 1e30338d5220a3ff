"""The final evaluation: one look at the test partition, and everything that must hold before it.

The evaluator opens its gate once.  All that can be checked without looking at a test token is
checked first and may be repeated; once the gate has closed behind an attempt, no later failure
opens it again.  The one use belongs to one evaluator object: it is a reminder, not a record of
what anybody has ever looked at.
"""

from llmcy.final_evaluation.evaluator import FinalEvaluator
from llmcy.final_evaluation.provenance import (
    EvaluationProvenance,
    FrozenBigram,
    SelectedDecoder,
)
from llmcy.final_evaluation.report import FinalEvaluationReport, Score

__all__ = [
    "EvaluationProvenance",
    "FinalEvaluationReport",
    "FinalEvaluator",
    "FrozenBigram",
    "Score",
    "SelectedDecoder",
]
