"""The self test: the published runs on every instruction set, with 1, 2 and 3 threads.

Each combination runs everything again and compares it with what was published.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmcy import _kernels
from llmcy._threads import num_threads, set_num_threads
from llmcy.reference import expected
from llmcy.reference.fixtures import PUBLISHED, wide
from llmcy.reference.inference import measure_inference
from llmcy.reference.replay_report import MeasuredReplay, measure_replay, replay_report
from llmcy.reference.report import training_report
from llmcy.reference.text import float_bits, record
from llmcy.reference.trace import training_trace
from llmcy.reference.training import (
    MeasuredTraining,
    measure_training,
    moments_fingerprint,
)
from llmcy.state import DecoderModelState

__all__ = ["THREADS", "Published", "compare", "measure_published", "odd_sized", "run_selftest"]

THREADS = (1, 2, 3)


@dataclass(frozen=True)
class Published:
    """The published run, measured once."""

    training: MeasuredTraining
    replay: MeasuredReplay

    @property
    def training_report(self) -> str:
        """The training report's lines."""
        return training_report(self.training)

    @property
    def replay_report(self) -> str:
        """The checkpoint report's lines."""
        return replay_report(self.replay)

    @property
    def trace(self) -> str:
        """The trace's lines."""
        return training_trace(self.training)


def measure_published() -> Published:
    """Train, select, save, load, replay, damage and replace."""
    training = measure_training(PUBLISHED)
    return Published(training, measure_replay(training.result.selected_training_state))


def compare(published: Published) -> list[str]:
    """What differs from the published values; empty when nothing does."""
    result, replay = published.training.result, published.replay
    checks: list[tuple[str, object, object]] = [
        (
            "initial parameters",
            DecoderModelState.snapshot(PUBLISHED.model()).fingerprint(),
            expected.INITIAL_STATE,
        ),
        (
            "update losses",
            float_bits(step.train_loss for step in result.steps),
            expected.UPDATE_LOSS_BITS,
        ),
        (
            "gradient norms",
            float_bits(step.norm_before for step in result.steps),
            expected.NORM_BITS,
        ),
        (
            "clip scales",
            float_bits(step.transform.scale for step in result.steps),
            expected.SCALE_BITS,
        ),
        (
            "measured losses",
            tuple(
                float_bits((checkpoint.train.loss, checkpoint.validation.loss))
                for checkpoint in result.checkpoints
            ),
            expected.CHECKPOINT_LOSS_BITS,
        ),
        ("selected parameters", result.selected_state.fingerprint(), expected.SELECTED_STATE),
        ("final parameters", result.final_state.fingerprint(), expected.SELECTED_STATE),
        ("checkpoint checksum", replay.encoded.checksum_label, expected.FILE_CHECKSUM),
        ("logits", replay.logits_label, expected.LOGITS),
        ("logits after the replay", replay.branch.logits_label, expected.REPLAYED_LOGITS),
        ("next draw", replay.next_draw, expected.DRAW),
    ]
    problems = [
        f"{name}: measured {_shown(actual)}, published {_shown(wanted)}"
        for name, actual, wanted in checks
        if actual != wanted
    ]
    for name, text, wanted_text in (
        ("training report", published.training_report, expected.TRAINING_REPORT),
        ("checkpoint report", published.replay_report, expected.REPLAY_REPORT),
        ("trace", published.trace, expected.TRACE),
    ):
        problems += [f"{name}: {line}" for line in _difference(text, wanted_text)]
    return problems


def odd_sized(dtype: str) -> Iterator[tuple[float, expected.OddSized]]:
    """Ceiling and measured fingerprints of each odd-sized run in float64 or float32."""
    for ceiling in expected.ODD_SIZED:
        fixture = wide(ceiling)
        config = replace(fixture.model_config, dtype=dtype)
        result = replace(fixture, model_config=config).train_decoder()
        yield (
            ceiling,
            expected.OddSized(
                result.final_state.fingerprint(),
                moments_fingerprint(result.final_optimizer.state()),
                result.selected_step,
            ),
        )


def run_selftest() -> Iterator[tuple[str, bool]]:
    """Yield (line, is it a problem) while the test goes on.

    First the report lines of one run, then for every instruction set and number of threads the
    problems found there, if any, and lines with what was measured there.
    """
    threads_before = num_threads()
    reported = False
    try:
        for isa in _kernels.available_isas():
            # the runs are small: without smallest chunks a second thread would never get work
            with _kernels.use_isa(isa), _kernels.smallest_chunks():
                for n_threads in THREADS:
                    set_num_threads(n_threads)
                    published = measure_published()
                    if not reported:
                        reported = True
                        text = published.training_report + published.replay_report
                        yield from ((line, False) for line in text.splitlines())
                    yield from _one_combination(isa, n_threads, published)
    finally:
        set_num_threads(threads_before)


def _one_combination(isa: str, n_threads: int, published: Published) -> Iterator[tuple[str, bool]]:
    where = f"{isa}, {n_threads} threads"
    problems = compare(published)
    problems += measure_inference(published.training, published.replay.encoded.bytes).problems()
    lines = []
    for key, dtype, wanted in (
        ("odd_sized", "float64", expected.ODD_SIZED),
        ("odd_sized_float32", "float32", expected.ODD_SIZED_FLOAT32),
    ):
        runs = dict(odd_sized(dtype))
        problems += [
            f"{key} under {ceiling:g}: measured {run}, expected {wanted[ceiling]}"
            for ceiling, run in runs.items()
            if run != wanted[ceiling]
        ]
        shown = {
            f"clip_{ceiling:g}": f"{_digits(run.parameters)},{_digits(run.moments)},"
            f"{run.selected_step}"
            for ceiling, run in runs.items()
        }
        lines.append(record(key, isa=isa, threads=n_threads, **shown))
    yield from ((f"problem on {where}: {problem}", True) for problem in problems)
    replay = published.replay
    yield (
        record(
            "run",
            isa=isa,
            threads=n_threads,
            checkpoint=_digits(replay.encoded.checksum_label),
            logits=_digits(replay.logits_label),
            replayed_logits=_digits(replay.branch.logits_label),
            next_draw=f"0x{replay.next_draw:016x}",
            published=not problems,
        ),
        False,
    )
    yield from ((line, False) for line in lines)


def _digits(label: str) -> str:
    return label.removeprefix("fnv1a64:")


def _shown(value: object) -> str:
    if isinstance(value, int):
        return f"0x{value:016x}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_shown(item) for item in value) + ")"
    return str(value)


def _difference(text: str, wanted: str) -> list[str]:
    """Lines that differ, '-' published and '+' measured."""
    lines = difflib.ndiff(wanted.splitlines(), text.splitlines())
    return [line for line in lines if line[:1] in "-+"]
