"""Peak memory of a training step, ours and PyTorch's, each in a child process."""

from __future__ import annotations

import sys

import pytest

from benchmarks.memory import measure_peak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["0.8M", "3.3M", "28M"])
def test_peak_memory_is_below_pytorchs(
    record_property, request: pytest.FixtureRequest, name: str, dtype: str
) -> None:
    pytest.importorskip("torch")
    if name == "28M":
        request.getfixturevalue("large")
    ours, theirs = (measure_peak(library, name, dtype) for library in ("llmcy", "torch"))
    record_property("llmcy_bytes", ours)
    record_property("torch_bytes", theirs)
    print(f"\n{name} {dtype}: {ours / 1e6:.1f} MB, PyTorch {theirs / 1e6:.1f} MB")
    assert ours < theirs
