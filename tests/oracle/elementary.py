"""Correctly rounded elementary functions by MPFR (gmpy2) and, slower and independently, by mpmath.

MPFR rounds correctly by specification, including to subnormal numbers when told the exponent
range.  The second oracle evaluates with mpmath at a precision that is raised until both ends of an
error interval round alike, and rounds a fraction by integer arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction

import gmpy2
import mpmath
import numpy as np

FUNCTIONS = ("exp", "log", "log1p", "sin", "cos", "pow")
# precision, exponent of the smallest subnormal, exponent above the largest number
FORMATS = {"float64": (53, -1074, 1024), "float32": (24, -149, 128)}


# ---- MPFR ----------------------------------------------------------------------------------------
def by_mpfr(function: str, arguments: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """f of every element, correctly rounded to `dtype`; `arguments` are one or two 1-D arrays."""
    bits, lowest, highest = FORMATS[dtype.name]
    context = gmpy2.context(
        precision=bits,
        emin=lowest + 1,
        emax=highest,
        subnormalize=True,
        round=gmpy2.RoundToNearest,
    )
    mpfr = gmpy2.mpfr
    columns = [a.tolist() for a in arguments]
    with context:
        if function == "pow":
            values = [float(mpfr(x) ** mpfr(y)) for x, y in zip(*columns, strict=True)]
        else:
            f = getattr(gmpy2, function)
            values = [float(f(mpfr(x))) for x in columns[0]]
    return np.array(values, np.float64).astype(dtype)


# ---- mpmath --------------------------------------------------------------------------------------
def _round(value: Fraction, bits: int, lowest: int) -> Fraction:
    """A positive fraction rounded to nearest even with `bits` bits, at least units of 2^lowest."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - bits + 1, lowest)
    return round(value / unit) * unit  # round() of a fraction: ties to even


def _fraction(value: mpmath.mpf) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def by_mpmath(function: str, x: float, y: float, dtype: np.dtype) -> float:
    """f(x), or x^y, for arguments where the value is finite and neither 0 nor undefined."""
    bits, lowest, highest = FORMATS[dtype.name]
    f = {
        "pow": lambda v: mpmath.power(v, mpmath.mpf(y)),
        # mpmath's log1p loses digits near 0; log(1 + x) is fine once 1 + x is exact
        "log1p": lambda v: mpmath.log(1 + v),
    }.get(function, getattr(mpmath, "power" if function == "pow" else function))
    for precision in (2400, 4800):
        with mpmath.workprec(precision):
            value = _fraction(f(mpmath.mpf(x)))
        margin = abs(value) * Fraction(2) ** (60 - precision)
        low, high = (_round(abs(value) + d, bits, lowest) for d in (-margin, margin))
        if low == high:
            break
    else:  # within 2^-4000 of a boundary: only a value that is exactly on it
        low = _round(abs(value), bits, lowest)
    if low >= Fraction(2) ** highest:
        return float("inf") if value > 0 else float("-inf")
    return float(low) if value > 0 else -float(low)


# ---- arguments -----------------------------------------------------------------------------------
def _patterns(rng: np.random.Generator, n: int, dtype: np.dtype) -> np.ndarray:
    """Random bit patterns: all exponents alike; subnormals, infinities and NaN too."""
    words = rng.integers(0, 2 ** (8 * dtype.itemsize), n, dtype=f"u{dtype.itemsize}")
    return words.view(dtype)


def _magnitudes(rng: np.random.Generator, n: int, low: float, high: float) -> np.ndarray:
    """Either sign, logarithmically even from 2^low to 2^high."""
    return rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(low, high, n))


def _multiples(rng: np.random.Generator, n: int, step: float, count: int) -> np.ndarray:
    """Near k*step and near the middle between two of them."""
    k = rng.integers(-count, count, n) + 0.5 * rng.integers(0, 2, n)
    return k * step * (1 + rng.integers(-4, 5, n) * 2.0**-52)


def arguments(function: str, dtype: np.dtype, n: int, seed: int) -> tuple[np.ndarray, ...]:
    """About `n` arguments (pairs for pow) that visit every branch of the implementation."""
    rng = np.random.default_rng([seed, FUNCTIONS.index(function), dtype.itemsize])
    m = n // 6
    wide = dtype == np.float64
    if function == "exp":
        low, high = (-746.0, 710.0) if wide else (-105.0, 89.0)
        parts = [
            rng.uniform(low, high, m),
            rng.uniform(-30.0, 10.0, m),
            _magnitudes(rng, m, -58.0, 3.0),
            _multiples(rng, m, np.log(2.0) / 128, int(high / 0.0055)),
            rng.uniform(low, low * 0.945, m),  # subnormal results
        ]
    elif function in ("log", "log1p"):
        parts = [
            np.abs(_patterns(rng, m, dtype)),
            rng.uniform(0.0, 4.0, m),
            _magnitudes(rng, m, -56.0, -1.0) + (function == "log"),
            np.exp2(rng.integers(-140, 120, m)) * (1 + rng.integers(-3, 4, m) * 2.0**-23),
            rng.uniform(-1.0, 1.0, m) + (function == "log"),
        ]
    elif function in ("sin", "cos"):
        parts = [
            rng.uniform(-10.0, 10.0, m),
            rng.uniform(-(2.0**20), 2.0**20, m),
            _magnitudes(rng, m, -30.0, 0.0),
            _multiples(rng, m, np.pi / 2, 700000),
            _multiples(rng, m, np.pi / 128, 40000000),
        ]
    else:
        x, y = _pow_arguments(rng, m, dtype)
        parts = [x]
    parts.append(_patterns(rng, n - sum(len(p) for p in parts), dtype))
    with np.errstate(all="ignore"):
        first = np.concatenate([p.astype(dtype) for p in parts])
        if function != "pow":
            return (first,)
        return first, np.concatenate([y, _patterns(rng, n - len(y), dtype)]).astype(dtype)


def _pow_arguments(
    rng: np.random.Generator, m: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    reach = 745.0 if dtype == np.float64 else 103.0
    base = np.concatenate(
        [
            rng.uniform(0.0, 100.0, m),
            1 + _magnitudes(rng, m, -52.0, -1.0),
            np.exp2(rng.uniform(-1000.0, 1000.0, m) if reach > 104 else rng.uniform(-120, 120, m)),
        ]
    ).astype(dtype)
    with np.errstate(all="ignore"):
        scale = np.where(base == 1, 1.0, np.abs(np.log(base.astype(np.float64))))
        exponent = rng.uniform(-1.02, 1.02, 3 * m) * reach / scale
    # small whole numbers, halves, quarters, powers of two and negative bases: exact and halfway
    small = rng.integers(-1000, 1000, 2 * m) / np.exp2(rng.integers(0, 5, 2 * m))
    power = rng.integers(-40, 40, 2 * m) / rng.choice([1.0, 1.0, 1.0, 2.0, 4.0], 2 * m)
    return np.concatenate([base, small]), np.concatenate([exponent, power])


@functools.cache
def checked(
    function: str, dtype_name: str, n: int, seed: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Arguments and their correctly rounded values; remembered, as many builds are tested."""
    dtype = np.dtype(dtype_name)
    points = arguments(function, dtype, n, seed)
    return points, by_mpfr(function, points, dtype)


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Equal bits, or both NaN."""
    word = f"u{a.dtype.itemsize}"
    return (a.view(word) == b.view(word)) | (np.isnan(a) & np.isnan(b))
