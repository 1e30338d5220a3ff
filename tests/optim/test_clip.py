"""The global norm, the ceiling, and what clipping leaves alone."""

import math
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.errors import OptimizerError
from llmcy.optim import ClipTransform, GradientClip, clip_grad_norm, measure_grad_norm
from llmcy.tape import Tensor
from tests.oracle.clip import Clip, clip_f32, clip_f64


def parameter(gradient: object, dtype: str = "float64") -> Tensor:
    array = np.array(gradient, dtype)
    tensor = Tensor(np.zeros(array.shape, dtype), requires_grad=True)
    tensor.grad = array
    return tensor


def parameters(*gradients: object, dtype: str = "float64") -> list[tuple[str, Tensor]]:
    return [(f"p{k}", parameter(g, dtype)) for k, g in enumerate(gradients)]


def plain(clip: GradientClip) -> Clip:
    t = clip.transform
    pair = ("uniform", t.scale) if t.divisor is None else ("normalized", t.divisor, t.multiplier)
    return clip.norm_before, clip.norm_after, pair, clip.clipped


@pytest.mark.feature("A21")
def test_a_zero_norm() -> None:
    for dtype in ("float64", "float32"):
        clip = clip_grad_norm(parameters([0.0, -0.0], [[0.0]], dtype=dtype), 0.35)
        assert plain(clip) == (0.0, 0.0, ("uniform", 1.0), False)
        assert clip.transform.is_identity


@pytest.mark.feature("A22")
def test_a_small_norm_leaves_gradients_alone() -> None:
    named = parameters([0.15, -0.2])
    clip = clip_grad_norm(named, 1.0)
    assert clip.norm_before == clip.norm_after == 0.25
    assert clip.transform.is_identity
    assert named[0][1].grad.tolist() == [0.15, -0.2]


@pytest.mark.feature("A24")
def test_the_worked_example() -> None:
    named = parameters([1.4])
    assert plain(clip_grad_norm(named, 0.35)) == (1.4, 0.35, ("uniform", 0.25), True)


@pytest.mark.feature("A23")
def test_a_large_norm_comes_down_to_the_ceiling() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        gradient = rng.standard_normal(300) * 10.0 ** rng.integers(-3, 4)
        ceiling = float(rng.uniform(0.01, 0.9)) * float(np.linalg.norm(gradient))
        clip = clip_grad_norm(parameters(gradient), ceiling)
        scaled = measure_grad_norm(parameters(gradient * clip.transform.scale)).norm
        assert clip.clipped
        assert clip.norm_after == ceiling
        assert math.isclose(scaled, ceiling, rel_tol=1e-14)


@pytest.mark.feature("A19")
def test_cutting_a_tensor_in_two_keeps_the_bits() -> None:
    gradient = np.random.default_rng(2).standard_normal(9000) ** 3
    for dtype in ("float64", "float32"):
        values = gradient.astype(dtype)
        whole = clip_grad_norm(parameters(values, dtype=dtype), 0.1)
        for cut in (1, 17, 4096, 4097, 8999):
            pieces = values[:cut], values[cut:].reshape(-1, 1)
            assert clip_grad_norm(parameters(*pieces, dtype=dtype), 0.1) == whole
        turned = clip_grad_norm(parameters(values[5000:], values[:5000], dtype=dtype), 0.1)
        assert turned != whole  # the order of the tensors is part of the definition


@pytest.mark.feature("A20")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nothing_as_large_as_a_tensor_is_allocated(dtype: str) -> None:
    named = parameters(*(np.ones(50_000) for _ in range(8)), dtype=dtype)
    clip_grad_norm(named, 0.35)  # modules loaded
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        clip_grad_norm(named, 0.35)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - before < 10_000


ANY_FLOAT = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.lists(st.lists(ANY_FLOAT, max_size=9), min_size=1, max_size=4),
    st.floats(1e-320, 1e308, exclude_min=True),
)
def test_float64_against_one_operation_at_a_time(
    gradients: list[list[float]], ceiling: float
) -> None:
    expected = clip_f64([x for gradient in gradients for x in gradient], ceiling)
    if expected is None:
        with pytest.raises(OptimizerError) as caught:
            clip_grad_norm(parameters(*gradients), ceiling)
        assert caught.value.kind == "UnrepresentableGradientClip"
    else:
        assert plain(clip_grad_norm(parameters(*gradients), ceiling)) == expected


@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=9),
             min_size=1, max_size=4),
    st.floats(1e-3, 1e30),
)  # fmt: skip
def test_float32_against_one_operation_at_a_time(
    gradients: list[list[float]], ceiling: float
) -> None:
    expected = clip_f32([x for gradient in gradients for x in gradient], ceiling)
    assert plain(clip_grad_norm(parameters(*gradients, dtype="float32"), ceiling)) == expected


def test_float32_blocks_run_through_all_tensors() -> None:
    values = (np.random.default_rng(3).standard_normal(20_000) ** 5).astype(np.float32)
    pieces = np.split(values, [5, 5000, 5001, 13_000])
    expected = clip_f32(values.astype(np.float64).tolist(), 1.0)
    assert plain(clip_grad_norm(parameters(*pieces, dtype="float32"), 1.0)) == expected


def test_extreme_norms() -> None:
    huge = parameters([1e308, 1e308, -1e308, 1e308])
    clip = clip_grad_norm(huge, 1.0)
    assert clip.norm_before == sys.float_info.max
    assert clip.transform == ClipTransform.uniform((1.0 / 1e308) / 2.0)
    tiny = clip_grad_norm(huge, 1e-300)
    assert tiny.transform == ClipTransform.normalized(1e308, 1e-300 / 2.0)
    assert tiny.clipped
    assert tiny.transform.as_pair() == (1e308, 5e-301)
    with pytest.raises(OptimizerError) as caught:
        clip_grad_norm(huge, 5e-324)
    assert caught.value.kind == "UnrepresentableGradientClip"
    assert (caught.value.maximum, caught.value.scaled_root) == (5e-324, 2.0)


def test_the_decision_compares_scaled_quantities() -> None:
    """A norm whose rounded product exceeds the ceiling can still be unclipped."""
    found = 0
    rng = np.random.default_rng(4)
    for _ in range(4000):
        gradient = rng.standard_normal(3)
        norm = measure_grad_norm(parameters(gradient))
        ceiling = math.nextafter(norm.norm, 0.0)
        clip = clip_grad_norm(parameters(gradient), ceiling)
        assert clip.clipped == (norm.top > ceiling / norm.root)
        found += not clip.clipped
    assert found > 0


@pytest.mark.feature("B29")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_gradient_that_is_not_finite_is_named(bad: float, dtype: str) -> None:
    named = parameters([1.0, 2.0], [[0.0, 1.0], [3.0, bad]], [bad], dtype=dtype)
    with pytest.raises(OptimizerError) as caught:
        clip_grad_norm(named, 0.35)
    error = caught.value
    assert (error.kind, error.name, error.index) == ("NonFiniteGradient", "p1", 3)
    assert str(error.value) == str(bad)


def test_a_missing_gradient_is_named() -> None:
    named = [*parameters([1.0]), ("lonely", Tensor(np.zeros(2), requires_grad=True))]
    with pytest.raises(OptimizerError) as caught:
        clip_grad_norm(named, 0.35)
    assert (caught.value.kind, caught.value.name) == ("MissingGradient", "lonely")


@pytest.mark.parametrize("ceiling", [0.0, -1.0, math.nan, math.inf])
def test_a_ceiling_that_is_none(ceiling: float) -> None:
    with pytest.raises(OptimizerError) as caught:
        clip_grad_norm(parameters([1.0]), ceiling)
    assert caught.value.kind == "InvalidMaximumGradientNorm"


@pytest.mark.parametrize("scale", [-0.1, 1.1, math.nan, math.inf])
def test_a_scale_outside_its_range(scale: float) -> None:
    with pytest.raises(OptimizerError) as caught:
        ClipTransform.uniform(scale).check()
    assert caught.value.kind == "InvalidGradientScale"


@pytest.mark.parametrize(
    ("divisor", "multiplier"),
    [(1.0, 2.0), (1.0, 0.0), (0.0, 0.0), (math.inf, 1.0), (math.nan, 1.0), (1.0, math.nan),
     (-1.0, -2.0)],
)  # fmt: skip
def test_a_normalization_outside_its_range(divisor: float, multiplier: float) -> None:
    with pytest.raises(OptimizerError) as caught:
        ClipTransform.normalized(divisor, multiplier).check()
    assert caught.value.kind == "InvalidGradientNormalization"
    with pytest.raises(OptimizerError):
        ClipTransform(1.0, divisor=2.0).check()
