"""How the cost of our training step grows with batch, context, layers and threads.

Groups belong together: time a token should stay flat over batches of equal context, and two threads
should take little more than half the time of one.
"""

from __future__ import annotations

import time

import pytest

from benchmarks.subjects import build
from llmcy.bench.cases import SCALING, StepCase

CASES = [(growing, case) for growing, cases in SCALING.items() for case in cases]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("growing", "case"), CASES, ids=lambda value: getattr(value, "name", value)
)
def test_step_scales(benchmark, growing: str, case: StepCase, dtype: str, threads: int) -> None:
    benchmark.group = f"scaling with {growing} {dtype} {threads} threads"
    subject = build("llmcy", "step", case.name, dtype, threads)
    losses = [subject(), subject()]
    time.sleep(0.05)
    benchmark.pedantic(subject, rounds=5, iterations=1, warmup_rounds=1)
    if benchmark.stats is not None:  # None with --benchmark-disable
        median = benchmark.stats.stats.median
        benchmark.extra_info["us a token"] = median / case.tokens * 1e6
        benchmark.extra_info["GFLOP/s"] = case.flops / median / 1e9
    assert losses[1] < losses[0]  # an update on the same batch lowers its loss


def test_another_number_of_threads_changes_no_loss() -> None:
    subjects = [build("llmcy", "step", "batch 1", "float32", threads) for threads in (1, 2)]
    first = [subjects[0](), subjects[0]()]
    assert [subjects[1](), subjects[1]()] == first
