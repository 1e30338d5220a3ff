"""What the checks in front of the kernels accept and refuse, and what they say."""

import numpy as np
import pytest

from llmcy import _check as check
from llmcy.errors import DTypeError, RangeError, ShapeError

F64 = np.dtype(np.float64)


def misaligned():
    return np.zeros(33, np.uint8)[1:].view(np.float64)


@pytest.mark.parametrize(
    ("x", "kind", "text"),
    [
        ([1.0], "NotAnArray", "x must be a numpy array of float32 or float64, got list"),
        (None, "NotAnArray", "got NoneType"),
        (np.ones(2, np.int64), "UnsupportedDType", "x must have dtype float32 or float64"),
        (np.ones(2, np.float16), "UnsupportedDType", r"got <f2 \(float16\)"),
        (np.ones(2, ">f8"), "UnsupportedDType", r"native byte order, got >f8"),
        (np.ones(2, object), "UnsupportedDType", "object"),
        (np.ones((2, 3)).T, "NotContiguous", r"x must be C-contiguous .* strides \(8, 24\)"),
        (np.ones(6)[::2], "NotContiguous", "np.ascontiguousarray"),
        (np.broadcast_to(1.0, (2, 2)), "NotContiguous", "without gaps"),
        (misaligned(), "Misaligned", "no multiple of its item size"),
    ],
)
def test_arrays_that_kernels_cannot_read(x, kind, text):
    with pytest.raises(DTypeError, match=text) as caught:
        check.float_array("x", x)
    assert (caught.value.kind, caught.value.name) == (kind, "x")
    with pytest.raises(DTypeError):
        check.like("x", x, F64, np.shape(x) if isinstance(x, np.ndarray) else ())


@pytest.mark.parametrize("x", [np.float64(1), np.array(1.0), np.empty((0, 3)), np.ones((2, 3))])
def test_arrays_that_kernels_read(x):
    if isinstance(x, np.ndarray):
        check.float_array("x", x)
        check.float_array("x", x.astype(np.float32))
        read_only = x.copy()
        read_only.flags.writeable = False
        check.like("x", read_only, F64, x.shape)
    else:
        with pytest.raises(DTypeError, match="got float64"):  # a scalar is no array
            check.float_array("x", x)


def test_both_names_of_a_64_bit_integer_are_taken():
    for kind in (np.int64, np.longlong, np.dtype("l") if np.dtype("l").itemsize == 8 else np.int64):
        check.token_ids("ids", np.zeros((2, 3), kind), (2, 3))


def test_shapes_are_compared_in_full():
    with pytest.raises(ShapeError, match=r"x must have shape \(3, 2\), got \(2, 3\)") as caught:
        check.like("x", np.ones((2, 3)), F64, (3, 2))
    assert (caught.value.expected, caught.value.actual) == ((3, 2), (2, 3))
    with pytest.raises(DTypeError, match="x must have dtype float64"):
        check.like("x", np.ones((2, 3), np.float32), F64, (2, 3))


def test_outputs_are_new_or_usable():
    x = np.ones((2, 3))
    assert check.output(None, F64, (2, 3)).shape == (2, 3)
    given = np.empty((2, 3))
    assert check.output(given, F64, (2, 3), (("x", x),)) is given
    assert check.output(x, F64, (2, 3), (("x", x),), in_place=True) is x
    assert check.output(x.reshape(3, 2), F64, (3, 2), (("x", x),), in_place=True) is not x
    with pytest.raises(DTypeError, match="out shares memory with x") as caught:
        check.output(x, F64, (2, 3), (("x", x),))
    assert (caught.value.kind, caught.value.other) == ("Overlap", "x")
    long = np.ones(8)
    with pytest.raises(DTypeError, match="out shares memory"):  # shifted: never safe
        check.output(long[1:7], F64, (6,), (("x", long[:6]),), in_place=True)
    check.output(long[:4], F64, (4,), (("x", long[4:]),))  # neighbours are apart
    given.flags.writeable = False
    with pytest.raises(DTypeError, match="out is read-only") as caught:
        check.output(given, F64, (2, 3))
    assert caught.value.kind == "ReadOnly"
    with pytest.raises(ShapeError, match="out must have shape"):
        check.output(np.empty(6), F64, (2, 3))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: check.real_number("s", "1"), "s must be a real number, got '1'"),
        (lambda: check.real_number("s", True), "s must be a real number, got True"),
        (lambda: check.real_number("s", 10**400), "within the range of float64"),
        (lambda: check.finite("s", np.nan), "s must be a finite number, got nan"),
        (lambda: check.positive("s", 0), "s must be a finite number above 0, got 0"),
        (lambda: check.positive("s", np.inf), "got inf"),
        (lambda: check.whole_number("n", 1.0), "n must be a whole number from 0"),
        (lambda: check.whole_number("n", True), "got True"),
        (lambda: check.whole_number("n", 3, 1, 2), "n must be a whole number from 1 to 2, got 3"),
        (lambda: check.flag("f", 1), "f must be True or False, got 1"),
    ],
)
def test_numbers_that_are_refused(call, text):
    with pytest.raises(RangeError, match=text) as caught:
        call()
    assert caught.value.kind == "OutOfRange"


def test_numbers_of_numpy_are_taken():
    assert check.positive("s", np.float32(0.5)) == 0.5
    assert check.whole_number("n", np.int32(4)) == 4
    assert check.flag("f", np.bool_(True)) is True


def test_thread_counts_are_checked():
    from llmcy import kernels
    from llmcy.errors import ConfigError

    x = np.ones(3)
    for bad in (0, -1, 1.5, True, 10**9):
        with pytest.raises(ConfigError, match="n_threads"):
            kernels.add(x, x, n_threads=bad)
