"""The loop that every kernel test makes: all instruction sets, several numbers of threads.

Threads share even the smallest work, so that small arrays are cut too.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llmcy import _kernels
from tests.oracle.scalar import assert_same_bits

THREADS = (1, 2, 3, 7)


def everywhere(call: Callable[[int], Any], expected: Any, threads: Sequence[int] = THREADS) -> None:
    """``call(n_threads)`` gives the expected array or arrays, on every instruction set."""
    for name in _kernels.available_isas():
        with _kernels.use_isa(name), _kernels.smallest_chunks():
            for n_threads in threads:
                actual = call(n_threads)
                if not isinstance(expected, tuple):
                    actual, wanted = (actual,), (expected,)
                else:
                    wanted = expected
                for a, e in zip(actual, wanted, strict=True):
                    assert_same_bits(a, e)
