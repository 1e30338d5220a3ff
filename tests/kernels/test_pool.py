"""The thread pool: forked children and several Python threads."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from llmcy import _kernels
from llmcy._threads import num_threads, resolve_threads, set_num_threads
from llmcy.errors import ConfigError

BIG = 1 << 18  # elements: enough for every thread to get a chunk


def add(a: np.ndarray, b: np.ndarray, n_threads: int) -> np.ndarray:
    out = np.empty_like(a)
    _kernels.for_dtype(a.dtype).elementwise.add(a, b, out, n_threads)
    return out


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_child_of_a_fork_computes_after_the_parent_used_threads() -> None:
    a = np.arange(BIG, dtype=np.float64)
    assert np.array_equal(add(a, a, 4), a + a)
    pid = os.fork()
    if pid == 0:
        ok = all(np.array_equal(add(a, a, n), a + a) for n in (1, 2, 4))
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert np.array_equal(add(a, a, 4), a + a)


def test_several_python_threads_at_once() -> None:
    wrong: list[int] = []

    def many(seed: int) -> None:
        a = np.random.default_rng(seed).standard_normal(BIG)
        for _ in range(50):
            if not np.array_equal(add(a, a, 3), a + a):
                wrong.append(seed)

    threads = [threading.Thread(target=many, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_more_threads_than_items_and_empty_arrays() -> None:
    for n in (0, 1, 2, 5):
        a = np.arange(n, dtype=np.float32)
        assert np.array_equal(add(a, a, 7), a + a)


@pytest.mark.parametrize("value", [0, -1, 257, 1.0, True, "2"])
def test_thread_counts_out_of_range_are_refused(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_threads(value)  # type: ignore[arg-type]
    assert caught.value.kind == "InvalidThreadCount"
    assert caught.value.value == value


def test_set_num_threads_is_what_calls_use() -> None:
    before = num_threads()
    try:
        set_num_threads(3)
        assert resolve_threads(None) == 3
        assert resolve_threads(2) == 2
    finally:
        set_num_threads(before)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_smallest_chunks_share_out_work_that_stays_on_one_thread_otherwise() -> None:
    program = (
        "import os, numpy as np\n"
        "from llmcy import _kernels\n"
        "a = np.arange(9.0)\n"
        "def tasks():\n"
        "    _kernels.for_dtype(a.dtype).elementwise.add(a, a, np.empty(9), 3)\n"
        "    return len(os.listdir('/proc/self/task'))\n"
        "alone = tasks()\n"
        "with _kernels.smallest_chunks():\n"
        "    shared = tasks()\n"
        "print(shared - alone)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n"
