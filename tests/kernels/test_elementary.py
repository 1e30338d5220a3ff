"""exp, log, log1p, sin, cos and pow against MPFR, mpmath and exact integers: bits, nothing less."""

import functools
import json
import math
import random
import shutil
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from llmcy import _kernels, kernels
from llmcy._kernels import cr_exact
from llmcy.errors import DTypeError, ShapeError
from tests.oracle import elementary as oracle

ROOT = Path(__file__).parents[2]
HARD_CASES = json.loads((ROOT / "tests/golden/elementary_hard_cases.json").read_text())
FUNCTIONS = oracle.FUNCTIONS
INF, NAN = math.inf, math.nan


def evaluate(function: str, arguments: tuple[np.ndarray, ...], **keywords) -> np.ndarray:
    return getattr(kernels, function)(*arguments, **keywords)


def assert_bits(function: str, arguments: tuple[np.ndarray, ...], want: np.ndarray) -> None:
    got = evaluate(function, arguments)
    bad = np.flatnonzero(~oracle.same(got, want))
    shown = [
        (tuple(float(a[i]).hex() for a in arguments), float(got[i]).hex(), float(want[i]).hex())
        for i in bad[:5]
    ]
    assert bad.size == 0, f"{bad.size} of {want.size} wrong: (arguments, got, expected) {shown}"


# ---- correct rounding ----------------------------------------------------------------------------
@pytest.mark.parametrize("function", FUNCTIONS)
def test_correctly_rounded(function: str, isa: str, dtype: np.dtype) -> None:
    points, want = oracle.checked(function, dtype.name, 30_000, 1)
    assert_bits(function, points, want)


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_two_million_arguments(function: str, dtype: np.dtype) -> None:
    for seed in range(2, 12):
        points = oracle.arguments(function, dtype, 200_000, seed)
        want = oracle.by_mpfr(function, points, dtype)
        for isa in _kernels.available_isas():
            with _kernels.use_isa(isa):
                assert_bits(function, points, want)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_hard_cases(function: str, isa: str) -> None:
    """Arguments whose values are within 2^-25 units (or much less) of a midpoint."""
    rows = HARD_CASES[function]
    columns = [np.array([float.fromhex(row[i]) for row in rows]) for i in range(3)]
    points = tuple(columns[: 2 if function == "pow" else 1])
    assert_bits(function, points, columns[2])
    assert max(row[3] for row in rows) <= -25


@pytest.mark.parametrize("function", FUNCTIONS)
def test_two_oracles_agree(function: str, dtype: np.dtype) -> None:
    points = oracle.arguments(function, dtype, 600, 99)
    want = oracle.by_mpfr(function, points, dtype)
    usable = np.isfinite(want) & (want != 0)
    for a in points:
        usable &= np.isfinite(a) & (a != 0)
    if function == "pow":
        usable &= points[0] > 0
    if function in ("sin", "cos"):
        usable &= np.abs(points[0]) < 1e30  # mpmath is given 2400 bits
    for i in np.flatnonzero(usable)[::4]:
        x, y = float(points[0][i]), float(points[-1][i])
        assert oracle.by_mpmath(function, x, y, dtype) == want[i]


@pytest.mark.slow
def test_exp_of_every_float(isa: str) -> None:
    """All 2^32 - 2^24 + 2 binary32 numbers that are not NaN.

    The reference is binary64 exp, rounded again.  That is right unless the binary64 value lies
    halfway between two binary32 numbers; such arguments are decided by MPFR.
    """
    step = 1 << 22
    count = 0
    for start in range(0, 1 << 32, step):
        x = np.arange(start, start + step, dtype=np.uint32).view(np.float32)
        x = x[~np.isnan(x)]
        if x.size == 0:
            continue
        count += x.size
        wide = kernels.exp(x.astype(np.float64))
        with np.errstate(over="ignore", invalid="ignore"):
            want = wide.astype(np.float32)
            back = want.astype(np.float64)
            side = np.where(wide > back, np.float32(INF), np.float32(-INF))
            other = np.nextafter(want, side).astype(np.float64)
            halfway = (wide != back) & (back + 0.5 * (other - back) == wide)
        if halfway.any():
            want[halfway] = oracle.by_mpfr("exp", (x[halfway],), np.dtype(np.float32))
        got = kernels.exp(x)
        assert np.array_equal(got.view(np.uint32), want.view(np.uint32)), hex(start)
    assert count == 2**32 - 2**24 + 2


def test_single_exponentials(isa: str) -> None:
    """exp of one number at a time, which decides the lanes that a vector leaves in doubt."""
    (x,), want = oracle.checked("exp", "float64", 30_000, 1)
    got = np.empty_like(x)
    _kernels.for_dtype(x.dtype).elementary.exp_singly(x, got)
    assert oracle.same(got, want).all()


# ---- the exact path by itself --------------------------------------------------------------------
DOMAIN = {  # where cr_math hands arguments to the exact path
    "exp": lambda x, y: abs(x) >= 2.0**-60 and abs(x) < 800,
    "log": lambda x, y: x > 0 and x != 1,
    "log1p": lambda x, y: x > -1 and abs(x) >= 2.0**-54,
    "sin": lambda x, y: abs(x) >= 2.0**-26,
    "cos": lambda x, y: abs(x) >= 2.0**-27,
    "pow": lambda x, y: x > 0 and x != 1 and y != 0,
}


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_exact_path(function: str, first: int, dtype: np.dtype) -> None:
    """Every precision of Ziv's strategy is right by itself, and none of them gives up."""
    points, want = oracle.checked(function, dtype.name, 3_000, 50)
    bits = oracle.FORMATS[dtype.name][0]
    tried = 0
    for x, y, expected in zip(points[0].tolist(), points[-1].tolist(), want.tolist(), strict=True):
        if math.isfinite(x) and math.isfinite(y) and DOMAIN[function](x, y):
            tried += 1
            assert cr_exact.exact(function, x, y, bits, first) == expected, (x.hex(), y.hex())
    assert tried > 1_000


@pytest.mark.parametrize("function", ["exp", "log", "sin", "cos"])
def test_exact_path_needs_no_fast_path(function: str) -> None:
    for row in HARD_CASES[function]:
        x, want = float.fromhex(row[0]), float.fromhex(row[2])
        assert cr_exact.exact(function, x, 0.0, 53, 0) == want


# ---- named values --------------------------------------------------------------------------------
TINY, LARGEST = 5e-324, sys.float_info.max
SPECIAL = {
    "exp": [
        (0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (TINY, 1.0), (-TINY, 1.0),
        (709.782712893384, LARGEST), (709.7827128933841, INF),
        (-745.1332191019411, TINY), (-745.1332191019412, 0.0), (LARGEST, INF), (-LARGEST, 0.0),
        (2.0**-54, 1.0), (-(2.0**-54), 1.0), (2.0**-53, 1.0 + 2.0**-52),
    ],
    "log": [
        (1.0, 0.0), (0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-TINY, NAN), (-INF, NAN),
        (INF, INF), (NAN, NAN), (TINY, -744.4400719213812), (LARGEST, 709.782712893384),
    ],
    "log1p": [
        (0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-1.5, NAN), (-INF, NAN), (INF, INF), (NAN, NAN),
        (TINY, TINY), (-TINY, -TINY), (2.0**-60, 2.0**-60), (LARGEST, 709.782712893384),
        (-1.0 + 2.0**-53, -36.7368005696771), (2.0**-53, 2.0**-53),
    ],
    "sin": [
        (0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (TINY, TINY),
        (-TINY, -TINY), (1e22, -0.8522008497671888), (LARGEST, 0.004961954789184062),
    ],
    "cos": [
        (0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (TINY, 1.0),
        (1e22, 0.523214785395139), (LARGEST, -0.9999876894265599),
    ],
}  # fmt: skip


@pytest.mark.parametrize("function", SPECIAL)
def test_named_values(function: str, isa: str) -> None:
    x, want = (np.array(column) for column in zip(*SPECIAL[function], strict=True))
    want[want == LARGEST] = oracle.by_mpfr(function, (x[want == LARGEST],), want.dtype)
    assert_bits(function, (x,), want)
    # the same in binary32, wherever argument and value are binary32 numbers too
    with np.errstate(over="ignore"):
        narrow = oracle.same(x.astype(np.float32).astype(np.float64), x)
        narrow &= oracle.same(want.astype(np.float32).astype(np.float64), want)
    assert narrow.sum() > 3
    assert_bits(function, (x[narrow].astype(np.float32),), want[narrow].astype(np.float32))


def test_exp_at_the_ends_of_binary32(isa: str) -> None:
    x = np.array([88.72283, 88.72284, -103.97207, -103.9721, -87.336548, INF, -INF], np.float32)
    assert_bits("exp", (x,), oracle.by_mpfr("exp", (x,), x.dtype))
    assert kernels.exp(x).tolist()[1] == INF
    assert kernels.exp(x).tolist()[3] == 0.0
    assert kernels.exp(x).tolist()[2] == 2.0**-149


def power_by_standard(x: float, y: float) -> float | None:
    """pow as IEEE 754 section 9.2.1 lists its special cases; None when none applies."""
    whole = math.isfinite(y) and y == math.floor(y)
    odd = whole and int(y) % 2 == 1
    if y == 0 or x == 1:
        return 1.0
    if math.isnan(x) or math.isnan(y):
        return NAN
    if math.isinf(y):
        if abs(x) == 1:
            return 1.0
        return INF if (abs(x) > 1) == (y > 0) else 0.0
    if x == 0 or math.isinf(x):
        size = 0.0 if (x == 0) == (y > 0) else INF
        return math.copysign(size, x) if odd else size
    if x < 0 and not whole:
        return NAN
    if x == -1:
        return -1.0 if odd else 1.0
    return None


def test_named_powers(isa: str, dtype: np.dtype) -> None:
    values = [0.0, 1.0, INF, NAN, 2.0, 3.0, 0.5, 1.5, 2.0**-149, 2.0**24 - 1, 2.0**25, 2.0**53]
    values += [2.0**53 - 1, 2.0**100]
    values = [float(dtype.type(v)) for v in values]
    grid = [(x, y) for x in values for y in values]
    grid = [(a * x, b * y) for x, y in grid for a in (1, -1) for b in (1, -1)]
    named = [(x, y, power_by_standard(x, y)) for x, y in grid]
    named = [row for row in named if row[2] is not None]
    x, y, want = (np.array(column, dtype) for column in zip(*named, strict=True))
    assert len(named) > 300
    assert_bits("pow", (x, y), want)


def boundaries(bits: int) -> list[tuple[float, float, Fraction]]:
    """(x, y, x^y) with x^y exactly a double of `bits` bits or exactly halfway between two."""
    rng = random.Random(bits)
    rows: list[tuple[float, float, Fraction]] = []
    for n in range(2, 35):
        highest = int(2.0 ** ((bits + 1) / n))  # m^n has at most bits + 1 bits
        for _ in range(40):
            m = rng.randrange(max(3, min(highest, int(highest * 0.98) - 40)) | 1, highest + 4, 2)
            e = rng.randrange(-3, 4)
            rows.append((float(m) * 2.0**e, float(n), Fraction(m) ** n * Fraction(2) ** (e * n)))
            if m**2 < 2**bits:  # through square roots: (m^2)^(n/2)
                rows.append((float(m * m), n / 2, Fraction(m) ** n))
            if m**4 < 2**bits:
                rows.append((float(m**4), n / 4, Fraction(m) ** n))
    return rows


def test_powers_on_a_boundary(isa: str, dtype: np.dtype) -> None:
    """Exact powers and powers exactly halfway between two results, which go to the even one."""
    bits = oracle.FORMATS[dtype.name][0]
    rows = [row for row in boundaries(bits) if dtype.type(row[0]) == row[0] and row[2] < 2**127]
    halfway = sum(
        1 for _, _, p in rows if p.numerator.bit_length() == bits + 1 and p.numerator % 2 == 1
    )
    assert halfway > 50
    x, y = (np.array([row[i] for row in rows], dtype) for i in range(2))
    want = np.array([float(oracle._round(p, bits, -1074)) for _, _, p in rows], dtype)
    assert_bits("pow", (x, y), want)


def test_powers_of_two(isa: str, dtype: np.dtype) -> None:
    lowest, highest = oracle.FORMATS[dtype.name][1:]
    y = np.arange(lowest - 3, highest + 3).astype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        want = np.ldexp(dtype.type(1), y.astype(np.int64))
    assert want[2] == 0  # 2^(lowest - 1) is halfway between 0 and the smallest number
    assert_bits("pow", (np.full_like(y, 2), y), want)
    assert_bits("pow", (np.full_like(y, 0.5), -y), want)
    assert_bits("pow", (np.full_like(y, 4), y / 2), want)


def test_two_roundings_are_one_in_binary32(isa: str) -> None:
    """powf where the binary64 power lies exactly halfway between two binary32 numbers."""
    rng = np.random.default_rng(5)
    y = rng.uniform(1.5, 7.5, 200_000).astype(np.float32)
    x = rng.uniform(0.5, 3.0, 200_000).astype(np.float32)
    x[::2] = (1 + rng.integers(-40, 40, 100_000) * 2.0**-23).astype(np.float32)
    wide = kernels.pow(x.astype(np.float64), y.astype(np.float64))
    halfway = (wide.view(np.uint64) & np.uint64(0x1FFFFFFF)) == 0x10000000
    near = halfway | (np.arange(x.size) % 50 == 0)
    x, y = x[near], y[near]
    assert_bits("pow", (x, y), oracle.by_mpfr("pow", (x, y), x.dtype))


# ---- arrays --------------------------------------------------------------------------------------
@functools.cache
def one_by_one(function: str, dtype_name: str) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    points = oracle.arguments(function, np.dtype(dtype_name), 9_001, 7)
    values = [evaluate(function, tuple(a[i : i + 1] for a in points)) for i in range(9_001)]
    return points, np.concatenate(values)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_array_equals_single_values(
    function: str, isa: str, dtype: np.dtype, n_threads: int
) -> None:
    """Neither size, start, threads nor working in place reach a value."""
    points, want = one_by_one(function, dtype.name)
    for n in (0, 1, 2, 7, 63, 64, 65, 129, 1000, 9_001):
        for start in (0, 3):
            part = slice(start, start + n)
            arguments = tuple(a[part].copy() for a in points)
            got = evaluate(function, arguments, n_threads=n_threads)
            assert oracle.same(got, want[part]).all()
            evaluate(function, arguments, out=arguments[-1], n_threads=n_threads)
            assert oracle.same(arguments[-1], want[part]).all()


def test_shapes(dtype: np.dtype) -> None:
    for shape in [(), (1,), (0, 3), (2, 0), (3, 4, 5)]:
        x = np.ones(shape, dtype)
        out = np.empty(shape, dtype)
        for function in FUNCTIONS:
            arguments = (x, x) if function == "pow" else (x,)
            assert evaluate(function, arguments).shape == shape
            assert evaluate(function, arguments, out=out) is out
            assert evaluate(function, arguments).dtype == dtype


@pytest.mark.parametrize("function", FUNCTIONS)
def test_refused_arguments(function: str) -> None:
    x = np.ones((4, 6))

    def call(x: object, **keywords: object) -> None:
        getattr(kernels, function)(*((x, x) if function == "pow" else (x,)), **keywords)

    with pytest.raises(DTypeError, match=r"x must be a numpy array.*list"):
        call([1.0])
    with pytest.raises(DTypeError, match=r"x must have dtype float32 or float64.*int64"):
        call(np.ones(3, np.int64))
    with pytest.raises(DTypeError, match="C-contiguous"):
        call(x[:, ::2])
    with pytest.raises(ShapeError, match=r"out must have shape \(4, 6\), got \(4, 5\)"):
        call(x, out=np.zeros((4, 5)))
    with pytest.raises(DTypeError, match="out must have dtype float64"):
        call(x, out=np.zeros((4, 6), np.float32))
    frozen = np.zeros((4, 6))
    frozen.flags.writeable = False
    with pytest.raises(DTypeError, match="read-only"):
        call(x, out=frozen)
    memory = np.ones(30)
    with pytest.raises(DTypeError, match="shares memory"):
        call(memory[:24].reshape(4, 6), out=memory[6:].reshape(4, 6))
    assert (memory == 1).all()


def test_powers_need_two_arrays_alike() -> None:
    with pytest.raises(ShapeError, match=r"y must have shape \(2,\), got \(3,\)"):
        kernels.pow(np.ones(2), np.ones(3))
    with pytest.raises(DTypeError, match="y must have dtype float64"):
        kernels.pow(np.ones(2), np.ones(2, np.float32))


# ---- provenance ----------------------------------------------------------------------------------
def test_tables_are_what_their_script_writes() -> None:
    command = [sys.executable, str(ROOT / "tools/make_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_libm_function_is_linked() -> None:
    """The compiled kernels ask no library for an elementary function."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm of binutils")
    folder = Path(_kernels.__file__).parent
    modules = [p for p in folder.rglob("*.so") if p.name.startswith(("elementary", "cr_exact"))]
    assert len(modules) >= 3
    names = {"exp", "log", "log1p", "sin", "cos", "pow", "fma", "ldexp", "exp2", "log2", "sincos"}
    for module in modules:
        text = subprocess.run(
            [nm, "-D", "--undefined-only", str(module)], capture_output=True, text=True, check=True
        ).stdout
        wanted = {line.split()[-1].split("@")[0] for line in text.splitlines() if line.strip()}
        assert not wanted & (names | {name + "f" for name in names}), module


def test_hard_case_file_holds_correct_values() -> None:
    """The golden values themselves, against the slow oracle."""
    for function, rows in HARD_CASES.items():
        for row in rows[:6]:
            x, y, want = (float.fromhex(text) for text in row[:3])
            got = oracle.by_mpmath(function, x, y, np.dtype(np.float64))
            assert struct.pack("<d", got) == struct.pack("<d", want)
