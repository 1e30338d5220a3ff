"""Every operation: gradients by central differences, and the bits of its kernel."""

import numpy as np
import pytest

from llmcy import kernels, ops
from llmcy.errors import AutodiffError, DTypeError, RangeError, ShapeError
from llmcy.gradcheck import gradcheck
from llmcy.tape import BackwardPass, Tensor, no_grad
from tests.ops.cases import CASES, IDS, Case

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
def test_gradients_agree_with_central_differences(case: Case):
    tensors = case.tensors()
    worst = gradcheck(lambda: case.function(*tensors), tensors)
    assert worst.error < 1e-7


@each_case
def test_every_operand_may_be_a_constant(case: Case):
    """The gradients of the others then keep their bits, and the constant gets none."""
    tensors = case.tensors(seed=1)
    out = case.function(*tensors)
    seed = np.random.default_rng(3).normal(size=out.shape)
    out.backward(seed=seed)
    for constant in range(len(tensors)):
        again = case.tensors(seed=1)
        again[constant] = Tensor(again[constant].data)
        result = case.function(*again)
        if len(tensors) == 1:
            assert result.op is None
            continue
        result.backward(seed=seed)
        for index, tensor in enumerate(again):
            if index == constant:
                assert tensor.grad is None
            else:
                assert tensor.grad.tobytes() == tensors[index].grad.tobytes()


@each_case
def test_values_and_gradients_keep_the_dtype(case: Case, dtype):
    tensors = case.tensors(dtype)
    out = case.function(*tensors)
    assert out.dtype == (np.float64 if case.name.startswith("cross_entropy") else dtype)
    assert out.data.flags.c_contiguous
    out.backward(seed=np.ones(out.shape))
    for tensor in tensors:
        assert tensor.grad.dtype == dtype
        assert tensor.grad.shape == tensor.shape
        assert np.isfinite(tensor.grad).all()


@each_case
def test_no_grad_gives_the_same_bits(case: Case, dtype):
    tensors = case.tensors(dtype)
    recorded = case.function(*tensors)
    with no_grad():
        plain = case.function(*tensors)
    assert plain.op is None
    assert recorded.op == case.name.split()[0].replace("matmul", recorded.op)
    assert plain.data.tobytes() == recorded.data.tobytes()


@each_case
def test_gradients_hold_no_minus_zero(case: Case, dtype):
    tensors = case.tensors(dtype, seed=2)
    out = case.function(*tensors)
    out.backward(seed=np.full(out.shape, -0.0))
    for tensor in tensors:
        assert tensor.grad.tobytes() == np.zeros_like(tensor.grad).tobytes()


@each_case
def test_a_retained_graph_gives_the_same_gradient_again(case: Case, dtype):
    tensors = case.tensors(dtype)
    out = case.function(*tensors)
    seed = np.random.default_rng(3).normal(size=out.shape)
    out.backward(seed=seed, retain_graph=True)
    first = [t.grad.copy() for t in tensors]
    for tensor in tensors:
        tensor.zero_grad()
    out.backward(seed=seed)
    assert [t.grad.tobytes() for t in tensors] == [g.tobytes() for g in first]


# ------------------------------------------------------------------ against the kernels
def seeded(out: Tensor) -> np.ndarray:
    """A seed and its arrival: a backward pass with it."""
    seed = np.random.default_rng(5).normal(size=out.shape).astype(out.dtype)
    out.backward(seed=seed)
    return seed


def test_linear_uses_the_two_level_weight_gradient(dtype):
    case = next(c for c in CASES if c.name == "linear")
    x, w = case.tensors(dtype)
    d = seeded(ops.linear(x, w))
    assert w.grad.tobytes() == kernels.matmul_d_weight(x.data, d).tobytes()
    assert x.grad.tobytes() == kernels.matmul(d, w.data, transpose_b=True).tobytes()


def test_several_leading_axes_are_flattened(dtype):
    x = Tensor(np.random.default_rng(1).normal(size=(2, 3, 4, 5)).astype(dtype), True)
    w = Tensor(np.random.default_rng(2).normal(size=(5, 2)).astype(dtype), True)
    d = seeded(ops.linear(x, w))
    flat = kernels.matmul_d_weight(x.data.reshape(6, 4, 5), d.reshape(6, 4, 2))
    assert w.grad.tobytes() == flat.tobytes()


def test_tied_linear_gradient_has_the_shape_of_the_table(dtype):
    case = next(c for c in CASES if c.name == "tied_linear")
    x, table = case.tensors(dtype)
    d = seeded(ops.tied_linear(x, table))
    assert table.grad.tobytes() == kernels.matmul_d_weight(d, x.data).tobytes()
    assert x.grad.tobytes() == kernels.matmul(d, table.data).tobytes()


def test_the_norm_adds_its_terms_after_the_residual(dtype):
    """x collects the residual first, then the three terms one by one."""
    x, gain = Case("rms_norm", ops.rms_norm, ((2, 3, 5), (5,))).tensors(dtype)
    d = seeded(ops.add(x, ops.rms_norm(x, gain, 1e-6)))
    _, inv_rms, mean_square_eps = kernels.rms_norm(x.data, gain.data, 1e-6)
    d_x, d_gain = d.copy(), np.zeros(5, dtype)
    kernels.rms_norm_backward(
        d, x.data, gain.data, inv_rms, mean_square_eps, d_x=d_x, d_gain=d_gain
    )
    assert x.grad.tobytes() == d_x.tobytes()
    assert gain.grad.tobytes() == d_gain.tobytes()
    apart = np.zeros_like(d)
    kernels.rms_norm_backward(
        d, x.data, gain.data, inv_rms, mean_square_eps, d_x=apart, d_gain=np.zeros(5, dtype)
    )
    assert x.grad.tobytes() != (d + apart).tobytes()  # another grouping, other bits


def test_swiglu_is_silu_times_up(dtype):
    case = next(c for c in CASES if c.name == "swiglu")
    fused, plain = case.tensors(dtype), case.tensors(dtype)
    one = ops.swiglu(*fused)
    two = ops.multiply(ops.silu(plain[0]), plain[1])
    assert one.data.tobytes() == two.data.tobytes()
    seeded(one)
    seeded(two)
    for a, b in zip(fused, plain, strict=True):
        assert a.grad.tobytes() == b.grad.tobytes()


def gates(dtype, factor: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Two leaves and their SwiGLU; the gate is ``factor * gate`` of about 1."""
    rng = np.random.default_rng(6)
    gate = Tensor((rng.normal(size=(3, 300)) / factor).astype(dtype), requires_grad=True)
    up = Tensor(rng.normal(size=(3, 300)).astype(dtype), requires_grad=True)
    return gate, up, ops.swiglu(ops.scale(gate, factor), up)


def test_gradients_of_swiglu_and_silu_take_the_places_of_what_is_done(dtype):
    given: list[np.ndarray] = []

    class To(BackwardPass):
        def give(self, operand, contribution, *, op=None):
            given.append(contribution)

    _, _, out = gates(dtype)
    node = out._node
    kept = list(node.saved[0])
    assert len(kept) == (dtype == np.float64)
    d_out = np.ones(out.shape, dtype)
    node.rule(node, d_out, To(None))
    assert given[1] is d_out
    assert given[0] is (kept[0] if kept else given[0])
    x = Tensor(np.ones(3, dtype), requires_grad=True)
    node = ops.silu(x)._node
    d_out = np.ones(3, dtype)
    node.rule(node, d_out, To(None))
    assert given[2] is d_out


@pytest.mark.parametrize("op", [ops.silu, lambda x: ops.swiglu(x, x)], ids=["silu", "swiglu"])
@pytest.mark.parametrize("turned", [False, True])
def test_an_adjoint_that_others_receive_too_is_not_spoiled(op, turned, dtype):
    rng = np.random.default_rng(7)
    x, y = (Tensor(rng.normal(size=(2, 6)).astype(dtype), requires_grad=True) for _ in range(2))
    pair = (op(x), ops.reshape(y, (2, 6)))
    seed = rng.normal(size=(2, 6)).astype(dtype)
    before = seed.tobytes()
    ops.add(*(pair[::-1] if turned else pair)).backward(seed=seed)
    assert seed.tobytes() == y.grad.tobytes() == before
    alone = Tensor(x.data, requires_grad=True)
    op(alone).backward(seed=seed)
    assert x.grad.tobytes() == alone.grad.tobytes()


def test_swiglu_goes_backward_many_times_over_a_retained_graph(dtype):
    gate, up, out = gates(dtype)
    rng = np.random.default_rng(8)
    for last in (False, False, True):
        seed = rng.normal(size=out.shape).astype(dtype)
        out.backward(seed=seed, retain_graph=not last)
        fresh_gate, fresh_up, fresh = gates(dtype)
        fresh.backward(seed=seed)
        assert gate.grad.tobytes() == fresh_gate.grad.tobytes()
        assert up.grad.tobytes() == fresh_up.grad.tobytes()
        gate.zero_grad()
        up.zero_grad()
    with pytest.raises(AutodiffError) as caught:
        out.backward(seed=seed)
    assert caught.value.kind == "GraphReleased"


@pytest.mark.parametrize("retain_graph", [False, True])
def test_swiglu_after_a_pass_that_failed_below_it(retain_graph, dtype):
    factor = 1e30 if dtype == np.float32 else 1e200
    gate, up, out = gates(dtype, factor)
    for _ in range(2):
        with pytest.raises(AutodiffError) as caught:
            out.backward(seed=np.full(out.shape, factor, dtype), retain_graph=retain_graph)
        assert (caught.value.kind, caught.value.op) == ("NonFiniteGradient", "scale")
        assert gate.grad is None
        assert up.grad is None
    out.backward(seed=np.ones(out.shape, dtype), retain_graph=retain_graph)
    fresh_gate, fresh_up, fresh = gates(dtype, factor)
    fresh.backward(seed=np.ones(out.shape, dtype))
    assert gate.grad.tobytes() == fresh_gate.grad.tobytes()
    assert up.grad.tobytes() == fresh_up.grad.tobytes()


def test_shared_operands_collect_in_the_order_of_the_unfused_graph(dtype):
    (x,), (y,) = (Case("shared", ops.silu, ((2, 5),)).tensors(dtype) for _ in range(2))
    seeded(ops.swiglu(x, x))
    seeded(ops.multiply(ops.silu(y), y))
    assert x.grad.tobytes() == y.grad.tobytes()


def test_attention_is_scores_softmax_and_mix(dtype):
    """One head, spelled out with batched products and a causal softmax."""
    case = Case("attention", ops.attention, ((2, 4, 6),) * 3)
    fused, plain = case.tensors(dtype), case.tensors(dtype)
    q, k, v = plain
    transposed = Tensor(np.ascontiguousarray(np.swapaxes(k.data, 1, 2)), requires_grad=True)
    factor = float(dtype.type(1) / np.sqrt(dtype.type(6)))
    p = ops.causal_softmax(ops.scale(ops.matmul(q, transposed), factor))
    two = ops.matmul(p, v)
    one = ops.attention(*fused, 1)
    assert one.data.tobytes() == two.data.tobytes()
    seeded(one)
    seeded(two)
    assert fused[0].grad.tobytes() == q.grad.tobytes()
    assert fused[1].grad.tobytes() == np.swapaxes(transposed.grad, 1, 2).tobytes()
    assert fused[2].grad.tobytes() == v.grad.tobytes()


def test_the_look_up_part_is_a_table_of_its_own(dtype):
    """(projection part) + (finished look-up part), not look-ups added one by one."""
    table = Tensor(np.random.default_rng(1).normal(size=(5, 2)).astype(dtype), True)
    x = ops.embedding(table, IDS)
    d = seeded(ops.tied_linear(x, table))
    lookups = np.zeros((5, 2), dtype)
    kernels.embedding_backward(kernels.matmul(d, table.data), IDS, lookups)
    expected = kernels.matmul_d_weight(d, x.data) + lookups
    assert table.grad.tobytes() == expected.tobytes()


def test_the_loss_divides_by_the_whole_batch(dtype):
    logits = np.random.default_rng(1).normal(size=(2, 3, 5)).astype(dtype)
    x = Tensor(logits, requires_grad=True)
    loss = ops.cross_entropy(x, IDS, n_total=24)
    assert loss.item() == kernels.cross_entropy(logits, IDS)  # the value is this piece's mean
    loss.backward()
    expected = kernels.cross_entropy_backward(logits, IDS, 1.0, 24)
    assert x.grad.tobytes() == expected.tobytes()


def test_the_loss_scales_with_its_adjoint(dtype):
    logits = np.random.default_rng(1).normal(size=(2, 3, 5)).astype(dtype)
    x = Tensor(logits, requires_grad=True)
    ops.scale(ops.cross_entropy(x, IDS), 0.3).backward()
    assert x.grad.tobytes() == kernels.cross_entropy_backward(logits, IDS, 0.3).tobytes()


def test_row_losses_are_those_of_the_kernel(dtype):
    logits = np.random.default_rng(1).normal(size=(2, 3, 5)).astype(dtype)
    losses = np.empty(6)
    value = ops.cross_entropy(Tensor(logits), IDS, row_losses=losses)
    assert losses.tobytes() == kernels.cross_entropy_row_losses(logits, IDS).tobytes()
    assert kernels.mean(losses).tobytes() == value.data.tobytes()


# ------------------------------------------------------------------ bad operands
def test_shapes_and_dtypes_must_fit():
    one, two = Tensor(np.ones((2, 3))), Tensor(np.ones((3, 2)))
    narrow = Tensor(np.ones((2, 3), np.float32))
    for function in (ops.add, ops.multiply, ops.swiglu):
        with pytest.raises(ShapeError):
            function(one, two)
        with pytest.raises(DTypeError):
            function(one, narrow)
    with pytest.raises(ShapeError):
        ops.linear(one, one)
    with pytest.raises(ShapeError):
        ops.reshape(one, (4, 2))
    with pytest.raises(ShapeError):
        ops.mean(Tensor(np.zeros((0, 2))))
    cos, sin = kernels.rope_table(4, 2, 10.0)
    for x, heads in ((Tensor(np.ones((1, 2, 3))), 2), (one, 1), (Tensor(np.ones((1, 2, 4))), 0)):
        with pytest.raises(ShapeError):
            ops.rope(x, cos, sin, n_heads=heads)
    with pytest.raises(RangeError):
        ops.rope(Tensor(np.ones((1, 3, 2))), cos, sin, n_heads=1, position=2)


def test_token_ids_must_be_whole_numbers_of_the_table():
    table = Tensor(np.ones((5, 2)))
    with pytest.raises(RangeError) as caught:
        ops.embedding(table, [[0, 5]])
    assert (caught.value.kind, caught.value.index, caught.value.value) == ("TokenOutOfRange", 1, 5)
    with pytest.raises(DTypeError):
        ops.embedding(table, [[0.0]])
    with pytest.raises(RangeError):
        ops.embedding(table, np.array([[2**63]], np.uint64))
    assert ops.embedding(table, np.zeros((1, 0), np.uint8)).shape == (1, 0, 2)
    assert ops.embedding(table, []).shape == (0, 2)
    with pytest.raises(RangeError):
        ops.cross_entropy(Tensor(np.ones((1, 3))), [3])


def test_a_sum_that_overflows_is_reported():
    with pytest.raises(AutodiffError) as caught:
        ops.sum(Tensor([1e308, 1e308]))
    assert (caught.value.kind, caught.value.op) == ("NonFiniteValue", "sum")
