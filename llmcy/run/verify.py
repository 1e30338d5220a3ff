"""Proving afterwards that a run folder is what its configuration, data and seeds lead to.

Without a replay: every digest, the chain of records, and the agreement of all files.  With one: the
steps themselves, executed again to the same bits.  docs/runs.md says what each result means.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from llmcy.config import CONTRACT_VERSION
from llmcy.data import Partition, TextDataset
from llmcy.errors import LlmcyError, RunError
from llmcy.run.checkpoints import CheckpointFolder
from llmcy.run.directory import RunDirectory, json_bytes
from llmcy.run.findings import Disproof, Findings
from llmcy.run.initial import INITIAL_FILE
from llmcy.run.job_file import read_state_file
from llmcy.run.plan import RunPlan
from llmcy.run.replay import Replay, Segment
from llmcy.run.sessions import make_epochs
from llmcy.run.tokens import encode_tokens
from llmcy.run.training import open_run, read_run
from llmcy.run.verify_documents import PathName, check_documents
from llmcy.run.verify_files import ENVIRONMENT, check_file_names
from llmcy.run.verify_outcome import check_outcome, check_test_record
from llmcy.run.verify_records import Records, check_records
from llmcy.run.verify_states import StateChecker, disproof_of

__all__ = ["Request", "parse_replay", "verify_run"]


@dataclass(frozen=True)
class Request:
    """What to check besides the files.

    Attributes
    ----------
    replay
        ``"all"``, the steps of two kept checkpoints (0: the beginning), or None.
    sample
        Number of random segments between neighbouring kept checkpoints.
    seed
        Of their choice; None draws one, which the result tells.
    sources, split_manifest
        The texts, to make the stored tokens again.
    """

    replay: str | Segment | None = None
    sample: int = 0
    seed: int | None = None
    sources: Sequence[PathName] = ()
    split_manifest: PathName | None = None


def parse_replay(text: str) -> str | Segment:
    """``all``, or ``A..B`` as two steps.

    Raises
    ------
    ValueError
        For anything else.
    """
    if text == "all":
        return text
    first, dots, last = text.partition("..")
    if not dots or not (first.isdecimal() and last.isdecimal()) or int(first) >= int(last):
        raise ValueError(f"expected all, or A..B with whole numbers A < B, got {text!r}")
    return int(first), int(last)


def verify_run(
    path: str | os.PathLike[str],
    request: Request | None = None,
    *,
    progress: Callable[[int], object] | None = None,
) -> Findings:
    """Check a run folder; nothing in it is changed.

    Parameters
    ----------
    path
        The run folder.
    request
        Replays and texts; None checks the files only.
    progress
        Called with every step that was executed again.
    """
    request, found = request or Request(), Findings()
    try:
        run = open_run(path)
        plan, dataset = _open(run, found)
    except _Stop:
        return found
    except (LlmcyError, OSError) as error:
        found.problems.append(str(error))
        return found
    try:
        _check(run.path, plan, dataset, request, found, progress)
    except (LlmcyError, OSError, MemoryError) as error:
        found.problems.append(f"{type(error).__name__}: {error}")
    source = "" if plan.initial is None else f", the source of {INITIAL_FILE}"
    found.not_proved.append(
        f"wall_seconds, {ENVIRONMENT}, llmcy_version and options in config.json{source}: they are "
        "information, no result depends on them"
    )
    found.not_proved.append("who made the run: digests find changes, they are no signature")
    return found


class _Stop(Exception):
    """Without plan and data there is nothing to compare with."""


def _open(run: RunDirectory, found: Findings) -> tuple[RunPlan, TextDataset]:
    config = run.read_json("config.json")
    version = config.get("contract_version") if isinstance(config, dict) else None
    if type(version) is int and version != CONTRACT_VERSION:
        found.problems.append(
            f"the run follows version {version} of the numerics contract, this package version "
            f"{CONTRACT_VERSION}"
        )
        raise _Stop
    try:
        plan, dataset = read_run(run)
    except RunError as error:
        disproof = disproof_of(error, run.path)
        if disproof is None:
            raise
        found.disproved.append(disproof)
        found.not_proved.append("records, states and steps: not looked at without plan and data")
        raise _Stop from error
    again = {
        "config.json": plan.to_dict() | {"llmcy_version": config["llmcy_version"]},
        "tokens.json": encode_tokens(dataset.documents)[1],
    }
    for name, value in again.items():
        if run.read_bytes(name) != json_bytes(value):
            text = f"{name}: it is not in the form that a run writes"
            found.disproved.append(Disproof(text, name))
    placed = [(d.id, d.partition) for d in dataset.split.documents if d.partition is not None]
    encoded = [(d.id, p) for p in Partition for d in dataset.documents.of(p)]
    if sorted(placed, key=lambda d: list(Partition).index(d[1])) != encoded:
        text = "tokens.json: its documents are not those of split.json"
        found.disproved.append(Disproof(text, "tokens.json", field="documents"))
    if not found.disproved:
        documents = sum(len(dataset.documents.of(partition)) for partition in Partition)
        files = "config.json, split.json, tokenizer.json, tokens.json, tokens.bin"
        if plan.initial is not None:
            files += f", {INITIAL_FILE}"
        found.proved.append(
            f"{files}: they agree with one another, and the tokens of {documents} documents have "
            "the digests written down"
        )
    return plan, dataset


def _check(
    folder: Path,
    plan: RunPlan,
    dataset: TextDataset,
    request: Request,
    found: Findings,
    progress: Callable[[int], object] | None,
) -> None:
    epochs = make_epochs(dataset, plan.settings)
    files = CheckpointFolder(folder, 1, 0)
    checker = StateChecker(files, plan, dataset, epochs)
    kept = files.steps()
    checker.check_identity(found)
    given = plan.initial is not None
    check_documents(dataset, request.sources, request.split_manifest, found, given=given)
    records = check_records(folder, plan, epochs.update, kept[-1] if kept else -1, found)
    valid = checker.check_all(records, found)
    _check_unnamed(files, folder, valid, found)
    check_outcome(checker, valid, records, found)
    if records.right and records.last_step < plan.steps:
        found.not_proved.append(
            f"the run is not finished: it stands at step {records.last_step} of {plan.steps}"
        )
    segments = _segments(request, kept, records, found)
    replay = Replay(checker, records, found, progress)
    done = []
    check_test_record(checker, records, found, execute=bool(segments))
    check_file_names(folder, plan, found)
    for segment in segments:
        try:
            if replay.segment(segment):
                done.append(segment)
        except LlmcyError as error:
            found.problems.append(f"replay of steps {segment[0]}..{segment[1]}: {error}")
    _say_what_is_left(done, records.last_step, found)


def _segments(
    request: Request, kept: list[int], records: Records, found: Findings
) -> list[Segment]:
    """What to execute again."""
    end = max([records.last_step, *kept])
    listed = ", ".join(map(str, kept)) or "none"
    if request.replay == "all":
        return [(0, end)] if end >= 0 else []
    segments: list[Segment] = []
    if isinstance(request.replay, tuple):
        missing = [s for s in request.replay if s not in kept and s != 0]
        if missing:
            found.problems.append(
                f"replay of steps {request.replay[0]}..{request.replay[1]}: no checkpoint of step "
                f"{missing[0]} is kept (kept: {listed})"
            )
        else:
            segments.append(request.replay)
    if request.sample:
        ends = sorted({0, *kept})
        neighbours = list(pairwise(ends))
        found.seed = secrets.randbits(32) if request.seed is None else request.seed
        if not neighbours:
            found.problems.append(f"sample: there are no two kept checkpoints (kept: {listed})")
        rng = random.Random(found.seed)
        segments += sorted(rng.sample(neighbours, min(request.sample, len(neighbours))))
    return segments


def _say_what_is_left(done: list[Segment], last: int, found: Findings) -> None:
    """The steps that no replay has executed with success."""
    position, gaps = -1, []  # a segment from 0 makes step 0 as well
    for start, end in sorted(done):
        if start > max(position, 0):
            gaps.append(f"{position + 1}..{start}")
        position = max(position, end)
    if last > position:
        gaps.append(f"{position + 1}..{last}")
    if gaps:
        found.not_proved.append(f"that executing steps {', '.join(gaps)} leads to what is stored")


def _check_unnamed(
    files: CheckpointFolder, folder: Path, valid: list[int], found: Findings
) -> None:
    """Selected states: those that no valid checkpoint names must be whole too."""
    named = {files.named_by(step) for step in valid}
    for step in files.selected_steps():
        if step in named:
            continue
        path = files.selected_path(step)
        try:
            read_state_file(path, "selected")
        except RunError as error:
            disproof = disproof_of(error, folder)
            if disproof is None:
                found.problems.append(str(error))
            elif all(str(error) != other.text for other in found.disproved):
                found.disproved.append(disproof)
        else:
            found.not_proved.append(
                f"{path.relative_to(folder)}: its digests hold, but no valid checkpoint names it"
            )
