"""Search binary64 arguments whose values lie very near the middle between two doubles.

    python tests/golden/make_elementary_hard_cases.py [seconds per function]

rewrites elementary_hard_cases.json beside it.  Over 2^20 consecutive doubles a function is a cubic
polynomial to far more digits than needed; its fraction of a unit in the last place is followed
with integers modulo 2^64, and the arguments that come nearest to one half are kept.  Values are
those of MPFR.  (The idea of following a function's linear pieces is Lefevre's.)
"""

from __future__ import annotations

import json
import random
import struct
import sys
import time
from pathlib import Path

import gmpy2
import numpy as np
from gmpy2 import mpfr

BLOCK = 1024
BLOCKS = 1024
KEEP = 24
SCALE = 200  # fraction bits of the polynomial's coefficients
PRECISION = 420


def exact(function: str, x: float, y: float) -> mpfr:
    with gmpy2.context(precision=PRECISION):
        return mpfr(x) ** mpfr(y) if function == "pow" else getattr(gmpy2, function)(mpfr(x))


def pattern(x: float) -> int:
    return struct.unpack("<q", struct.pack("<d", x))[0]


def double(word: int) -> float:
    return struct.unpack("<d", struct.pack("<q", word))[0]


def random_argument(function: str, rng: random.Random) -> tuple[float, float]:
    if function == "exp":
        return rng.choice([-1, 1]) * 2.0 ** rng.uniform(-20, 9.4), 0.0
    if function == "log":
        return 2.0 ** rng.choice([rng.uniform(-3, 3), rng.uniform(-1022, 1023)]), 0.0
    if function == "log1p":
        return rng.choice([2.0 ** rng.uniform(-20, 30), -(2.0 ** rng.uniform(-20, -0.1))]), 0.0
    if function == "pow":
        x = 2.0 ** rng.uniform(-30, 30)
        return x, rng.uniform(-20, 20)
    # up to 2^8: beyond, the doubles are too far apart for the cubic
    return 2.0 ** rng.uniform(-15, 8), 0.0


def distances(function: str, start: float, y: float) -> np.ndarray | None:
    """Distance from one half of the fraction of f/ulp, in 2^-64, at 2^20 doubles from `start`."""
    last = BLOCK * BLOCKS
    word = pattern(start)
    nodes = [0, last // 3, 2 * last // 3, last]
    values = [exact(function, double(word + n), y) for n in nodes]
    exponents = {int(v.as_mantissa_exp()[0]).bit_length() + v.as_mantissa_exp()[1] for v in values}
    if len(exponents) != 1:
        return None
    shift = SCALE + 53 - exponents.pop()
    with gmpy2.context(precision=PRECISION):
        scaled = [int(gmpy2.rint(gmpy2.mul_2exp(v, shift))) for v in values]
    # Newton's interpolation in integers with SCALE fraction bits
    table = list(scaled)
    for order in range(1, 4):
        for i in range(3, order - 1, -1):
            table[i] = (table[i] - table[i - 1]) // (nodes[i] - nodes[i - order])

    def value(n: int) -> int:
        result = table[3]
        for i in (2, 1, 0):
            result = result * (n - nodes[i]) + table[i]
        return result

    drop = SCALE - 64
    first, slope, bend = [], [], []
    for j in range(BLOCKS):
        a, b, c = (value(BLOCK * j + i) for i in range(3))
        first.append(((a >> drop) + (1 << 63)) & (2**64 - 1))
        slope.append(((b - a) >> drop) & (2**64 - 1))
        bend.append(((c - 2 * b + a) >> drop) & (2**64 - 1))
    i = np.arange(BLOCK, dtype=np.uint64)[None, :]
    a, b, c = (np.array(v, np.uint64)[:, None] for v in (first, slope, bend))
    fraction = a + b * i + c * (i * (i - np.uint64(1)) // np.uint64(2))
    return np.abs(fraction.view(np.int64)).reshape(-1)


def search(function: str, seconds: float) -> list[list[str]]:
    rng = random.Random(function)
    found: dict[tuple[float, float], float] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start, y = random_argument(function, rng)
        with np.errstate(over="ignore"):
            distance = distances(function, start, y)
        if distance is None:
            continue
        n = int(np.argmin(distance))
        found[double(pattern(start) + n), y] = float(distance[n])
    rows = []
    for x, y in sorted(found, key=found.__getitem__)[:KEEP]:
        with gmpy2.context(precision=53, emin=-1073, emax=1024, subnormalize=True):
            value = mpfr(x) ** mpfr(y) if function == "pow" else getattr(gmpy2, function)(mpfr(x))
        digits = abs(exact(function, x, y).as_mantissa_exp()[0])
        below = digits.bit_length() - 53
        half = abs((digits & ((1 << below) - 1)) - (1 << (below - 1)))
        closeness = half.bit_length() - below  # log2 of the distance from the middle, in units
        rows.append([x.hex(), y.hex(), float(value).hex(), closeness])
    return rows


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    cases = {f: search(f, seconds) for f in ("exp", "log", "log1p", "sin", "cos", "pow")}
    lines = [
        f'  "{f}": [\n' + ",\n".join("    " + json.dumps(row) for row in rows) + "\n  ]"
        for f, rows in cases.items()
    ]
    path = Path(__file__).with_name("elementary_hard_cases.json")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
