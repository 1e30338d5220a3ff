"""Backward passes: order of contributions, release, refusal of stale graphs, all or nothing."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import ops
from llmcy.errors import AutodiffError, DTypeError, ShapeError
from llmcy.tape import BackwardPass, Node, Tensor, record
from tests.oracle import tape as oracle


def kind(caught) -> str:
    return caught.value.kind


def bits(array) -> bytes:
    return np.asarray(array).tobytes()


# ------------------------------------------------------------------ values
@st.composite
def graphs(draw):
    n_leaves = draw(st.integers(1, 3))
    leaves = [draw(st.floats(-2.0, 2.0, allow_subnormal=False)) for _ in range(n_leaves)]
    steps = []
    for i in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(["add", "multiply", "scale"]))
        # recent results are likelier, so that graphs are deep and share nodes
        index = st.integers(max(0, n_leaves + i - 4), n_leaves + i - 1) | st.integers(
            0, n_leaves + i - 1
        )
        steps.append((op, tuple(draw(index) for _ in range(1 if op == "scale" else 2))))
    return leaves, steps


@settings(max_examples=300, deadline=None)
@given(graphs(), st.sampled_from([(), (1,), (1, 1)]))
def test_contributions_arrive_in_the_order_of_the_contract(graph, shape):
    leaves, steps = graph
    tensors = [Tensor(np.full(shape, value), requires_grad=True) for value in leaves]
    results = list(tensors)
    for op, operands in steps:
        chosen = [results[i] for i in operands]
        results.append(ops.scale(*chosen, 3.7) if op == "scale" else getattr(ops, op)(*chosen))
    root = results[-1]
    expected_values = oracle.evaluate(leaves, steps)
    assert root.item() == expected_values[-1]
    root.backward()
    for tensor, expected in zip(tensors, oracle.gradients(leaves, steps), strict=True):
        got = np.zeros(shape) if tensor.grad is None else tensor.grad
        assert bits(got.reshape(())) == bits(np.float64(expected))


def test_an_operand_used_twice_sends_two_contributions():
    x = Tensor([3.0, -0.0], requires_grad=True)
    ops.add(x, x).backward(seed=[1.0, -0.0])
    assert bits(x.grad) == bits(np.array([2.0, 0.0]))


def test_gradients_accumulate_over_passes_until_zeroed():
    x = Tensor([2.0], requires_grad=True)
    for expected in (4.0, 8.0, 12.0):
        ops.sum(ops.multiply(x, x)).backward()
        assert x.grad.tolist() == [expected]
    x.zero_grad()
    assert bits(x.grad) == bits(np.zeros(1))
    ops.sum(ops.multiply(x, x)).backward()
    assert x.grad.tolist() == [4.0]


def test_stored_gradient_plus_adjoint_is_one_addition():
    x = Tensor([0.1], requires_grad=True)
    x.grad = np.array([0.3])
    ops.sum(ops.add(x, x)).backward()
    assert x.grad.tolist() == [0.3 + 2.0]


def test_minus_zero_never_survives_in_a_gradient():
    x = Tensor([1.0, -1.0], requires_grad=True)
    y = Tensor([0.0, -0.0], requires_grad=True)
    ops.multiply(x, y).backward(seed=[-1.0, 1.0])
    assert bits(x.grad) == bits(np.array([0.0, 0.0]))


def test_backward_from_a_leaf_gives_it_the_seed():
    x = Tensor([5.0, 6.0], requires_grad=True)
    x.backward(seed=[1.5, -0.0])
    assert bits(x.grad) == bits(np.array([1.5, 0.0]))


def test_constants_and_detached_tensors_get_nothing():
    x = Tensor([2.0], requires_grad=True)
    c = Tensor([3.0])
    d = ops.scale(x, 2.0).detach()
    assert d.is_leaf
    assert d.data.tolist() == [4.0]
    ops.sum(ops.add(ops.multiply(x, c), d)).backward()
    assert x.grad.tolist() == [3.0]
    assert c.grad is None
    assert d.grad is None


def test_detach_shares_the_numbers():
    x = Tensor([2.0], requires_grad=True)
    alias = x.detach()
    x.assign(np.array([7.0]))
    assert alias.data.tolist() == [7.0]
    assert alias.revision == 1
    assert not alias.requires_grad


def test_float32_gradients_are_float32():
    x = Tensor(np.array([0.1, 0.2], np.float32), requires_grad=True)
    ops.sum(ops.multiply(x, x)).backward()
    assert x.grad.dtype == np.float32
    assert bits(x.grad) == bits(x.data + x.data)


# ------------------------------------------------------------------ seeds and roots
def test_seed_and_root_are_checked():
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(AutodiffError) as caught:
        ops.scale(x, 2.0).backward()
    assert (kind(caught), caught.value.shape) == ("NonScalarBackward", (2,))
    with pytest.raises(AutodiffError) as caught:
        ops.scale(x, 2.0).backward(seed=[1.0])
    assert (kind(caught), caught.value.expected, caught.value.actual) == (
        "SeedShapeMismatch",
        (2,),
        (1,),
    )
    with pytest.raises(AutodiffError) as caught:
        ops.scale(x, 2.0).backward(seed=[1.0, float("nan")])
    assert (kind(caught), caught.value.op, caught.value.index) == ("NonFiniteGradient", "seed", 1)
    with pytest.raises(AutodiffError) as caught:
        Tensor([1.0]).backward()
    assert kind(caught) == "NotRecorded"
    assert x.grad is None


def test_the_seed_is_not_kept_or_changed():
    x = Tensor([1.0, 2.0], requires_grad=True)
    seed = np.array([2.0, 3.0])
    ops.scale(ops.scale(x, 2.0), 2.0).backward(seed=seed)
    assert seed.tolist() == [2.0, 3.0]
    assert x.grad.tolist() == [8.0, 12.0]
    assert not np.may_share_memory(x.grad, seed)


# ------------------------------------------------------------------ release
def test_a_second_pass_needs_retain_graph():
    x = Tensor([2.0], requires_grad=True)
    y = ops.sum(ops.multiply(x, x))
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8.0]
    with pytest.raises(AutodiffError) as caught:
        y.backward()
    assert (kind(caught), caught.value.op) == ("GraphReleased", "sum")
    assert x.grad.tolist() == [8.0]


def test_a_graph_built_on_a_released_one_is_refused():
    x = Tensor([2.0], requires_grad=True)
    shared = ops.multiply(x, x)
    ops.sum(shared).backward()
    with pytest.raises(AutodiffError) as caught:
        ops.sum(ops.scale(shared, 2.0)).backward()
    assert (kind(caught), caught.value.op) == ("GraphReleased", "multiply")
    assert x.grad.tolist() == [4.0]


def test_release_frees_what_the_graph_held():
    x = Tensor([2.0], requires_grad=True)
    inner = ops.multiply(x, x)
    y = ops.sum(inner)
    alive = weakref.ref(inner)
    del inner
    assert alive() is not None
    y.backward()
    assert alive() is None


def test_a_graph_that_nobody_differentiates_is_freed_without_the_collector():
    gc.disable()
    try:
        x = Tensor([2.0], requires_grad=True)
        inner = ops.multiply(x, x)
        alive = weakref.ref(inner)
        y = ops.sum(inner)
        del inner, y
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("differentiate", [True, False])
def test_no_recursion_limit(differentiate):
    x = Tensor([1.0], requires_grad=True)
    y = x
    for _ in range(100_000):
        y = ops.add(y, x)
    if differentiate:
        y.backward()
        assert x.grad.tolist() == [100_001.0]
    del y  # frees 100,000 nodes


# ------------------------------------------------------------------ stale graphs
@pytest.mark.parametrize("retain_graph", [True, False])
def test_a_changed_value_refuses_the_backward_pass(retain_graph):
    x = Tensor([2.0], requires_grad=True)
    y = Tensor([3.0], requires_grad=True)
    z = ops.sum(ops.multiply(x, y))
    if retain_graph:
        z.backward(retain_graph=True)
    before = (x.grad, y.grad)
    y.assign(np.array([3.0]))  # even by an equal value
    with pytest.raises(AutodiffError) as caught:
        z.backward()
    error = caught.value
    assert (error.kind, error.op, error.recorded, error.current) == (
        "ValueRevisionChanged",
        "multiply",
        0,
        1,
    )
    assert (x.grad, y.grad) == before
    ops.sum(ops.multiply(x, y)).backward()  # recording again is fine


def test_the_result_of_reshape_does_not_follow_later_writes():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = ops.reshape(x, (2, 1))
    x.assign(np.array([5.0, 6.0]))
    assert y.data.tolist() == [[1.0], [2.0]]


# ------------------------------------------------------------------ all or nothing
def test_a_failing_pass_leaves_every_gradient_bit():
    good = Tensor([1.0, 2.0], requires_grad=True)
    bad = Tensor([1.0, 2.0], requires_grad=True)
    good.grad = np.array([0.5, -0.0])
    bad.grad = np.array([0.25, 0.125])
    y = ops.add(good, ops.scale(ops.scale(bad, 1e200), 1e-100))
    before = [bits(good.grad), bits(bad.grad)]
    with pytest.raises(AutodiffError) as caught:
        y.backward(seed=[1.0, 1e250])
    error = caught.value
    assert (error.kind, error.op, error.index) == ("NonFiniteGradient", "scale", 1)
    assert [bits(good.grad), bits(bad.grad)] == before
    y.backward(seed=[1.0, 1.0])  # the graph is still whole
    assert good.grad.tolist() == [1.5, 1.0]


def test_sums_of_finite_contributions_are_checked():
    x = Tensor([1.0], requires_grad=True)
    y = ops.add(x, x)
    with pytest.raises(AutodiffError) as caught:
        y.backward(seed=[1.7e308])
    assert kind(caught) == "NonFiniteGradient"
    assert x.grad is None
    # the same in the middle of a graph
    inner = ops.scale(x, 1e-300)
    with pytest.raises(AutodiffError) as caught:
        ops.add(inner, inner).backward(seed=[1.7e308])
    assert (kind(caught), caught.value.op) == ("NonFiniteGradient", "scale")
    assert x.grad is None


def test_the_sum_with_the_stored_gradient_is_checked():
    x = Tensor([1.0], requires_grad=True)
    y = Tensor([1.0], requires_grad=True)
    y.grad = np.array([1.7e308])
    with pytest.raises(AutodiffError) as caught:
        ops.add(x, y).backward(seed=[1.7e308])
    assert kind(caught) == "NonFiniteGradient"
    assert x.grad is None
    assert y.grad.tolist() == [1.7e308]


def test_a_rule_that_raises_leaves_every_gradient():
    x = Tensor([1.0], requires_grad=True)

    def rule(node: Node, d_out, to: BackwardPass) -> None:
        to.give(node.inputs[0], d_out.copy())
        raise KeyError("rule")

    y = record("broken", np.array([1.0]), (x,), rule)
    with pytest.raises(KeyError):
        y.backward()
    assert x.grad is None


# ------------------------------------------------------------------ operations and leaves
def test_operations_refuse_results_that_are_not_finite():
    x = Tensor([1.0, 1e308], requires_grad=True)
    with pytest.raises(AutodiffError) as caught:
        ops.add(x, x)
    error = caught.value
    assert (error.kind, error.op, error.index, error.value) == (
        "NonFiniteValue",
        "add",
        1,
        float("inf"),
    )
    assert "add" in str(error)
    assert "1" in str(error)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_leaves_must_be_finite(value):
    with pytest.raises(AutodiffError) as caught:
        Tensor([[0.0, 1.0], [value, 2.0]])
    assert (kind(caught), caught.value.index) == ("NonFiniteLeaf", 2)
    x = Tensor([1.0, 2.0])
    with pytest.raises(AutodiffError) as caught:
        x.assign(np.array([3.0, value]))
    assert (kind(caught), caught.value.index) == ("NonFiniteLeaf", 1)
    assert (x.data.tolist(), x.revision) == ([1.0, 2.0], 0)


def test_leaves_are_copied_unless_handed_over():
    data = np.array([[1.0, 2.0], [3.0, 4.0]])
    x = Tensor(data.T)
    data[0, 1] = 9.0
    assert x.data.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    owned = np.array([1.0])
    assert Tensor(owned, copy=False).data.base is owned
    with pytest.raises(DTypeError) as caught:
        Tensor(data.T, copy=False)
    assert kind(caught) == "NotContiguous"
    frozen = np.array([1.0])
    frozen.flags.writeable = False
    with pytest.raises(DTypeError) as caught:
        Tensor(frozen, copy=False)
    assert kind(caught) == "ReadOnly"


def test_only_float64_and_float32_arrays_become_tensors():
    assert Tensor([1, 2]).dtype == np.float64
    for dtype in (np.int64, np.float16, np.complex128, np.bool_):
        with pytest.raises(DTypeError) as caught:
            Tensor(np.zeros(2, dtype))
        assert kind(caught) == "UnsupportedDType"


def test_gradients_can_be_set_and_are_checked():
    x = Tensor([1.0, 2.0], requires_grad=True)
    x.grad = np.array([1.0, float("nan")])  # a gradient may hold anything
    x.grad = None
    assert x.grad is None
    with pytest.raises(ShapeError):
        x.grad = np.zeros(3)
    with pytest.raises(DTypeError):
        x.grad = np.zeros(2, np.float32)
    with pytest.raises(DTypeError):
        x.grad = [0.0, 0.0]


def test_scalars_stay_scalars():
    x = Tensor(2.0, requires_grad=True)
    assert x.shape == ()
    x.assign(np.array(3.0))
    x.grad = np.array(1.0)
    ops.multiply(x, x).backward()
    assert x.grad.shape == ()
    assert x.grad == 7.0


def test_items_and_text():
    assert Tensor([[2.5]]).item() == 2.5
    with pytest.raises(ShapeError):
        Tensor([1.0, 2.0]).item()
    x = Tensor([1.0], requires_grad=True)
    assert repr(x) == "Tensor(shape=(1,), dtype=float64, requires_grad=True)"
    assert repr(ops.scale(x, 2.0)) == "Tensor(shape=(1,), dtype=float64, op='scale')"
    assert (x.ndim, x.size, x.shape) == (1, 1, (1,))


def test_a_zero_gradient_is_known_without_being_made() -> None:
    for shape in ((), (0,), (2, 3)):
        x = Tensor(np.ones(shape), requires_grad=True)
        assert not x.grad_is_zero  # there is none yet
        x.zero_grad()
        tracemalloc.start()
        try:
            assert x.grad_is_zero
            assert tracemalloc.get_traced_memory()[1] < 1000
        finally:
            tracemalloc.stop()
        for last in (0.0, -0.0, 5e-324):
            gradient = np.zeros(shape)
            gradient[(-1,) * len(shape) if gradient.size else ...] = last
            x.grad = gradient
            assert x.grad_is_zero == (not gradient.tobytes().strip(b"\0"))
