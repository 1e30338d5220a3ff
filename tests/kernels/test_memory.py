"""New arrays whose memory is that of earlier ones."""

import gc
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy import kernels
from llmcy._kernels import memory

shapes = st.lists(st.integers(0, 90), max_size=3).map(tuple)


@given(shape=shapes, dtype=st.sampled_from([np.float64, np.float32, np.int64, np.dtype(">f8")]))
def test_arrays_are_like_those_of_numpy(shape, dtype):
    expected = np.empty(shape, dtype)
    for array in (kernels.empty(shape, dtype), kernels.empty_like(expected)):
        assert (array.shape, array.dtype) == (shape, expected.dtype)
        assert array.strides == expected.strides
        assert array.flags.carray
        array.fill(1)  # the memory is there
    zero = kernels.zeros(shape, dtype)
    assert not zero.any()
    assert not np.signbit(zero).any()


def test_memory_is_used_again_once_no_view_is_left():
    kernels.release_memory()
    first = kernels.empty((500, 200))
    address = first.ctypes.data
    assert address % 64 == 0
    view = first[3:]
    del first
    gc.collect()
    assert kernels.empty((500, 200)).ctypes.data != address  # the view still reads it
    del view
    gc.collect()
    held = memory.held()
    assert held > 0
    again = [kernels.empty((500, 200)) for _ in range(2)]
    assert address in [x.ctypes.data for x in again]
    assert memory.held() < held


def test_live_arrays_never_share_memory():
    arrays = []
    for i in range(40):
        arrays.append(kernels.zeros((40 + i % 3, 100)))
        arrays[-1].fill(i)
        if i % 4 == 3:
            del arrays[len(arrays) // 2]
    for x in arrays:
        assert (x == x[0, 0]).all()
    assert len({x[0, 0] for x in arrays}) == len(arrays)


def test_released_memory_is_gone():
    del [kernels.empty((600, 300)) for _ in range(3)][:]
    gc.collect()
    assert memory.held() > 0
    kernels.release_memory()
    assert memory.held() == 0


def test_arrays_in_use_outlive_a_release():
    """Their neighbours' memory goes back to the system, their own stays."""
    small = [kernels.zeros((30, 100)) for _ in range(1000)]  # 24 MB: two regions
    for i, x in enumerate(small):
        x.fill(i)
    del small[1::2]
    gc.collect()
    kernels.release_memory()
    assert memory.held() == 0
    more = [kernels.zeros((30, 100)) for _ in range(100)]
    for i, x in enumerate(small):
        assert (x == 2 * i).all()
    assert not any(x.any() for x in more)
    del small, x
    gc.collect()
    held = memory.held()
    kernels.release_memory()
    assert held == 0  # the last array of a region that was released takes it along


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
def test_released_regions_return_to_the_system():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    kernels.release_memory()
    kept = []
    before = resident()
    for _ in range(8):
        arrays = [kernels.zeros((30, 100)) for _ in range(2000)]  # 48 MB
        kept.append(arrays[700])
        del arrays
        gc.collect()
        kernels.release_memory()
    assert resident() - before < 100e6
    assert not any(x.any() for x in kept)


@given(sizes=st.lists(st.integers(memory.SMALLEST // 8, 400_000), min_size=1, max_size=30))
def test_every_size_has_room(sizes):
    arrays = [kernels.empty((size,)) for size in sizes]
    for i, x in enumerate(arrays):
        assert x.ctypes.data % 64 == 0
        x.fill(i)
    for i, x in enumerate(arrays):
        assert (x == i).all()


def test_threads_take_and_give_back_together():
    def work(seed):
        rng = np.random.default_rng(seed)
        mine = []
        for _ in range(300):
            x = kernels.empty((int(rng.integers(20, 60)), 100))
            x.fill(seed)
            mine.append(x)
            if len(mine) > 5:
                ok.append((mine.pop(0) == seed).all())

    ok = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ok) == 4 * 295
    assert all(ok)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_its_own_memory():
    x = kernels.zeros((500, 200))
    child = os.fork()
    if child == 0:
        y = kernels.empty((500, 200))
        y.fill(1)
        x.fill(2)
        os._exit(0 if (y == 1).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (x == 0).all()


def test_impossible_sizes_are_refused():
    with pytest.raises(MemoryError, match="too large"):
        kernels.empty((2**40, 2**40))
    with pytest.raises(MemoryError, match=r"no memory|too large"):
        kernels.empty((2**50, 2**8))
    with pytest.raises(ValueError, match="negative length"):
        kernels.empty((-1, 3))
    assert kernels.empty((2**20, 0, 2**20)).size == 0
