"""Write the constant tables of the elementary functions.

    python tools/make_tables.py            rewrite llmcy/_kernels/cr_*_tables.h
    python tools/make_tables.py --check    exit 1 if a file differs from what would be written

The numbers come from mpmath at 4000 bits.  The bounds in docs/elementary.md refer to the widths
chosen here: how many bits a head has decides which products are exact.
"""

from __future__ import annotations

import argparse
import struct
import sys
from pathlib import Path

import mpmath
from mpmath import mpf

mpmath.mp.prec = 4000

KERNELS = Path(__file__).resolve().parent.parent / "llmcy" / "_kernels"
NOTE = "/* Written by tools/make_tables.py; do not edit by hand. */\n"

LIMBS = 40  # fraction limbs of ln 2 and pi/2
PI_LIMBS = 56  # fraction limbs of 2/pi: 971 exponent bits, 53 mantissa bits, 40 limbs


def limbs(name: str, value: mpf, count: int) -> str:
    """A static array with the `count` fraction limbs of `value`, least significant first."""
    integer = int(mpmath.floor(value * mpf(2) ** (64 * count)))
    words = [f"0x{(integer >> (64 * i)) & (2**64 - 1):016x}ULL" for i in range(count)]
    rows = [", ".join(words[i : i + 4]) for i in range(0, count, 4)]
    return f"static const uint64_t {name}[{count}] = {{\n    " + ",\n    ".join(rows) + "};\n"


def exact_tables() -> str:
    """Constants of the multi-limb fallback."""
    pi = mpmath.pi
    return (
        NOTE
        + "#ifndef LLMCY_CR_EXACT_TABLES_H\n#define LLMCY_CR_EXACT_TABLES_H\n#include <stdint.h>\n"
        + f"enum {{ TABLE_LIMBS = {LIMBS}, PI_TABLE_LIMBS = {PI_LIMBS} }};\n"
        + "/* ln 2 */\n"
        + limbs("LN2_LIMBS", mpmath.ln(2), LIMBS)
        + "/* pi/2 - 1 */\n"
        + limbs("HALF_PI_LIMBS", pi / 2 - 1, LIMBS)
        + "/* 2/pi */\n"
        + limbs("TWO_OVER_PI_LIMBS", 2 / pi, PI_LIMBS)
        + "#endif\n"
    )


def rounded(value: mpf, bits: int) -> mpf:
    """`value` rounded to nearest with `bits` significant bits."""
    with mpmath.workprec(bits):
        return +value


def define(name: str, value: mpf) -> str:
    return f"#define {name} {float(value).hex()}\n"


def doubles(name: str, values: list[mpf]) -> str:
    """A static table of doubles; each value is rounded to nearest."""
    words = [float(v).hex() for v in values]
    rows = [", ".join(words[i : i + 3]) for i in range(0, len(words), 3)]
    attribute = "__attribute__((aligned(64), unused))"
    return (
        f"static const double {name}[{len(words)}] {attribute} = {{\n    "
        + ",\n    ".join(rows)
        + "};\n"
    )


def from_pattern(pattern: int) -> mpf:
    return mpf(struct.unpack("<d", struct.pack("<Q", pattern))[0])


def to_pattern(value: mpf) -> int:
    """The bits of `value` rounded to a double."""
    return int(struct.unpack("<Q", struct.pack("<d", float(value)))[0])


EXP_STEPS = 128  # exp: x = k ln2/128 + r


def exp_tables() -> str:
    """exp: ln2/128 in 36 + 36 + 53 bits and 2^(i/128) as a head of 27 bits and a tail."""
    step = mpmath.ln(2) / EXP_STEPS
    head = rounded(step, 36)
    middle = rounded(step - head, 36)
    powers = [mpf(2) ** (mpf(i) / EXP_STEPS) for i in range(EXP_STEPS)]
    heads = [rounded(p, 27) for p in powers]
    return (
        "/* exp: 128/ln2; ln2/128 = EXP_STEP_1 + EXP_STEP_2 + EXP_STEP_3 */\n"
        + define("LLMCY_EXP_INVERSE", 1 / step)
        + define("LLMCY_EXP_STEP_1", head)
        + define("LLMCY_EXP_STEP_2", middle)
        + define("LLMCY_EXP_STEP_3", step - head - middle)
        + "/* 2^(i/128) = head (27 bits) + tail */\n"
        + doubles("LLMCY_EXP_HEAD", heads)
        + doubles("LLMCY_EXP_TAIL", [p - h for p, h in zip(powers, heads, strict=True)])
    )


def exp_cubic(count: int, steps: int) -> list[mpf]:
    """c with exp(r) = 1 + r + r^2/2 + r^3 (c[0] + c[1] r + ...), |r| <= ln2 / (2 steps).

    The next term, of r^count, is not dropped but replaced by the nearest polynomial of lower
    degree: what is left out is a multiple of the Chebyshev polynomial of its degree.
    """
    half = mpmath.ln(2) / (2 * steps)
    chebyshev = mpmath.chop(mpmath.taylor(lambda t: mpmath.chebyt(count, t), 0, count))
    term = 1 / mpmath.factorial(count + 3)
    return [
        1 / mpmath.factorial(i + 3) - term * half ** (count - i) * chebyshev[i] / chebyshev[count]
        for i in range(count)
    ]


def exp_vector_tables() -> str:
    """exp of whole vectors: tables so short that they stay in registers.

    binary64: ln2/32 in 36 + 53 bits, 2^(i/32) as a head of 27 bits and a tail; binary32: ln2/16
    likewise, 2^(i/16) as doubles from which i 2^48 is taken away as from integers.
    """
    text = ""
    for width, steps, count in ((64, 32, 5), (32, 16, 4)):
        name = f"LLMCY_EXP{width}"
        step = mpmath.ln(2) / steps
        head = rounded(step, 36)
        text += (
            f"/* exp of vectors, binary{width}: {steps}/ln2; ln2/{steps} = STEP_1 + STEP_2 */\n"
            + define(f"{name}_INVERSE", 1 / step)
            + define(f"{name}_STEP_1", head)
            + define(f"{name}_STEP_2", step - head)
            + "/* exp(r) = 1 + r + r^2/2 + r^3 (C0 + C1 r + ...) */\n"
            + "".join(define(f"{name}_C{i}", c) for i, c in enumerate(exp_cubic(count, steps)))
        )
    powers = [mpf(2) ** (mpf(i) / 32) for i in range(32)]
    heads = [rounded(p, 27) for p in powers]
    shifted = [from_pattern(to_pattern(p) - (i << 48)) for i, p in enumerate(powers[::2])]
    return (
        text
        + "/* 2^(i/32) = head (27 bits) + tail */\n"
        + doubles("LLMCY_EXP64_HEAD", heads)
        + doubles("LLMCY_EXP64_TAIL", [p - h for p, h in zip(powers, heads, strict=True)])
        + "/* 2^(i/16), its bits less i 2^48 */\n"
        + doubles("LLMCY_EXP32_POWER", shifted)
    )


LOG_OFFSET = 0x3FE6900000000000  # log: x = z 2^k with z from 0.705 to 1.41, cut into 128 pieces
LOG_PIECES = 128


def to_grid(value: mpf, exponent: int) -> mpf:
    """`value` rounded to a multiple of 2^exponent."""
    return mpmath.nint(value * mpf(2) ** -exponent) * mpf(2) ** exponent


def log_tables() -> str:
    """log: per piece a reciprocal of 11 bits and minus its logarithm on a grid of 2^-42, + tail."""
    ln2 = mpmath.ln(2)
    head = to_grid(ln2, -42)
    inverses, heads, tails = [], [], []
    for i in range(LOG_PIECES):
        low, high = (from_pattern(LOG_OFFSET + (j << 45)) for j in (i, i + 1))
        inverse = mpf(1) if low <= 1 < high else rounded(2 / (low + high), 11)
        logarithm = -mpmath.ln(inverse)
        inverses.append(inverse)
        heads.append(to_grid(logarithm, -42))
        tails.append(logarithm - heads[-1])
    near = next(i for i, inverse in enumerate(inverses) if inverse == 1)
    return (
        "/* log: ln2 = LN2_HEAD (a multiple of 2^-42) + LN2_TAIL; the pieces of [0.705, 1.41) */\n"
        + define("LLMCY_LN2_HEAD", head)
        + define("LLMCY_LN2_TAIL", ln2 - head)
        + f"#define LLMCY_LOG_OFFSET 0x{LOG_OFFSET:x}ULL\n"
        + f"#define LLMCY_LOG_NEAR_ONE {near}\n"
        + doubles("LLMCY_LOG_INVERSE", inverses)
        + "/* minus the logarithm of the inverse: a multiple of 2^-42 + tail */\n"
        + doubles("LLMCY_LOG_HEAD", heads)
        + doubles("LLMCY_LOG_TAIL", tails)
    )


CIRCLE_STEPS = 256  # sin, cos: x = k pi/128 + r


def circle_tables() -> str:
    """sin and cos: pi/128 in 27 + 27 + 27 + 53 bits and sin(j pi/128) as two doubles."""
    step = mpmath.pi / 128
    parts = []
    rest = step
    for bits in (27, 27, 27, 53):
        parts.append(rounded(rest, bits))
        rest -= parts[-1]
    sines = [mpmath.sinpi(mpf(j) / 128) for j in range(CIRCLE_STEPS)]
    heads = [rounded(s, 53) for s in sines]
    return (
        "/* sin, cos: 128/pi; pi/128 = CIRCLE_STEP_1 + ... + CIRCLE_STEP_4 */\n"
        + define("LLMCY_CIRCLE_INVERSE", 1 / step)
        + "".join(define(f"LLMCY_CIRCLE_STEP_{i}", part) for i, part in enumerate(parts, 1))
        + "/* sin(j pi/128) = head + tail; cos is 64 places further */\n"
        + doubles("LLMCY_SINE_HEAD", heads)
        + doubles("LLMCY_SINE_TAIL", [s - h for s, h in zip(sines, heads, strict=True)])
    )


def fast_tables() -> str:
    """Constants of the fast paths, compiled into every kernel that uses them."""
    return (
        NOTE
        + "#ifndef LLMCY_CR_TABLES_H\n#define LLMCY_CR_TABLES_H\n#include <float.h>\n"
        + "#if FLT_EVAL_METHOD != 0 || defined(__FAST_MATH__)\n"
        + '#error "the error bounds need every operation rounded once, to its own type"\n'
        + "#endif\n"
        + exp_tables()
        + exp_vector_tables()
        + log_tables()
        + circle_tables()
        + "#endif\n"
    )


FILES = {"cr_exact_tables.h": exact_tables, "cr_tables.h": fast_tables}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    stale = []
    for name, make in FILES.items():
        path = KERNELS / name
        text = make()
        if arguments.check:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.write_text(text)
    if stale:
        print("out of date:", ", ".join(stale))
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
