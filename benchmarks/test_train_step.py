"""A whole training step: ours, PyTorch's, and PyTorch's compiled; the same model and batch."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.subjects import step
from llmcy.bench.cases import LARGE, STEPS, step_case

TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


@cache
def first_losses(name: str, dtype: str) -> tuple[float, float, float]:
    """Losses of our first three updates: gradients, clipping and AdamW enter the later ones."""
    subject = step("llmcy", step_case(name), dtype)
    return subject(), subject(), subject()


@pytest.mark.parametrize("library", ["llmcy", "torch", "torch.compile"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [case.name for case in STEPS])
def test_training_step(
    timed, request: pytest.FixtureRequest, name: str, dtype: str, threads: int, library: str
) -> None:
    if library == "torch.compile" or name == LARGE.name:
        request.getfixturevalue("large")
    if library != "llmcy":
        pytest.importorskip("torch")
    ((loss,),) = [[float(array) for array in timed(library, "step", name, dtype, threads)]]
    wanted = first_losses(name, dtype)
    assert loss == pytest.approx(wanted[0], rel=TOLERANCE[dtype])
    again = step(library, step_case(name), dtype)
    if library != "llmcy":
        from benchmarks.torch_peer import clip_exactly

        again.clip = clip_exactly
    assert [again(), again(), again()] == pytest.approx(wanted, rel=TOLERANCE[dtype])
