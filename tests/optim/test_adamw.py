"""AdamW: its arithmetic, its transaction, its five calls."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from llmcy import kernels
from llmcy.errors import OptimizerError
from llmcy.optim import (
    AdamW,
    AdamWConfig,
    AdamWState,
    AdamWStateEntry,
    ClipTransform,
    clip_grad_norm,
)
from llmcy.optim.groups import ParameterGroups
from llmcy.reference.fixtures import PUBLISHED
from llmcy.tape import Tensor, no_grad

CONFIG = AdamWConfig(0.04, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
GROUPS = ParameterGroups(["a", "b"], ["c"])
Named = list[tuple[str, Tensor]]


def tensors(dtype: str = "float64", seed: int = 0) -> Named:
    """Three parameters with gradients."""
    rng = np.random.default_rng(seed)
    named = []
    for name, shape in (("b", (2, 3)), ("a", (5,)), ("c", (1, 2, 2))):
        tensor = Tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)
        tensor.grad = rng.standard_normal(shape).astype(dtype)
        named.append((name, tensor))
    return named


def everything(optimizer: AdamW, named: Named) -> tuple[object, ...]:
    """All bits that a step could change."""
    state = optimizer.state()
    return (
        state.step,
        state.beta1_power,
        state.beta2_power,
        [array.tobytes() for array in state.moment_arrays()],
        [(n, t.data.tobytes(), t.grad.tobytes(), t.revision) for n, t in named],
    )


def oracle(
    p: float, g: float, m: float, v: float, rate: float, decay: float, c1: float, c2: float
) -> tuple[float, float, float]:
    beta1, beta2 = CONFIG.betas
    m = (beta1 * m) + ((1.0 - beta1) * g)
    v = (beta2 * v) + ((1.0 - beta2) * (g * g))
    a = rate * ((m / c1) / (math.sqrt(v / c2) + CONFIG.eps))
    return (p - a) - (rate * decay) * p, m, v


@pytest.mark.feature("A29", "B30")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_steps_against_one_operation_at_a_time(dtype: str) -> None:
    """Three steps at three rates and factors: counters 1, 2, 3, moments that go on."""
    optimizer, named = AdamW(CONFIG, GROUPS), tensors(dtype)
    round_to = np.dtype(dtype).type
    values = {n: t.data.reshape(-1).tolist() for n, t in named}
    moments = {n: [(0.0, 0.0)] * len(values[n]) for n, _ in named}
    power1 = power2 = 1.0
    for step, (rate, factor) in enumerate([(0.04, 0.3), (0.02, 1.0), (0.01, 0.0)], start=1):
        power1, power2 = power1 * 0.9, power2 * 0.95
        for name, tensor in named:
            decay = 0.0 if name == "c" else CONFIG.weight_decay
            for i, g in enumerate(tensor.grad.reshape(-1).tolist()):
                new = oracle(values[name][i], g * factor, *moments[name][i], rate, decay,
                             1.0 - power1, 1.0 - power2)  # fmt: skip
                values[name][i], m, v = (float(round_to(x)) for x in new)
                moments[name][i] = (m, v)
        assert optimizer.step(named, learning_rate=rate, scale=factor) == step
        state = optimizer.state()
        assert (state.beta1_power, state.beta2_power) == (power1, power2)
        for name, tensor in named:
            assert tensor.data.reshape(-1).tolist() == values[name]
            entry = state.entry(name)
            assert entry is not None
            pairs = zip(
                entry.first_moment.reshape(-1), entry.second_moment.reshape(-1), strict=True
            )
            assert [(float(m), float(v)) for m, v in pairs] == moments[name]
            assert entry.first_moment.dtype == np.dtype(dtype)
    assert optimizer.config == CONFIG
    assert optimizer.config.learning_rate == 0.04


@pytest.mark.feature("A23", "A27")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("ceiling", [1e-3, 1.0, 1e6])
def test_clipping_within_a_step_is_clipping_and_then_a_step(dtype: str, ceiling: float) -> None:
    one, other = AdamW(CONFIG, GROUPS), AdamW(CONFIG, GROUPS)
    named, others = tensors(dtype), tensors(dtype)
    for turn in range(4):
        for (_, a), (_, b) in zip(named, others, strict=True):
            gradient = np.random.default_rng(turn).standard_normal(a.shape).astype(dtype)
            a.grad, b.grad = gradient * 3**turn, gradient * 3**turn
        clip = clip_grad_norm(others, ceiling)
        other.step(others, learning_rate=0.03, transform=clip.transform)
        assert one.step_clipped(named, ceiling, learning_rate=0.03) == clip
        assert everything(one, named) == everything(other, others)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_clipped_step_that_fails_changes_nothing(dtype: str, steps: int) -> None:
    optimizer, named = AdamW(CONFIG, GROUPS), tensors(dtype)
    for _ in range(steps):
        optimizer.step_clipped(named, 1.0)
    gradient, largest = named[1][1].grad, float(np.finfo(dtype).max)
    for value, ceiling, kind in (
        (math.nan, 1.0, "NonFiniteGradient"),
        (-math.inf, 1.0, "NonFiniteGradient"),
        (1.0, 0.0, "InvalidMaximumGradientNorm"),
        (largest, 1e308, "NonFiniteArithmetic"),  # not clipped: its square overflows
    ):
        gradient[3] = value
        before = everything(optimizer, named)
        with pytest.raises(OptimizerError) as caught:
            optimizer.step_clipped(named, ceiling)
        assert caught.value.kind == kind
        assert everything(optimizer, named) == before
    gradient[3] = 0.5
    optimizer.step_clipped(named, 1.0)
    assert optimizer.step_count == steps + 1


@pytest.mark.feature("A25", "A26", "A27")
@pytest.mark.parametrize("factor", [0.25, 0.1, 1e-300])
def test_a_factor_equals_gradients_multiplied_before(factor: float) -> None:
    by_factor, before = AdamW(CONFIG, GROUPS), AdamW(CONFIG, GROUPS)
    named, multiplied = tensors(), tensors()
    for _, tensor in multiplied:
        tensor.grad = tensor.grad * factor
    raw = [tensor.grad.tobytes() for _, tensor in named]
    by_factor.step(named, scale=factor)
    before.step(multiplied)
    assert by_factor.state().equal_bits(before.state())
    for (_, one), (_, other) in zip(named, multiplied, strict=True):
        assert one.data.tobytes() == other.data.tobytes()
    assert [tensor.grad.tobytes() for _, tensor in named] == raw


def test_the_normalized_form_divides_first() -> None:
    one, other = AdamW(CONFIG), AdamW(CONFIG)
    named, divided = tensors(), tensors()
    for _, tensor in named:
        tensor.grad = tensor.grad * 1e300
    for (_, tensor), (_, source) in zip(divided, named, strict=True):
        tensor.grad = (source.grad / 3e300) * 1e-20
    one.step(named, transform=ClipTransform.normalized(3e300, 1e-20))
    other.step(divided)
    assert one.state().equal_bits(other.state())


@pytest.mark.feature("A28")
def test_the_factor_does_not_reach_weight_decay() -> None:
    results = []
    for factor in (1.0, 0.5, 0.0):
        named = tensors()
        for _, tensor in named:
            tensor.grad = np.zeros(tensor.shape)
        before = [tensor.data.copy() for _, tensor in named]
        AdamW(CONFIG, GROUPS).step(named, scale=factor)
        results.append([tensor.data.tobytes() for _, tensor in named])
        for (name, tensor), old in zip(named, before, strict=True):
            decay = 0.0 if name == "c" else 0.04 * 0.1
            assert tensor.data.tolist() == (old - decay * old).tolist()
    assert results[0] == results[1] == results[2]


@pytest.mark.feature("A16", "A38", "B35", "D05")
def test_a_step_writes_into_the_nodes() -> None:
    model, optimizer = PUBLISHED.model(), PUBLISHED.optimizer()
    batch = PUBLISHED.update_epoch().batches[0]
    model.loss(batch.inputs, batch.targets).backward()
    named = model.named_parameters()
    before = [(name, parameter, parameter.data.copy()) for name, parameter in named]
    with no_grad():
        logits = model.forward(batch.inputs).data.copy()
    optimizer.step(named)
    after = model.named_parameters()
    assert [name for name, _ in after] == [name for name, _, _ in before]
    for (_, parameter), (_, old, values), entry_name in zip(
        after, before, [n for n, _ in named], strict=True
    ):
        assert parameter is old
        assert parameter.revision == 1
        assert (parameter.data != values).any()
        entry = optimizer.state().entry(entry_name)
        assert entry is not None
        assert entry.first_moment.any()
        assert entry.second_moment.any()
    assert model.token_embedding.weight is after[0][1]  # one node for look-up and head
    with no_grad():
        assert (model.forward(batch.inputs).data != logits).any()


@pytest.mark.feature("B31")
def test_five_calls_of_a_step() -> None:
    def plain(o: AdamW, n: Named) -> object:
        return o.step(n)

    def traced(o: AdamW, n: Named) -> object:
        return o.step_traced(n).step

    def at_rate(o: AdamW, n: Named) -> object:
        return o.step(n, learning_rate=0.04)

    def at_rate_scaled(o: AdamW, n: Named) -> object:
        return o.step(n, learning_rate=0.04, scale=1.0)

    def at_rate_traced(o: AdamW, n: Named) -> object:
        return o.step_traced(n, learning_rate=0.04).step

    def transformed(o: AdamW, n: Named) -> object:
        return o.step(n, learning_rate=0.04, transform=ClipTransform.none())

    calls: list[Callable[[AdamW, Named], object]] = [
        plain, traced, at_rate, at_rate_scaled, at_rate_traced, transformed,
    ]  # fmt: skip
    results = []
    for call in calls:
        optimizer, named = AdamW(CONFIG, GROUPS), tensors()
        assert [call(optimizer, named) for _ in range(3)] == [1, 2, 3]
        results.append(everything(optimizer, named))
    assert all(result == results[0] for result in results)


def test_a_trace_shows_every_line() -> None:
    optimizer, named = AdamW(CONFIG, GROUPS), tensors()
    optimizer.step(named)
    old = {name: tensor.data.copy() for name, tensor in named}
    trace = optimizer.step_traced(named, learning_rate=0.01)
    assert (trace.step, trace.learning_rate) == (2, 0.01)
    assert (trace.correction1, trace.correction2) == (1.0 - 0.9 * 0.9, 1.0 - 0.95 * 0.95)
    assert [p.name for p in trace.parameters] == ["b", "a", "c"]
    assert [p.weight_decay for p in trace.parameters] == [0.1, 0.1, 0.0]
    for part, (name, tensor) in zip(trace.parameters, named, strict=True):
        assert set(part.stages) == set(kernels.ADAMW_STAGES)
        assert part.gradient.tobytes() == tensor.grad.tobytes()
        assert part.value_before.tobytes() == old[name].tobytes()
        assert part.value_after.tobytes() == tensor.data.tobytes()
        assert part.stages["parameter"].tobytes() == tensor.data.tobytes()
        assert part.stages["first_moment"].tobytes() == part.first_moment.tobytes()
        assert part.stages["second_moment"].tobytes() == part.second_moment.tobytes()
        assert part.stages["weight_decay"].tolist() == (
            ((0.01 * part.weight_decay) * old[name]).tolist()
        )


def test_scale_and_transform_exclude_each_other() -> None:
    with pytest.raises(TypeError):
        AdamW(CONFIG).step(tensors(), scale=1.0, transform=ClipTransform.none())


# --------------------------------------------------------------------------- the transaction
def missing(named: Named) -> None:
    named[2][1].grad = None


def overflowing(named: Named) -> None:
    named[2][1].grad = np.full(named[2][1].shape, 1e300)


def not_finite(named: Named) -> None:
    gradient = named[2][1].grad.copy()
    gradient[0, 1, 1] = math.nan
    named[2][1].grad = gradient


def renamed(named: Named) -> None:
    named[2] = ("d", named[2][1])


def repeated(named: Named) -> None:
    named[2] = ("b", named[2][1])


def shortened(named: Named) -> None:
    del named[2]


def emptied(named: Named) -> None:
    named.clear()


def reshaped(named: Named) -> None:
    tensor = Tensor(np.ones(4), requires_grad=True)
    tensor.grad = np.ones(4)
    named[2] = ("c", tensor)


FAULTS = [
    ("EmptyParameterSet", emptied, {}),
    ("DuplicateParameterName", repeated, {"name": "b", "first": 0, "repeated": 2}),
    ("ParameterSetChanged", renamed, {"expected": ("a", "b", "c"), "actual": ("a", "b", "d")}),
    ("ParameterSetChanged", shortened, {"expected": ("a", "b", "c"), "actual": ("a", "b")}),
    ("MissingGradient", missing, {"name": "c"}),
    ("ParameterShapeChanged", reshaped, {"name": "c", "expected": (1, 2, 2), "actual": (4,)}),
    ("NonFiniteArithmetic", overflowing, {"name": "c", "index": 0, "stage": "squared_gradient",
                                          "value": math.inf}),
    ("NonFiniteArithmetic", not_finite, {"name": "c", "index": 3, "stage": "effective_gradient"}),
]  # fmt: skip


@pytest.mark.feature("A16", "B32")
@pytest.mark.parametrize("groups", [GROUPS, None])
@pytest.mark.parametrize(("kind", "break_it", "fields"), FAULTS)
def test_a_late_failure_changes_nothing(
    kind: str,
    break_it: Callable[[Named], None],
    fields: dict[str, object],
    groups: ParameterGroups | None,
) -> None:
    optimizer, named = AdamW(CONFIG, groups), tensors()
    optimizer.step(named)
    before = everything(optimizer, named)
    broken = list(named)
    gradient = named[2][1].grad
    break_it(broken)
    with pytest.raises(OptimizerError) as caught:
        optimizer.step(broken)
    assert caught.value.kind == kind
    for name, value in fields.items():
        assert getattr(caught.value, name) == value
    named[2][1].grad = gradient
    assert everything(optimizer, named) == before
    assert optimizer.step(named) == 2  # and it goes on as if nothing had happened


@pytest.mark.feature("B32")
def test_a_failing_first_step_leaves_a_fresh_optimizer() -> None:
    optimizer, named = AdamW(CONFIG), tensors()
    overflowing(named)
    with pytest.raises(OptimizerError):
        optimizer.step(named)
    with pytest.raises(OptimizerError):
        optimizer.step_traced(named)
    assert optimizer.state().equal_bits(AdamWState.initial())
    assert [tensor.revision for _, tensor in named] == [0, 0, 0]


@pytest.mark.feature("B33")
def test_one_borrowed_value_stops_the_whole_step() -> None:
    optimizer, named = AdamW(CONFIG, GROUPS), tensors()
    optimizer.step(named)
    before = everything(optimizer, named)
    for name, tensor in named:
        with tensor.borrow():
            with pytest.raises(OptimizerError) as caught:
                optimizer.step(named)
            assert (caught.value.kind, caught.value.name) == ("ParameterValueBorrowed", name)
            assert everything(optimizer, named) == before
    assert optimizer.step(named) == 2


@pytest.mark.feature("B33")
def test_a_parameter_listed_under_two_names_is_refused() -> None:
    named = tensors()
    named[2] = ("c", named[0][1])
    values = named[0][1].data.tobytes()
    with pytest.raises(OptimizerError) as caught:
        AdamW(CONFIG).step(named)
    assert (caught.value.kind, caught.value.name) == ("ParameterValueBorrowed", "c")
    assert named[0][1].data.tobytes() == values


@pytest.mark.feature("B34")
@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 10.0, 5e-324])
def test_an_invalid_rate_changes_nothing(rate: float) -> None:
    optimizer, named = AdamW(CONFIG, GROUPS), tensors()
    optimizer.step(named)
    before = everything(optimizer, named)
    for call in (optimizer.step, optimizer.step_traced):
        with pytest.raises(OptimizerError) as caught:
            call(named, learning_rate=rate)
        # 10 * 0.1 is no decay below 1, and 5e-324 * 0.1 rounds to none at all
        product = rate in (10.0, 5e-324)
        assert caught.value.kind == ("InvalidDecayProduct" if product else "InvalidLearningRate")
    assert everything(optimizer, named) == before
    assert optimizer.config.learning_rate == 0.04


def test_the_rate_is_checked_before_the_factor_and_both_before_parameters() -> None:
    optimizer = AdamW(CONFIG)
    for kind, arguments in (
        ("InvalidLearningRate", {"learning_rate": 0.0, "scale": 2.0}),
        ("InvalidGradientScale", {"scale": 2.0}),
        ("InvalidGradientNormalization", {"transform": ClipTransform.normalized(1.0, 2.0)}),
        ("EmptyParameterSet", {}),
    ):
        with pytest.raises(OptimizerError) as caught:
            optimizer.step([], **arguments)
        assert caught.value.kind == kind


def test_the_last_step() -> None:
    zeros = np.zeros(2)
    state = AdamWState(2**64 - 1, 0.0, 0.0, [AdamWStateEntry("w", (2,), zeros, zeros)])
    optimizer = AdamW.from_state(CONFIG, None, state)
    tensor = Tensor(zeros, requires_grad=True)
    tensor.grad = zeros
    with pytest.raises(OptimizerError) as caught:
        optimizer.step([("w", tensor)])
    assert (caught.value.kind, caught.value.step) == ("StepOverflow", 2**64 - 1)


def test_the_last_revision() -> None:
    named = tensors()
    named[1][1]._value.revision = 2**64 - 1
    with pytest.raises(OptimizerError) as caught:
        AdamW(CONFIG).step(named)
    assert (caught.value.kind, caught.value.name) == ("ParameterRevisionOverflow", "a")
    assert named[0][1].revision == 0


def test_a_lent_snapshot_copies_nothing_and_cannot_be_written() -> None:
    optimizer, named = AdamW(CONFIG, GROUPS), tensors()
    assert optimizer.lent_snapshot().state.equal_bits(AdamWState.initial())
    for _ in range(2):
        optimizer.step(named)
        lent, copied = optimizer.lent_snapshot(), optimizer.snapshot()
        assert lent.state.equal_bits(copied.state)
        assert (lent.config, lent.groups) == (copied.config, copied.groups)
        again = optimizer.lent_snapshot()
        for one, other in zip(
            lent.state.moment_arrays(), again.state.moment_arrays(), strict=True
        ):
            assert np.shares_memory(one, other)
            assert not one.flags.writeable
    optimizer.step(named)  # the optimizer itself can still write


def test_a_copy_is_independent() -> None:
    optimizer, named = AdamW(CONFIG, GROUPS), tensors()
    optimizer.step(named)
    copy = optimizer.copy()
    assert copy.state().equal_bits(optimizer.state())
    assert (copy.config, copy.groups) == (optimizer.config, optimizer.groups)
    kept = copy.state()
    optimizer.step(named)
    assert copy.state().equal_bits(kept)
    assert (copy.step_count, optimizer.step_count) == (1, 2)


def test_isas_and_threads_agree(isa: str, n_threads: int, dtype: np.dtype) -> None:
    from llmcy import num_threads, set_num_threads

    def run() -> tuple[object, ...]:
        rng = np.random.default_rng(7)
        tensor = Tensor(rng.standard_normal((131, 257)).astype(dtype), requires_grad=True)
        optimizer = AdamW(CONFIG)
        for _ in range(2):
            tensor.grad = rng.standard_normal((131, 257)).astype(dtype)
            optimizer.step([("w", tensor)], scale=0.37)
        return everything(optimizer, [("w", tensor)])

    before = num_threads()
    try:
        set_num_threads(n_threads)
        result = run()
    finally:
        set_num_threads(before)
    expected = EXPECTED.setdefault(dtype.name, result)
    assert result == expected


EXPECTED: dict[str, tuple[object, ...]] = {}
