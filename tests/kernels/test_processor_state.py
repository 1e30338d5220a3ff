"""Kernels compute alike whatever rounding and flushing another library has left in the thread, and
leave it as it was (numerics contract, part two, section 5)."""

import contextlib
import ctypes
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmcy import kernels
from llmcy._kernels import compensated
from llmcy.bench.cases import FIXTURE, step_case
from llmcy.bench.kernel_cases import KERNEL_CASES, Draw
from llmcy.bench.step import TrainingStep

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux",
    reason="writes MXCSR through glibc's x86 environment",
)

# bits of MXCSR
FOREIGN = {"downward": 0x2000, "upward": 0x4000, "to zero": 0x6000, "flushing": 0x8040}
MXCSR = 7  # its place in glibc's fenv_t, in 32-bit words
SMALL = replace(step_case("0.8M"), batch_size=2, context_length=32)


@contextlib.contextmanager
def processor_state(bits: int) -> Iterator[None]:
    """These bits in MXCSR; afterwards they must still be there."""
    libm = ctypes.CDLL("libm.so.6")
    before, now = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    libm.fegetenv(before)
    changed = (ctypes.c_uint32 * 8)(*before)
    changed[MXCSR] |= bits
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fegetenv(now)
        libm.fesetenv(before)
    assert now[MXCSR] & 0xE040 == bits


def words(result: Any) -> bytes:
    """The bits of everything in a result."""
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        return b"".join(words(part) for part in result)
    return np.asarray(result).tobytes() if result is not None else b""


def check(compute: Callable[[], Any], *, before: Callable[[], Any] = lambda: None) -> None:
    """``compute`` gives the same bits in every state; ``before`` prepares what it changes."""
    before()
    wanted = words(compute())
    for name, bits in FOREIGN.items():
        before()
        with processor_state(bits):
            found = compute()
        assert words(found) == wanted, name


def test_these_states_can_be_seen() -> None:
    numbers, divisors = np.array([1.0, 1.0, 2.0**-1060]), np.array([3.0, 10.0, 0.75])
    found = []
    for bits in FOREIGN.values():
        with processor_state(bits):
            found.append(words(numbers / divisors))
    assert words(numbers / divisors) not in found


@pytest.mark.parametrize("name", KERNEL_CASES)
def test_kernels_of_a_training_step(isa: str, name: str, dtype: np.dtype, n_threads: int) -> None:
    case = KERNEL_CASES[name]
    inputs = case.inputs(SMALL, Draw(dtype.name))
    kept = {key: x.copy() for key, x in inputs.items()}

    def restore() -> None:
        for key, x in kept.items():
            inputs[key][...] = x

    check(lambda: case.call(SMALL, inputs), before=restore)


def test_numbers_that_no_thread_shares(isa: str, dtype: np.dtype) -> None:
    draw = Draw(dtype.name)
    x, others = draw(9000, scale=1 / 3), [np.abs(draw(100)) for _ in range(4)]
    squares = x.astype(np.float64) ** 2
    d_out = np.array(0.7, dtype)
    logits, targets = draw(5, 11), np.arange(5) % 3
    rule = {
        "lr": 0.04, "beta1": 0.83, "beta2": 0.97, "eps": 1e-8, "weight_decay": 0.013,
        "correction1": 0.17, "correction2": 0.03, "multiplier": 0.37,
    }  # fmt: skip
    for compute in (
        lambda: kernels.sum(x),
        lambda: kernels.mean(x),
        lambda: kernels.mean_backward(d_out, (7,)),
        lambda: kernels.scale(x, 0.1),
        lambda: kernels.scale_backward(x, 0.1),
        lambda: kernels.grad_norm([x[:5000], x[5000:]]),
        lambda: kernels.cross_entropy(logits, targets),
        lambda: kernels.cross_entropy_backward(logits, targets, 0.1, 7),
        lambda: kernels.adamw_stages(*others, **rule),
        lambda: tuple(kernels.adamw_update(*others, **rule))[:3],
        lambda: compensated.total(squares),
        lambda: compensated.reach(squares, 1e4, 0.05),
    ):
        check(compute)


def test_sums_of_a_searched_gradient(isa: str, n_threads: int) -> None:
    arrays = [Draw("float32")(n, scale=1 / 3) for n in (3000, 70000, 9000)]

    def norm() -> Any:
        sums = kernels.BlockSums(arrays)
        for index, x in enumerate(arrays):
            search, arguments = sums.search(index, x, n_threads)
            assert search(*arguments) == -1
        return kernels.grad_norm(arrays, sums=sums)

    check(norm)


def test_attention_over_a_cache(isa: str, dtype: np.dtype) -> None:
    draw, width, length = Draw(dtype.name), 24, 9
    keys, values = kernels.empty_cache(1, 2, 16, width, dtype)
    rows, positions = np.zeros(length, np.int64), np.arange(length)
    kernels.cache_append(
        draw(length, 2 * width), draw(length, 2 * width), keys, values, rows, positions
    )
    new = draw(1, 2 * width), draw(1, 2 * width), draw(1, 2 * width)
    check(lambda: kernels.attention_step(*new, keys, values, rows[:1], np.array([length]), 2))


@pytest.mark.parametrize("recorded", [False, True])
def test_loss_and_gradients_of_a_step(dtype: np.dtype, recorded: bool) -> None:
    step = TrainingStep(replace(FIXTURE, batch_size=3), dtype.name, recorded=recorded)

    def run() -> Any:
        loss = step.recorded.run(step.inputs, step.targets)
        found = [loss, *(p.grad.copy() for _, p in step.model.named_parameters())]
        step.model.zero_grad()
        return found

    run()
    check(run)
