"""Scalar arithmetic of the two number types, one operation at a time, on Python floats.

``of(dtype)`` gives an object with ``rounded`` (a binary64 result of one operation on values of the
type, rounded to the type), ``mul_add`` (the chain step of the contract) and ``exp`` (correctly
rounded).  Python floats are binary64, so for float32 every operation is done there and rounded:
one add, subtract, multiply, divide or square root of binary32 values survives the double rounding,
because 53 >= 2 * 24 + 2.  The fused step does not, and is done in whole numbers.
"""

import ctypes
import math
from fractions import Fraction

import gmpy2
import numpy as np


def to_binary32(x: float) -> float:
    return ctypes.c_float(x).value


def fused_binary32(a: float, b: float, acc: float) -> float:
    """acc + a * b for binary32 values, rounded once to binary32."""
    product = a * b  # exact: 48 bits
    if not (math.isfinite(product) and math.isfinite(acc)):
        return product + acc
    exact = Fraction(product) + Fraction(acc)
    if exact == 0:
        return product + acc  # the sign of a zero sum
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    quantum = Fraction(2) ** max(exponent - 23, -149)
    rounded = round(size / quantum) * quantum  # round() of a Fraction: to nearest, ties to even
    value = float(rounded) if rounded < Fraction(2) ** 128 else math.inf
    return -value if exact < 0 else value


class _Binary64:
    @staticmethod
    def rounded(x: float) -> float:
        return x

    @staticmethod
    def mul_add(a: float, b: float, acc: float) -> float:
        return acc + a * b

    @staticmethod
    def exp(x: float) -> float:
        with gmpy2.context(precision=53, emin=-1073, emax=1024, subnormalize=True):
            return float(gmpy2.exp(gmpy2.mpfr(x)))


class _Binary32:
    rounded = staticmethod(to_binary32)
    mul_add = staticmethod(fused_binary32)

    @staticmethod
    def exp(x: float) -> float:
        with gmpy2.context(precision=24, emin=-148, emax=128, subnormalize=True):
            return float(gmpy2.exp(gmpy2.mpfr(x)))


def of(dtype):
    """The arithmetic of a numpy dtype."""
    return {"float64": _Binary64, "float32": _Binary32}[np.dtype(dtype).name]


def zero(x: float) -> float:
    """+0 for either zero, else x."""
    return 0.0 if x == 0 else x


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal shape, dtype and bits; any NaN matches any NaN."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    unsigned = np.dtype(f"u{expected.dtype.itemsize}")
    one = np.where(nan, 0, np.ascontiguousarray(actual).view(unsigned))
    two = np.where(nan, 0, np.ascontiguousarray(expected).view(unsigned))
    wrong = np.argwhere(one != two)
    assert not len(wrong), (
        f"{len(wrong)} of {expected.size} values differ, first at {tuple(wrong[0])}:"
        f" {actual[tuple(wrong[0])]!r} instead of {expected[tuple(wrong[0])]!r}"
    )
