"""Training into a run folder and continuing there: what ``llmcy train`` and ``llmcy resume`` do."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from llmcy import available_isas, isa, num_threads
from llmcy._version import __version__
from llmcy.bigram import BigramModel, score_probabilities
from llmcy.data import MiniBatchEpoch, Partition, TextDataset, target_byte_count
from llmcy.errors import RunError
from llmcy.run.checkpoints import CHECKPOINTS, SELECTED
from llmcy.run.directory import RunDirectory
from llmcy.run.initial import InitialModel, check_initial, write_initial
from llmcy.run.job import Added, Job, Watcher
from llmcy.run.model_file import encode_selected
from llmcy.run.options import JobOptions
from llmcy.run.plan import RunPlan
from llmcy.run.sessions import Epochs, make_epochs
from llmcy.run.settings import TrainSettings
from llmcy.run.store import read_dataset, write_dataset
from llmcy.trainer import Best
from llmcy.trainer.preflight import check_epochs

__all__ = [
    "TrainSummary",
    "open_run",
    "read_run",
    "resume_training",
    "run_training",
    "summarize",
]

LN_2 = 0.6931471805599453  # nearest float64 to the natural logarithm of 2
BIGRAM_ALPHA = 0.01  # smoothing of the baseline; small, because most pairs never occur


@dataclass(frozen=True)
class TrainSummary:
    """How a run ended.

    Attributes
    ----------
    run
        The run folder.
    selected_step, validation_loss
        The measured step with the smallest validation loss, and that loss in nats a token.
    bigram_loss
        Loss of a smoothed bigram model, fitted on the training documents, on the same targets.
    fingerprint
        ``fnv1a64:`` label of the selected parameters.
    n_parameters
        Scalars of the model.
    history
        Digest of all records of the run.
    """

    run: RunDirectory
    selected_step: int
    validation_loss: float
    bits_per_byte: float
    bigram_loss: float
    fingerprint: str
    n_parameters: int
    history: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "selected_step": self.selected_step,
            "validation_loss": self.validation_loss,
            "validation_loss_hex": self.validation_loss.hex(),
            "validation_bits_per_byte": self.bits_per_byte,
            "bigram_validation_loss": self.bigram_loss,
            "parameters": self.n_parameters,
            "fingerprint": self.fingerprint,
            "history": self.history,
        }


def never() -> bool:
    """Nobody asks the run to stop."""
    return False


def run_training(
    dataset: TextDataset,
    settings: TrainSettings,
    path: str | os.PathLike[str],
    options: JobOptions | None = None,
    *,
    initial: InitialModel | None = None,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = never,
) -> TrainSummary:
    """Train a model on ``dataset`` and leave everything in the run folder ``path``.

    All settings, windows and sizes are checked before the folder is made.

    Parameters
    ----------
    dataset
        Encoded documents with their split.
    settings
        Sizes, rates, seeds.
    path
        A folder that does not exist or is empty.
    options
        Checkpoints, memory, failures.
    initial
        A model to train on from instead of values from the seed; the settings must give its sizes
        (`TrainSettings.for_model`), the data must be encoded with its number of ids.
    watcher
        Who is told what happens.
    stop
        Asked after every step; True saves and stops.

    Raises
    ------
    LlmcyError
        Whatever is wrong with settings or data, naming it; ``RunError`` for the folder,
        ``InitialModelMismatch`` naming the size that differs, ``Stopped`` when ``stop`` said so,
        ``SaveFailed`` when something could not be written.
    """
    options = options or JobOptions()
    config = settings.model_config(dataset.tokenizer.vocab_size)
    if initial is not None:
        initial.check(config)
    epochs = make_epochs(dataset, settings)
    check_epochs(config, epochs.update.epoch(0), epochs.train_evaluation, epochs.validation)
    batches = epochs.update.batch_count
    trainer_plan = settings.trainer_config(batches)

    run = RunDirectory.create(path)
    with run.locked():
        for name in (CHECKPOINTS, SELECTED):
            run.make_folder(name)
        plan = RunPlan(
            settings,
            config,
            trainer_plan.schedule.rates(),
            trainer_plan.validation_steps,
            write_dataset(run, dataset),
            batches,
            options,
            initial=None if initial is None else write_initial(run, initial, dataset.tokenizer),
        )
        run.write_json("config.json", plan.to_dict())  # the last one: now it is a run
        plan, stored = read_run(run)
        job = Job(run, plan, stored, options, watcher or Watcher())
        return _carry_out(job, stop)


def resume_training(
    path: str | os.PathLike[str],
    options: JobOptions | Mapping[str, Any] | None = None,
    *,
    extend: Added | None = None,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = never,
) -> TrainSummary:
    """Continue a run from its newest valid checkpoint, to the same bits as without a break.

    Parameters
    ----------
    path
        A run folder.
    options
        How to carry it out; None does it as the run was begun, and a mapping says what is to be
        another way than then.
    extend
        Updates to add first, unless the run has them already; or a function of the plan that tells
        them.
    watcher, stop
        As in :func:`run_training`.

    Raises
    ------
    RunError
        ``NotARun``, ``NotResumable``, ``RunChanged``, ``InvalidTokens``, ``NoValidCheckpoint``,
        ``ExtensionRefused``, ``Locked``; while running as :func:`run_training`.
    """
    run = open_run(path)
    with run.locked():
        plan, dataset = read_run(run)
        if not isinstance(options, JobOptions):
            options = replace(plan.options, **(options or {}))
        job = Job(run, plan, dataset, options, watcher or Watcher(), extend)
        if job.plan is not plan:  # nothing speaks against it
            run.write_json("config.json", job.plan.to_dict())
        return _carry_out(job, stop)


def open_run(path: str | os.PathLike[str]) -> RunDirectory:
    """The run folder at ``path``; a file there is refused with the reason.

    Raises
    ------
    RunError
        ``NotResumable`` for a file, ``NotARun``.
    """
    file = Path(path)
    if file.is_file():
        with file.open("rb") as opened:
            first_version = opened.read(8) == b"LLMCP35\0"
        reason = (
            "a version-1 checkpoint holds a model and its optimizer, but no schedule, no place in "
            "the data, no shuffle state and no history"
            if first_version
            else "a run continues from its folder, which holds the data, the plan and the history"
        )
        raise RunError(
            "NotResumable",
            f"cannot continue from the file {str(file)!r}: {reason}",
            path=str(file),
            reason=reason,
        )
    return RunDirectory.open(file)


def read_run(run: RunDirectory) -> tuple[RunPlan, TextDataset]:
    """The plan of a run folder and its stored data, which must be what the plan was made for.

    Raises
    ------
    RunError
        ``RunChanged`` naming the field; ``InvalidTokens``; ``Io``; ``NotARun``.
    """
    config = run.read_json("config.json")
    dataset, digests = read_dataset(run)
    plan = RunPlan.from_dict(config, dataset.tokenizer.vocab_size)
    for field, expected in plan.data.items():
        if digests.get(field) != expected:
            raise RunError(
                "RunChanged",
                f"the run has changed: {field} had the digest {expected}, "
                f"now has {digests.get(field)}",
                field=f"data.{field}",
                expected=expected,
                actual=digests.get(field),
            )
    check_initial(run, plan)
    return plan, dataset


def _carry_out(job: Job, stop: Callable[[], bool]) -> TrainSummary:
    """Take a run from where it stands to the end of its plan."""
    try:
        with suppress(RunError):  # for information only: a full disk is met where it matters
            _note_environment(job.directory, job.options)
        job.run(stop)
        try:
            return _conclude(job)
        except RunError as error:
            raise RunError(
                "SaveFailed",
                f"{error}; step {job.plan.steps} is saved",
                cause=error,
                path=str(job.directory.path),
                step=job.plan.steps,
            ) from error
    finally:
        job.close()


def _note_environment(run: RunDirectory, options: JobOptions) -> None:
    """One line for every start of a process; for information, no result depends on it."""
    run.append_information(
        "environment.jsonl",
        {
            "llmcy": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "safetensors": safetensors.__version__,
            "platform": platform.platform(),
            "machine": platform.machine(),
            "instruction_set": isa(),
            "available_instruction_sets": list(available_isas()),
            "threads": num_threads(),
            "arguments": sys.argv[1:],
            "options": options.to_dict(),
        },
    )


# --------------------------------------------------------------------------- the end of a run
def _conclude(job: Job) -> TrainSummary:
    """Write the selected state and the summary of a finished run."""
    best = job.session.best
    assert best is not None  # step 0 is always measured
    _write_selected(job, best)
    summary = summarize(job.directory, job.plan, job.dataset, job.epochs, best, job.history)
    job.directory.write_json("summary.json", summary.to_dict())
    return summary


def summarize(
    run: RunDirectory,
    plan: RunPlan,
    dataset: TextDataset,
    epochs: Epochs,
    best: Best,
    history: str,
) -> TrainSummary:
    """How a run ended, from its best state and the digest of its records."""
    return TrainSummary(
        run,
        best.step,
        best.validation_loss,
        _bits_per_byte(best.validation_loss, dataset, epochs.validation),
        bigram_loss(dataset, epochs.validation),
        best.state.model.fingerprint(),
        plan.model.n_parameters,
        history,
    )


def bigram_loss(dataset: TextDataset, epoch: MiniBatchEpoch) -> float:
    """Mean loss of the smoothed bigram model on every target of ``epoch``."""
    training = [document.token_ids for document in dataset.documents.of(Partition.TRAIN)]
    bigram = BigramModel(dataset.tokenizer.vocab_size, BIGRAM_ALPHA, training)
    total, count = 0.0, 0
    for batch in epoch.batches:
        score = score_probabilities(bigram.probabilities(batch.inputs, batch.targets))
        total = total + score.total_nll
        count += score.target_count
    return total / float(count)


def _bits_per_byte(loss: float, dataset: TextDataset, epoch: MiniBatchEpoch) -> float:
    targets = epoch.window_count * epoch.context_length
    return loss * targets / target_byte_count(epoch, dataset.tokenizer) / LN_2


def _write_selected(job: Job, best: Best) -> None:
    name, data = encode_selected(job.dataset.tokenizer, best.state, job.plan.settings.seed)
    job.directory.write_bytes(name, data)
