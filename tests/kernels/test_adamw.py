"""The AdamW update against the slow scalar form, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import _kernels, kernels
from llmcy.errors import DTypeError, RangeError, ShapeError
from tests.kernels.check import THREADS, everywhere
from tests.oracle import adamw as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

RULE = {
    "lr": 0.04, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01,
    "correction1": 1.0 - 0.9, "correction2": 1.0 - 0.999, "divisor": 1.0, "multiplier": 1.0,
}  # fmt: skip
shapes = st.lists(st.integers(0, 9), max_size=2).map(tuple)
changes = st.fixed_dictionaries(
    {},
    optional={
        "lr": st.sampled_from([1e-300, 1.0, 3.7]),
        "beta1": st.just(0.0),
        "beta2": st.sampled_from([0.0, 0.95]),
        "eps": st.sampled_from([1e-300, 1.0]),
        "weight_decay": st.just(0.0),
        "correction1": st.just(1.0 - 0.9**7),
        "correction2": st.just(1e-16),
        "multiplier": st.sampled_from([0.0, 5e-324, 0.37]),
        "divisor": st.just(1.7e30),
    },
)


def state(seed, shape, dtype, flavour="plain"):
    rng = np.random.default_rng(seed)
    param, grad, first, second = (filled(rng, shape, dtype, flavour) for _ in range(4))
    return param, grad, first, np.abs(second)


def check_update(arrays, rule):
    *expected, problem = oracle.adamw_update(*arrays, rule)
    before = [x.copy() for x in arrays]
    everywhere(lambda n: kernels.adamw_update(*arrays, **rule, n_threads=n)[:3], tuple(expected))
    for x, old in zip(arrays, before, strict=True):
        assert_same_bits(x, old)
    found = kernels.adamw_update(*arrays, **rule).problem
    if problem is None:
        assert found is None
    else:
        assert (found.index, found.stage) == problem[:2]
        assert_same_bits(np.array(found.value), np.array(problem[2]))


@settings(max_examples=60)
@given(shape=shapes, seed=seeds, flavour=flavours, change=changes)
def test_equal_to_the_scalar_form(dtype, shape, seed, flavour, change):
    with np.errstate(all="ignore"):
        check_update(state(seed, shape, dtype, flavour), RULE | change)


def test_long_arrays(dtype):
    check_update(state(1, (5, 2111), dtype), RULE | {"multiplier": 0.25})


def test_unit_clipping_leaves_the_gradient_bits_alone(isa, dtype):
    param, grad, first, second = state(3, (40,), dtype, "wide")
    stages = kernels.adamw_stages(param, grad, first, second, **RULE)
    assert_same_bits(stages["effective_gradient"], grad.astype(np.float64))


@pytest.mark.feature("A25", "A26")
def test_scale_equals_premultiplied_gradients(isa):
    param, grad, first, second = state(4, (40,), np.dtype(np.float64))
    scaled = kernels.adamw_update(param, grad, first, second, **(RULE | {"multiplier": 0.3}))
    same = kernels.adamw_update(param, grad * 0.3, first, second, **RULE)
    for a, b in zip(scaled[:3], same[:3], strict=True):
        assert_same_bits(a, b)


@pytest.mark.feature("A28")
def test_scale_does_not_touch_weight_decay(isa, dtype):
    param, grad, first, second = state(5, (40,), dtype)
    grad[:] = first[:] = second[:] = 0
    updates = [
        kernels.adamw_update(param, grad, first, second, **(RULE | {"multiplier": u})).param
        for u in (1.0, 0.5, 0.0)
    ]
    assert (updates[0] != param).all()
    for other in updates[1:]:
        assert_same_bits(other, updates[0])


def test_stages_are_the_lines_of_the_formula(isa, dtype):
    arrays = state(6, (3, 4), dtype)
    stages = kernels.adamw_stages(*arrays, **RULE)
    assert tuple(stages) == kernels.ADAMW_STAGES
    for i, element in enumerate(zip(*(x.ravel().tolist() for x in arrays), strict=True)):
        for name, value in oracle.lines(*element, RULE).items():
            assert stages[name].shape == (3, 4)
            assert stages[name].ravel()[i] == value


HUGE = 1.5e308
FAILURES = [  # what to change, and the stage that names it
    ({"grad": np.nan}, {}, "effective_gradient"),
    ({"grad": HUGE}, {"multiplier": 2.0}, "effective_gradient"),
    ({"first": np.inf}, {}, "first_moment"),
    ({"grad": 1e200}, {}, "squared_gradient"),
    ({"second": np.inf}, {}, "second_moment"),
    ({"first": HUGE}, {"correction1": 1e-3}, "corrected_first_moment"),
    ({"second": HUGE}, {"correction2": 1e-3}, "corrected_second_moment"),
    ({"first": 1e300, "grad": 0.0, "second": 0.0}, {"eps": 1e-300}, "direction"),
    ({"first": 1e300, "grad": 0.0, "second": 0.0}, {"eps": 1.0, "lr": 1e50}, "step"),
    ({"param": HUGE}, {"lr": 1e3, "weight_decay": 1.0}, "weight_decay"),
    ({"param": -1.7e308, "first": 1.7e308, "grad": 0.0, "second": 0.0},
     {"eps": 1.0, "lr": 1.0, "correction1": 1.0, "weight_decay": 0.0}, "parameter"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "change", "stage"), FAILURES, ids=[f[2] for f in FAILURES])
def test_the_first_line_that_is_not_finite_is_reported(isa, values, change, stage):
    arrays = dict(zip(("param", "grad", "first", "second"), state(7, (30000,), float), strict=True))
    for name, value in values.items():
        arrays[name][[20001, 29000]] = value
    rule = RULE | change
    for n_threads in THREADS:
        found = kernels.adamw_update(*arrays.values(), **rule, n_threads=n_threads).problem
        assert (found.index, found.stage) == (20001, stage)
        assert not np.isfinite(found.value)


FAILURES_OF_FLOAT32 = [  # values of one element, what to change, and the stage that names it
    ((0.0, 0.0, 3e38, 0.0), {"eps": 1e-6}, "parameter"),
    ((0.0, 3e38, 0.0, 0.0), {"eps": 1e-6}, "second_moment"),
    ((0.0, 3e38, 0.0, 1.0),
     {"multiplier": 4.0, "beta1": 0.0, "beta2": 1.0, "eps": 1.0, "lr": 1e-6}, "first_moment"),
]  # fmt: skip


@pytest.mark.parametrize(("n", "at"), [(3, 0), (100, 57), (100, 98)])
@pytest.mark.parametrize(
    ("values", "change", "stage"), FAILURES_OF_FLOAT32, ids=[f[2] for f in FAILURES_OF_FLOAT32]
)
def test_values_that_only_float32_cannot_hold_are_reported(isa, values, change, stage, n, at):
    arrays = state(9, (n,), np.float32)
    assert kernels.adamw_update(*arrays, **(RULE | change)).problem is None
    for array, value in zip(arrays, values, strict=True):
        array[at] = value
    found = kernels.adamw_update(*arrays, **(RULE | change)).problem
    assert (found.index, found.stage, abs(found.value)) == (at, stage, np.inf)


def test_results_can_go_to_given_arrays(isa, dtype):
    arrays = state(8, (3, 5), dtype)
    expected = kernels.adamw_update(*arrays, **RULE)
    out = tuple(np.empty_like(arrays[0]) for _ in range(3))
    result = kernels.adamw_update(*arrays, **RULE, out=out)
    for a, b, c in zip(result[:3], out, expected[:3], strict=True):
        assert a is b
        assert_same_bits(a, c)


def test_bad_arguments_are_named(dtype):
    param, grad, first, second = state(9, (2, 3), dtype)
    with pytest.raises(ShapeError, match="grad must have shape"):
        kernels.adamw_update(param, grad[:1], first, second, **RULE)
    with pytest.raises(DTypeError, match="first_moment must have dtype"):
        kernels.adamw_update(param, grad, first.astype(np.float16), second, **RULE)
    with pytest.raises(RangeError, match="lr must be a real number"):
        kernels.adamw_update(param, grad, first, second, **(RULE | {"lr": "fast"}))
    with pytest.raises(DTypeError, match=r"out\[0\] shares memory with param"):
        kernels.adamw_update(param, grad, first, second, **RULE, out=(param, grad, first))
    same = np.empty_like(param)
    with pytest.raises(DTypeError, match=r"out\[1\] shares memory with out\[0\]"):
        kernels.adamw_update(param, grad, first, second, **RULE, out=(same, same, same))


# ---- many parameters at once -----------------------------------------------------------------
def check_group(states, rule):
    decays = [rule["weight_decay"] * (i % 2) for i in range(len(states))]
    rest = {name: value for name, value in rule.items() if name != "weight_decay"}
    single = [
        kernels.adamw_update(*arrays, **rest, weight_decay=decay)
        for arrays, decay in zip(states, decays, strict=True)
    ]
    finite = all(result.problem is None for result in single)

    def together(n_threads):
        arrays = [[x.copy() for x in arrays] for arrays in states]
        params, grads, firsts, seconds = zip(*arrays, strict=True)
        group = kernels.AdamWGroup(params, firsts, seconds, decays)
        assert group.prepare(grads, **rest, n_threads=n_threads) == finite
        for mine, old in zip(arrays, states, strict=True):
            for x, y in zip(mine, old, strict=True):
                assert_same_bits(x, y)
        if not finite:
            return ()
        group.commit(n_threads)
        return tuple(x for p, _, m, v in arrays for x in (p, m, v))

    everywhere(together, tuple(x for r in single for x in r[:3]) if finite else ())


@settings(max_examples=60)
@given(
    shapes=st.lists(shapes, min_size=1, max_size=3), seed=seeds, flavour=flavours, change=changes
)
def test_a_group_is_updated_as_its_parameters_one_by_one(dtype, shapes, seed, flavour, change):
    with np.errstate(all="ignore"):
        states = [state(seed + i, shape, dtype, flavour) for i, shape in enumerate(shapes)]
        check_group(states, RULE | change)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize(
    "value", [1e15, 1e37, 2e38, 1e149, 1.1e150, 1e154, 1e290, 1e305, np.inf, np.nan, -1.0, -0.0]
)
def test_a_group_near_overflow(dtype, which, value):
    with np.errstate(all="ignore"):
        arrays = state(6, (300,), dtype)
        arrays[which][211] = value
        check_group([state(7, (3, 5), dtype), arrays], RULE | {"eps": 1e-3})


@settings(max_examples=30)
@given(
    shape=shapes, seed=seeds, size=st.sampled_from([1e-30, 1.0, 1e12, 1e17, 1e150]), change=changes
)
def test_updates_in_a_row_are_those_of_fresh_groups(dtype, shape, seed, size, change):
    """Bounds carried from update to update must never let an overflow through."""
    rule = RULE | change
    decay = rule.pop("weight_decay")
    with np.errstate(all="ignore"):
        param, _, first, second = state(seed, shape, dtype)
        mine = [param, first, second]
        other = [x.copy() for x in mine]
        kept = kernels.AdamWGroup(*([x] for x in mine), [decay])
        for turn in range(6):
            grad = state(seed + turn, shape, dtype)[1] * np.dtype(dtype).type(size)
            fresh = kernels.AdamWGroup(*([x] for x in other), [decay])
            finite = fresh.prepare([grad], **rule)
            # every other turn the gradients are not read: the number is a bound of theirs
            known = float(np.abs(grad).max(initial=0.0)) if turn % 2 else None
            assert kept.prepare([grad], **rule, unchanged=turn > 0, largest_grad=known) == finite
            if not finite:
                break
            fresh.commit()
            kept.commit()
            for x, y in zip(mine, other, strict=True):
                assert_same_bits(x, y)


def test_bounds_are_forgotten_by_an_update_that_is_not_made(dtype):
    param, grad, first, second = state(11, (50,), dtype)
    rule = {name: value for name, value in RULE.items() if name != "weight_decay"}
    group = kernels.AdamWGroup([param], [first], [second], [0.0])
    assert group.prepare([grad], **rule)
    group.commit()
    assert group.prepare([grad * 0], **rule, unchanged=True)  # its moments would be smaller
    second[17] = np.finfo(dtype).max
    assert not group.prepare([grad * 0], **(rule | {"correction2": 1e-300}), unchanged=True)


def test_a_bound_of_the_gradients_is_used_instead_of_reading_them(dtype):
    param, grad, first, second = state(11, (50,), dtype)
    rule = {name: value for name, value in RULE.items() if name != "weight_decay"}
    group = kernels.AdamWGroup([param], [first], [second], [0.0])
    grad[7] = np.inf
    largest = float(np.finfo(dtype).max)
    assert not group.prepare([grad], **rule)
    assert not group.prepare([grad], **rule, largest_grad=largest)  # so it was read after all
    assert group.prepare([grad], **rule, largest_grad=1.0)  # the caller's word is taken
    with pytest.raises(RangeError, match="largest_grad"):
        group.prepare([grad], **rule, largest_grad="small")


@settings(max_examples=200)
@given(data=st.data())
def test_quick_quotients_are_those_of_the_divider(isa, data):
    """x / c with two multiply-adds more instead of the divider: every bit."""
    kernel = _kernels.for_dtype(np.dtype("float32")).adamw
    c = data.draw(
        st.one_of(
            st.floats(1e-60, 1e60),
            st.tuples(st.floats(0.5, 1.0, exclude_max=True), st.integers(1, 3000)).map(
                lambda pair: 1.0 - pair[0] ** pair[1]
            ),
            st.integers(1, 40).map(lambda steps: 1.0 - steps * 2.0**-53),
        )
    )
    rng = np.random.default_rng(data.draw(seeds))
    x = rng.uniform(1.0, 2.0, 512) * 2.0 ** rng.integers(-800, 400, 512)
    x[:64] = np.nextafter(2.0, 0.0) * 2.0 ** rng.integers(-800, 400, 64)
    x[64] = 0.0
    x[65:128] = c * rng.integers(1, 2**20, 63)  # near whole quotients
    x[128::2] *= -1.0
    out = np.empty_like(x)
    kernel.quotients(x, c, out)
    assert_same_bits(out, x / c)


@pytest.mark.parametrize("size", [*range(28, 60), 127, 128, 1000, 1001])
def test_groups_of_every_length_with_zeros_of_both_signs(size, dtype):
    """Updates that run in stages begin and end anywhere, and no zero may change its sign."""
    rng = np.random.default_rng(size)
    arrays = state(size, (size,), dtype)
    for x in arrays[:3]:
        x[rng.random(size) < 0.3] = 0.0
        x[rng.random(size) < 0.3] *= -1.0
    arrays[3][rng.random(size) < 0.3] = 0.0
    check_group([arrays], RULE)
    check_group([arrays, arrays], RULE | {"multiplier": 0.37, "correction1": 1.0 - 0.9**7})


def test_a_gradient_may_be_another_parameter(dtype):
    with np.errstate(all="ignore"):
        first, second = state(8, (40,), dtype), state(9, (40,), dtype)
        rest = {name: value for name, value in RULE.items() if name != "weight_decay"}
        gradients = first[1], first[0]
        expected = [
            kernels.adamw_update(s[0], g, s[2], s[3], **RULE)[:3]
            for s, g in zip((first, second), gradients, strict=True)
        ]
        mine = [[x.copy() for x in s] for s in (first, second)]
        params, _, firsts, seconds = zip(*mine, strict=True)
        group = kernels.AdamWGroup(params, firsts, seconds, [RULE["weight_decay"]] * 2)
        assert group.prepare([mine[0][1], mine[0][0]], **rest)
        group.commit()
        for s, result in zip(mine, expected, strict=True):
            for x, y in zip((s[0], s[2], s[3]), result, strict=True):
                assert_same_bits(x, y)


def test_a_group_refuses_what_does_not_fit(dtype):
    param, grad, first, second = state(10, (3, 4), dtype)
    rest = {name: value for name, value in RULE.items() if name != "weight_decay"}
    with pytest.raises(ShapeError):
        kernels.AdamWGroup([param], [first[:2]], [second], [0.0])
    with pytest.raises(RangeError):
        kernels.AdamWGroup([], [], [], [])
    with pytest.raises(RangeError):
        kernels.AdamWGroup([param], [first], [second], ["much"])
    view = param.view()
    view.flags.writeable = False
    with pytest.raises(DTypeError):
        kernels.AdamWGroup([view], [first], [second], [0.0])
    group = kernels.AdamWGroup([param], [first], [second], [0.0])
    for wrong in (grad[:2], grad.astype(np.float16), None):
        with pytest.raises((ShapeError, DTypeError)):
            group.prepare([wrong], **rest)
