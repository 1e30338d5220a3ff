"""What ``llmcy bench`` measures: the machine, every kernel, whole training steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from llmcy._threads import num_threads, set_num_threads
from llmcy.bench.cases import StepCase
from llmcy.bench.kernel_cases import KERNEL_CASES, Draw
from llmcy.bench.peak import arithmetic_peak, read_bandwidth
from llmcy.bench.record import Measurement
from llmcy.bench.step import TrainingStep
from llmcy.bench.timing import BUSY, WALL, Clock, time_call

__all__ = ["Suite"]

SMALLEST, LARGEST = 1 << 16, 1 << 28  # bytes between which read bandwidth is measured


@dataclass
class Suite:
    """The measurements for some scalar types and thread counts.

    Attributes
    ----------
    dtypes, threads
        Each is combined with each.
    samples
        Of every figure; long steps get fewer.
    processor_time
        Count processor time for one thread, which does not see other programs.
    """

    dtypes: Sequence[str] = ("float32", "float64")
    threads: Sequence[int] = (1,)
    samples: int = 7
    processor_time: bool = False
    _peaks: dict[tuple[str, int], float] = field(default_factory=dict)
    _bandwidths: dict[tuple[int, int], float] = field(default_factory=dict)

    def machine(self) -> Iterator[Measurement]:
        """Arithmetic peaks and read bandwidths."""
        for threads in self.threads:
            for dtype in self.dtypes:
                peak = self.peak(dtype, threads)
                yield _rate("multiply-add in registers", dtype, threads, peak, "flop/s")
            for size in (1 << 18, 1 << 22, 1 << 28):
                name = f"read {size >> 10} KiB"
                yield _rate(name, "", threads, self.bandwidth(size, threads), "bytes/s")

    def kernels(self, case: StepCase) -> Iterator[Measurement]:
        """Every kernel on the sizes of ``case``, with its share of what bounds it."""
        for dtype in self.dtypes:
            for threads in self.threads:
                for name, kernel in KERNEL_CASES.items():
                    given = kernel.inputs(case, Draw(dtype))
                    with _threads(threads):
                        timing = time_call(
                            partial(kernel.call, case, given),
                            self.samples,
                            self._clock(threads),
                        )
                    facts = {}
                    if flops := kernel.flops(case):
                        facts["flop/s"] = flops / timing.median
                        facts["share of peak"] = facts["flop/s"] / self.peak(dtype, threads)
                    else:
                        size = kernel.values(case) * np.dtype(dtype).itemsize
                        facts["bytes/s"] = size / timing.median
                        facts["share of bandwidth"] = facts["bytes/s"] / self.bandwidth(
                            size, threads
                        )
                    yield Measurement(
                        f"kernel, sizes of {case.name}",
                        name,
                        "llmcy",
                        dtype,
                        threads,
                        timing.median,
                        best=timing.best,
                        facts=facts,
                    )

    def steps(self, cases: Sequence[StepCase]) -> Iterator[Measurement]:
        """Whole training steps: products and attention against the arithmetic peak."""
        for case in cases:
            for dtype in self.dtypes:
                step = TrainingStep(case, dtype)
                for threads in self.threads:
                    with _threads(threads):
                        timing = time_call(step, self.samples, self._clock(threads))
                    rate = case.flops / timing.median
                    yield Measurement(
                        "training step",
                        case.name,
                        "llmcy",
                        dtype,
                        threads,
                        timing.median,
                        best=timing.best,
                        facts={
                            "tokens/s": case.tokens / timing.median,
                            "flop/s": rate,
                            "share of peak": rate / self.peak(dtype, threads),
                        },
                    )

    def peak(self, dtype: str, threads: int) -> float:
        """Operations a second; measured once."""
        key = dtype, threads
        if key not in self._peaks:
            self._peaks[key] = arithmetic_peak(dtype, threads, self._clock(threads))
        return self._peaks[key]

    def bandwidth(self, size: float, threads: int) -> float:
        """Bytes a second for arrays of about that many bytes; measured once for a power of two."""
        rounded = 1 << round(np.log2(min(max(size, SMALLEST), LARGEST)))
        key = rounded, threads
        if key not in self._bandwidths:
            self._bandwidths[key] = read_bandwidth(rounded, threads, self._clock(threads))
        return self._bandwidths[key]

    def _clock(self, threads: int) -> Clock:
        return BUSY if self.processor_time and threads == 1 else WALL


def _rate(case: str, dtype: str, threads: int, value: float, unit: str) -> Measurement:
    return Measurement("machine", case, "llmcy", dtype, threads, value, unit)


@contextmanager
def _threads(threads: int) -> Iterator[None]:
    before = num_threads()
    set_num_threads(threads)
    try:
        yield
    finally:
        set_num_threads(before)
