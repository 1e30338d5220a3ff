"""A training step makes no large array after the first: its memory is used again."""

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

import llmcy
from llmcy import kernels
from llmcy._kernels import memory
from llmcy.config import ModelConfig
from llmcy.model import Decoder
from llmcy.optim import AdamW, AdamWConfig
from llmcy.recorded import RecordedStep
from llmcy.state import DecoderModelState

CONFIG = ModelConfig(vocab_size=65, d_model=64, n_heads=4, n_layers=2, d_ff=96, max_seq_len=32)
LARGE = memory.SMALLEST  # bytes


def training(dtype: str, limit: int) -> tuple[Decoder, RecordedStep, Callable[[], float]]:
    model = Decoder.initialize(ModelConfig.from_dict(CONFIG.to_dict() | {"dtype": dtype}), 1)
    optimizer = AdamW(AdamWConfig(1e-3))
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, CONFIG.vocab_size, (2, 8, 32))
    step = RecordedStep(model, limit=limit)

    def update() -> float:
        loss = step.run(inputs, targets)
        optimizer.step_clipped(model.named_parameters(), 1.0)
        model.zero_grad()
        return loss

    return model, step, update


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("limit", [0, 2**30], ids=["tape", "recorded"])
def test_a_step_makes_no_large_array_after_the_first(dtype: str, limit: int) -> None:
    _, _, update = training(dtype, limit)
    losses = [update(), update()]
    gc.collect()
    before = memory.made()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        losses += [update() for _ in range(3)]
        peak = tracemalloc.get_traced_memory()[1]
        traces = tracemalloc.take_snapshot().traces
    finally:
        tracemalloc.stop()
    assert memory.made() == before
    assert all(trace.size < LARGE for trace in traces)
    # numpy's own arrays below that size add up to little: activations alone would be 5 MB
    assert peak - start < 1_000_000
    assert losses == sorted(losses, reverse=True)


def test_a_recorded_step_takes_the_memory_of_an_ordinary_one() -> None:
    gc.collect()
    llmcy.release_memory()
    assert memory.held() == 0
    _, _, update = training("float32", 0)
    update()
    gc.collect()
    ordinary = memory.held()
    assert ordinary > 1_000_000
    llmcy.release_memory()
    _, step, update = training("float32", 2**30)
    for _ in range(2):
        update()
    ((_, _, recorded),) = step._steps.values()
    assert recorded.nbytes < 1.25 * ordinary


def test_memory_of_recorded_steps_returns_with_them() -> None:
    model, step, update = training("float32", 2**30)
    update()
    gc.collect()
    before = memory.held()
    ((_, _, recorded),) = step._steps.values()
    size = recorded.nbytes
    del model, step, update, recorded
    gc.collect()
    assert memory.held() > before + size // 2


def test_a_recording_is_given_up_while_one_of_its_arrays_is_in_use() -> None:
    x = np.ones(LARGE)
    with kernels.Recording(2**30) as recording:
        kept = kernels.add(x, x)
        kernels.multiply(kept, kept)
    assert recording.finish() is None
    calls = recording.finish([kept])
    assert calls is not None
    x[:] = 2.0
    assert calls.run()
    assert (kept == 4.0).all()


def test_places_are_used_again_and_keep_their_order() -> None:
    x = np.arange(float(LARGE))
    out = np.empty(1)
    with kernels.Recording(2**30) as recording:
        total = kernels.add(x, x)
        for _ in range(5):
            total = kernels.add(total, x)
        kernels.matmul(total[None, :], x[:, None], out=out.reshape(1, 1))
        del total
    calls = recording.finish()
    assert calls is not None
    assert calls.nbytes < 4 * x.nbytes
    first = out.copy()
    x *= 2.0
    others = [kernels.zeros(x.shape) for _ in range(4)]  # may not take the recording's places
    assert calls.run()
    assert out[0] == 4.0 * first[0]
    assert not any(other.any() for other in others)


def test_a_failed_recording_returns_its_memory() -> None:
    def fail() -> None:
        with kernels.Recording(2**30):
            x = kernels.zeros((LARGE,))
            kernels.add(x, x)
            raise RuntimeError

    gc.collect()
    llmcy.release_memory()
    with pytest.raises(RuntimeError):
        fail()
    gc.collect()
    assert memory.held() >= 2 * 8 * LARGE
    made = memory.made()
    kernels.zeros((LARGE,))  # served by the store again, not by a workspace
    assert memory.made() == made


def test_a_recording_beyond_its_limit_keeps_nothing() -> None:
    x = np.ones(LARGE)
    gc.collect()
    llmcy.release_memory()
    with kernels.Recording(10 * 8 * LARGE) as recording:
        sums = [kernels.add(x, x) for _ in range(12)]
    assert recording.finish() is None
    assert all((total == 2.0).all() for total in sums)
    del sums, recording
    gc.collect()
    assert memory.held() >= 12 * 8 * LARGE


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_parameters_and_moments_start_at_cache_lines(dtype: str) -> None:
    """A vector load that straddles two lines costs two."""
    drawn = Decoder.initialize(ModelConfig.from_dict(CONFIG.to_dict() | {"dtype": dtype}), 1)
    optimizer = AdamW(AdamWConfig(1e-3))
    drawn.loss(np.zeros((1, 4), int), np.ones((1, 4), int)).backward()
    optimizer.step_clipped(drawn.named_parameters(), 1.0)
    state = DecoderModelState.snapshot(drawn)
    for model in (drawn, state.restore_independent_model()):
        large = [p.data for _, p in model.named_parameters() if p.data.nbytes >= LARGE]
        assert len(large) > 10
        assert {x.ctypes.data % 64 for x in large} == {0}
    moments = AdamW.from_state(AdamWConfig(1e-3), None, optimizer.state())._moments
    assert moments is not None
    assert {
        x.ctypes.data % 64 for x in (*moments.first, *moments.second) if x.nbytes >= LARGE
    } == {0}
