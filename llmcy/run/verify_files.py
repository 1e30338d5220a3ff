"""Which files lie in a run folder: those that a run writes, and what nothing has looked at."""

from __future__ import annotations

from pathlib import Path

from llmcy.atomic_file import is_temporary
from llmcy.run.checkpoints import CHECKPOINTS, SELECTED, step_of
from llmcy.run.directory import SELECTED_FILES
from llmcy.run.evaluation import TEST_RECORD
from llmcy.run.findings import Disproof, Findings
from llmcy.run.initial import INITIAL_FILE
from llmcy.run.plan import RunPlan

__all__ = ["ENVIRONMENT", "check_file_names"]

ENVIRONMENT = "environment.jsonl"
WRITTEN = frozenset(
    (
        "config.json",
        "split.json",
        "tokenizer.json",
        "tokens.bin",
        "tokens.json",
        "steps.jsonl",
        "evaluations.jsonl",
        "summary.json",
        ENVIRONMENT,
        TEST_RECORD,
        *SELECTED_FILES,
    )
)


def check_file_names(run: Path, plan: RunPlan, found: Findings) -> None:
    """Name every file that a run of this plan does not write.

    Raises
    ------
    OSError
        When the folder cannot be read.
    """
    if plan.initial is None and (run / INITIAL_FILE).exists():
        text = f"{INITIAL_FILE}: the run begins at its seed"
        found.disproved.append(Disproof(text, INITIAL_FILE))
    unknown: list[str] = []
    left: list[str] = []
    for path in sorted(run.rglob("*")):
        parts = path.relative_to(run).parts
        name = "/".join(parts)
        if len(parts) == 1:
            known = parts[0] in (CHECKPOINTS, SELECTED) if path.is_dir() else parts[0] in WRITTEN
            known |= parts[0] == INITIAL_FILE
        else:
            known = parts[0] in (CHECKPOINTS, SELECTED) and len(parts) == 2
            known &= step_of(path) is not None
        if known:
            continue
        (left if is_temporary(path.name) else unknown).append(name)
    if left:
        found.not_proved.append(
            f"{', '.join(left)}: left by a killed writer; the next start removes it"
        )
    if unknown:
        found.not_proved.append(f"{', '.join(unknown)}: no file of a run; not looked at")
