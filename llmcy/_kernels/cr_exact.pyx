"""Correctly rounded exp, log, log1p, sin, cos and pow by multi-limb integer arithmetic.

The fast paths of cr_math come here when their rounding test cannot decide.  Each function
computes an integer A and a bound 2^error with

    |A - f(x) * 2^scale| < 2^error,

rounds both A - 2^error and A + 2^error, and is done when the two agree (rounding is monotonic,
so the value between them rounds there too).  Otherwise it starts again with more limbs (Ziv's
strategy).  That ends for exp, log, log1p, sin and cos because their values at the arguments
admitted here are transcendental, so never on a boundary between two results, and for pow because
every value that is a dyadic fraction short enough to be a boundary is recognised first and
rounded exactly (docs/elementary.md, "The exact path").

`first` is the attempt to begin with: 0, or more in tests, which thus reach every precision.

No floating-point operation contributes to a result: doubles are used only for first guesses
whose quality affects time, never bits.
"""

from llmcy._kernels.types cimport sqrt
from libc.stdint cimport int64_t, uint64_t

from llmcy._kernels.cr_limbs cimport (
    MAX_LIMBS, add, bit_length, bits_from, clear, compare, copy, divide_word, is_negative, is_zero,
    multiply, multiply_fraction, multiply_word, negate, place, shift_left, shift_right, subtract,
    u128,
)
from llmcy._kernels.cr_round cimport Parts, decide, from_pattern, round_integer, split

cdef extern from "cr_exact_tables.h" nogil:
    const int TABLE_LIMBS
    const int PI_TABLE_LIMBS
    const uint64_t LN2_LIMBS[]
    const uint64_t HALF_PI_LIMBS[]
    const uint64_t TWO_OVER_PI_LIMBS[]

cdef enum:
    ATTEMPTS = 5                # of Ziv's strategy


cdef inline int limbs_of_attempt(int attempt) noexcept nogil:
    """Fraction limbs of an attempt: 3, 5, 9, 17, 33 (192 ... 2112 bits)."""
    return 1 + (2 << attempt)


# ---- exp and log in fixed point ------------------------------------------------------------------

cdef inline int halvings(int n) noexcept nogil:
    """How often the argument of the exponential series is halved first."""
    return 8 if n <= 4 else 32


cdef inline int exp_error(int n) noexcept nogil:
    """log2 of the error of exp_fixed in units of the last limb (its argument taken as exact).

    Series: fewer than 64 terms, each truncated twice.  Undoing a halving doubles the error and
    adds one unit, times 1 + s < 2 over all of them.  Hence 2^(halvings + 1) * (2 * 64 + 40 + 2)
    < 2^(halvings + 9).  The multiple of ln 2 adds at most 1200 units to the reduced argument,
    which the exponential (< 2) turns into 2^12.  Together below 2^(halvings + 10).
    """
    return halvings(n) + 10


cdef int exp_fixed(uint64_t* s, const uint64_t* x, int n) noexcept nogil:
    """exp(x) = (1 + s) * 2^k: fills the n fraction limbs s, returns k.  x: n + 1 limbs, signed."""
    cdef uint64_t r[MAX_LIMBS]
    cdef uint64_t t[MAX_LIMBS]
    cdef uint64_t power[MAX_LIMBS]
    cdef const uint64_t* ln2 = LN2_LIMBS + (TABLE_LIMBS - n)
    cdef double guess = (<double><int64_t>x[n] + <double>x[n - 1] * 5.421010862427522e-20)
    cdef int k = <int>(guess * 1.4426950408889634), j, h = halvings(n)
    copy(r, x, n + 1)
    t[n] = multiply_word(t, ln2, n, <uint64_t>(k if k >= 0 else -k))
    if k >= 0:
        subtract(r, t, n + 1)
    else:
        add(r, t, n + 1)
    copy(t, ln2, n)
    t[n] = 0
    while is_negative(r, n + 1):
        add(r, t, n + 1)
        k -= 1
    while compare(r, t, n + 1) >= 0:
        subtract(r, t, n + 1)
        k += 1
    shift_right(r, n, h)
    copy(power, r, n)                       # r^j / j!
    copy(s, r, n)
    j = 2
    while True:
        multiply_fraction(power, power, r, n)
        divide_word(power, n, j)
        if is_zero(power, n):
            break
        add(s, power, n)
        j += 1
    for j in range(h):                      # exp(2 r) - 1 = 2 s + s^2
        multiply_fraction(t, s, s, n)
        shift_left(s, n, 1)
        add(s, t, n)
    return k


cdef inline int log_error(int n) noexcept nogil:
    """log2 of the error of log_fixed in units of the last limb, w off by at most one unit.

    z inherits the error of exp_fixed times w < 1.5, plus truncations and the unit of w: below
    2^(exp_error + 1).  Its logarithm has slope near 1, and the series adds two units for each of
    fewer than 60 terms.
    """
    return exp_error(n) + 2


cdef double log_guess(double w) noexcept nogil:
    """log(w) to about 2^-40, for w in [0.7, 1.42]."""
    cdef double s = (w - 1.0) / (w + 1.0), q = s * s
    return 2.0 * s * (1.0 + q * (1 / 3.0 + q * (1 / 5.0 + q * (1 / 7.0 + q * (
        1 / 9.0 + q * (1 / 11.0 + q * (1 / 13.0 + q * (1 / 15.0))))))))


cdef void log_fixed(uint64_t* out, const uint64_t* w, int n) noexcept nogil:
    """out = log(w), n + 1 limbs signed; w: n + 1 limbs with 0.7 <= w <= 1.42.

    With a double y near log(w): log(w) = y + log(1 + z), z = w * exp(-y) - 1 tiny.
    """
    cdef uint64_t x[MAX_LIMBS]
    cdef uint64_t e[MAX_LIMBS]
    cdef uint64_t power[MAX_LIMBS]
    cdef uint64_t term[MAX_LIMBS]
    cdef uint64_t full[2 * MAX_LIMBS]
    cdef double y = log_guess(<double>w[n] + <double>w[n - 1] * 5.421010862427522e-20)
    cdef Parts p
    cdef bint negative
    cdef int k, j
    clear(out, n + 1)
    clear(x, n + 1)
    if y != 0.0:
        p = split(y)
        place(out, n + 1, p.mantissa, 64 * n + p.exponent)
        copy(x, out, n + 1)
        if p.negative:
            negate(out, n + 1)
        else:
            negate(x, n + 1)
    k = exp_fixed(e, x, n)
    e[n] = 1
    multiply(full, e, n + 1, w, n + 1)
    copy(x, full + n, n + 1)
    if k < 0:
        shift_right(x, n + 1, -k)
    x[n] -= 1                               # z
    negative = is_negative(x, n + 1)
    if negative:
        negate(x, n + 1)
    copy(power, x, n)
    j = 1
    while not is_zero(power, n):
        copy(term, power, n)
        term[n] = 0
        divide_word(term, n, j)
        if negative or (j & 1) == 0:
            subtract(out, term, n + 1)
        else:
            add(out, term, n + 1)
        multiply_fraction(power, power, x, n)
        j += 1


cdef void add_ln2_multiple(uint64_t* a, int n, int k) noexcept nogil:
    """a += k * ln 2 (n + 1 limbs, signed); at most |k| units off."""
    cdef uint64_t t[MAX_LIMBS]
    t[n] = multiply_word(t, LN2_LIMBS + (TABLE_LIMBS - n), n, <uint64_t>(k if k >= 0 else -k))
    if k >= 0:
        add(a, t, n + 1)
    else:
        subtract(a, t, n + 1)


cdef int place_mantissa(uint64_t* w, int n, double x) noexcept nogil:
    """x = w * 2^k with 0.707 < w < 1.415, exactly: fills w (n + 1 limbs), returns k."""
    cdef Parts p = split(x)
    cdef int k = 52
    if p.mantissa >= 0x16a09e667f3bcdULL:
        k = 53
    place(w, n + 1, p.mantissa, 64 * n - k)
    return p.exponent + k


# ---- the functions -------------------------------------------------------------------------------

cdef double exact_exp(double x, int bits, int first) noexcept nogil:
    cdef uint64_t a[MAX_LIMBS]
    cdef uint64_t s[MAX_LIMBS]
    cdef uint64_t pattern = 0
    cdef Parts p = split(x)
    cdef int attempt, n, k
    for attempt in range(first, ATTEMPTS):
        n = limbs_of_attempt(attempt)
        place(a, n + 1, p.mantissa, 64 * n + p.exponent)
        if p.negative:
            negate(a, n + 1)
        k = exp_fixed(s, a, n)
        s[n] = 1
        if decide(s, n + 1, k - 64 * n, exp_error(n), bits, &pattern):
            break
    return from_pattern(pattern, False, bits)


cdef double finish_log(uint64_t* a, int n, int error, int bits, bint* done) noexcept nogil:
    """Round the signed n + 1 limbs a."""
    cdef uint64_t pattern = 0
    cdef bint negative = is_negative(a, n + 1)
    if negative:
        negate(a, n + 1)
    done[0] = decide(a, n + 1, -64 * n, error, bits, &pattern)
    return from_pattern(pattern, negative, bits)


cdef double exact_log(double x, int bits, int first) noexcept nogil:
    cdef uint64_t w[MAX_LIMBS]
    cdef uint64_t a[MAX_LIMBS]
    cdef bint done = False
    cdef double result = 0.0
    cdef int attempt, n, k
    for attempt in range(first, ATTEMPTS):
        n = limbs_of_attempt(attempt)
        k = place_mantissa(w, n, x)
        log_fixed(a, w, n)
        add_ln2_multiple(a, n, k)
        result = finish_log(a, n, log_error(n) + 1, bits, &done)
        if done:
            break
    return result


cdef int place_one_plus(uint64_t* w, int n, double x) noexcept nogil:
    """1 + x = w * 2^k with 0.7 < w < 1.42, at most one unit low: fills w, returns k."""
    cdef uint64_t one[MAX_LIMBS]
    cdef Parts p
    cdef int k
    if x >= 4611686018427387904.0:                  # 2^62: 1 is below the mantissa
        k = place_mantissa(w, n, x)
        place(one, n + 1, 1, 64 * n - k)
        add(w, one, n + 1)
        return k
    p = split(x)
    place(w, n + 1, p.mantissa, 64 * n + p.exponent)        # exact: n >= 3, |x| >= 2^-54
    if p.negative:
        negate(w, n + 1)
    w[n] += 1
    k = bit_length(w, n + 1) - 64 * n - 1           # 2^k <= 1 + x < 2^(k + 1)
    if k >= 0:
        shift_right(w, n + 1, k)
    else:
        shift_left(w, n + 1, -k)
    if w[n - 1] >= 0x6a09e667f3bcd000ULL:    # above sqrt 2
        shift_right(w, n + 1, 1)
        k += 1
    return k


cdef double exact_log1p(double x, int bits, int first) noexcept nogil:
    cdef uint64_t w[MAX_LIMBS]
    cdef uint64_t a[MAX_LIMBS]
    cdef bint done = False
    cdef double result = 0.0
    cdef int attempt, n, k
    for attempt in range(first, ATTEMPTS):
        n = limbs_of_attempt(attempt)
        k = place_one_plus(w, n, x)
        log_fixed(a, w, n)
        add_ln2_multiple(a, n, k)
        result = finish_log(a, n, log_error(n) + 1, bits, &done)
        if done:
            break
    return result


cdef int reduce_quadrant(uint64_t* r, bint* negative, double x, int n) noexcept nogil:
    """|x| = q * pi/2 + (+-)r with 0 <= r <= pi/4: fills the n fraction limbs r, returns q mod 4.

    Payne and Hanek: of 2/pi * 2^exponent only the bits between 2^1 and 2^-(64 n + 64) are
    looked at; what is above contributes multiples of 4 quadrants.  Cutting below costs less than
    2^53 * 2^-64 units, so the fraction of a quadrant is at most two units off and r at most five.
    """
    cdef uint64_t window[MAX_LIMBS]
    cdef uint64_t f[MAX_LIMBS]
    cdef Parts p = split(x)
    cdef int i, quadrant
    # limb i of the window holds the weights 2^(64 (i - n - 1)) and up; its top limb is the
    # integer part of 2/pi * 2^exponent modulo 2^64, of which modulo 4 is used
    for i in range(n + 2):
        window[i] = bits_from(
            TWO_OVER_PI_LIMBS, PI_TABLE_LIMBS, 64 * PI_TABLE_LIMBS - p.exponent + 64 * (i - n - 1)
        )
    multiply_word(window, window, n + 2, p.mantissa)
    quadrant = <int>(window[n + 1] & 3)
    copy(f, window + 1, n)
    negative[0] = (f[n - 1] >> 63) != 0
    if negative[0]:
        negate(f, n)
        quadrant = (quadrant + 1) & 3
    multiply_fraction(r, f, HALF_PI_LIMBS + (TABLE_LIMBS - n), n)
    add(r, f, n)
    return quadrant


cdef void sine_series(uint64_t* a, const uint64_t* r, int n, bint cosine) noexcept nogil:
    """a = sin(r) or cos(r), n + 1 limbs, for 0 <= r < 0.8.

    Fewer than 200 terms for n <= 33, each truncated at most three times (one for r^2), and each
    truncation is worth less than one unit in its own term and less in all later ones: below
    2^10 units, with the five of r included.
    """
    cdef uint64_t square[MAX_LIMBS]
    cdef uint64_t term[MAX_LIMBS]
    cdef int j
    multiply_fraction(square, r, r, n)
    clear(a, n + 1)
    clear(term, n + 1)
    if cosine:
        a[n] = 1
        copy(term, square, n)
        divide_word(term, n, 2)
        subtract(a, term, n + 1)
        j = 3
    else:
        copy(a, r, n)
        copy(term, r, n)
        j = 2
    cdef bint minus = not cosine
    while True:
        multiply_fraction(term, term, square, n)
        divide_word(term, n, j * (j + 1))
        if is_zero(term, n):
            break
        if minus:
            subtract(a, term, n + 1)
        else:
            add(a, term, n + 1)
        minus = not minus
        j += 2


cdef double exact_circular(double x, int shift, int bits, int first) noexcept nogil:
    """sin(|x| + shift * pi/2)."""
    cdef uint64_t r[MAX_LIMBS]
    cdef uint64_t a[MAX_LIMBS]
    cdef uint64_t pattern = 0
    cdef bint below = False, negative = False
    cdef int attempt, n, quadrant
    for attempt in range(first, ATTEMPTS):
        n = limbs_of_attempt(attempt)
        quadrant = (reduce_quadrant(r, &below, x, n) + shift) & 3
        sine_series(a, r, n, quadrant & 1)
        negative = quadrant >= 2
        if below and (quadrant & 1) == 0:
            negative = not negative
        if decide(a, n + 1, -64 * n, 10, bits, &pattern):
            break
    return from_pattern(pattern, negative, bits)


cdef double exact_sin(double x, int bits, int first) noexcept nogil:
    cdef double s = exact_circular(x, 0, bits, first)
    return -s if x < 0.0 else s


cdef double exact_cos(double x, int bits, int first) noexcept nogil:
    return exact_circular(x, 1, bits, first)


# ---- pow -----------------------------------------------------------------------------------------

cdef bint exact_power(double x, double y, int bits, uint64_t* pattern) noexcept nogil:
    """Round x^y if it is a dyadic fraction with an odd part below 2^64; False if it is not.

    x = m * 2^e and |y| = c * 2^f with m and c odd.  For f < 0 a dyadic power needs -f square
    roots of m and e; then m^y is an integer only for y > 0 or m = 1.  An odd part of 2^64 or
    more has more bits than any boundary between two results, so it may go to the general path.
    The caller has made sure that |y log2 x| < 1200.
    """
    cdef Parts p = split(x)
    cdef Parts q = split(y)
    cdef uint64_t m = p.mantissa, c = q.mantissa, root, power = 1
    cdef int e = p.exponent, f = q.exponent
    cdef u128 wide
    cdef int64_t count, i
    while (m & 1) == 0:
        m >>= 1
        e += 1
    while (c & 1) == 0:
        c >>= 1
        f += 1
    while f < 0:
        root = <uint64_t>sqrt(<double>m)
        if (e & 1) != 0 or root * root != m:
            return False
        m = root
        e //= 2                             # even: exact
        f += 1
    if m == 1:                              # |e| >= 1, so |y| < 1200
        count = <int64_t>(c << f)
        pattern[0] = round_integer(&power, 1, <int>(-count * e if q.negative else count * e), bits)
        return True
    if q.negative or f > 5 or c > 63:       # 3^64 > 2^64
        return False
    count = <int64_t>(c << f)
    for i in range(count):
        wide = <u128>power * m
        if (wide >> 64) != 0:
            return False
        power = <uint64_t>wide
    pattern[0] = round_integer(&power, 1, <int>(count * e), bits)
    return True


cdef double log_estimate(double x) noexcept nogil:
    """log(x) with a relative error far below 1e-3."""
    cdef Parts p = split(x)
    cdef double w = <double>p.mantissa * 2.220446049250313e-16     # 2^-52
    cdef int k = p.exponent + 52
    if w > 1.414:
        w *= 0.5
        k += 1
    return <double>k * 0.6931471805599453 + log_guess(w)


cdef double exact_pow(double x, double y, int bits, int first) noexcept nogil:
    cdef uint64_t w[MAX_LIMBS]
    cdef uint64_t a[MAX_LIMBS]
    cdef uint64_t full[2 * MAX_LIMBS]
    cdef uint64_t s[MAX_LIMBS]
    cdef uint64_t pattern = 0
    cdef double estimate = y * log_estimate(x)
    cdef Parts p = split(y)
    cdef int attempt, n, k, error
    cdef bint negative
    if estimate > 800.0:                    # beyond e^800 and below e^-800, also for binary32
        return from_pattern(<uint64_t>0x7ff << 52 if bits == 53 else <uint64_t>0xff << 23, False, bits)
    if estimate < -800.0:
        return 0.0
    if exact_power(x, y, bits, &pattern):
        return from_pattern(pattern, False, bits)
    for attempt in range(first, ATTEMPTS):
        n = limbs_of_attempt(attempt)
        k = place_mantissa(w, n, x)
        log_fixed(a, w, n)
        add_ln2_multiple(a, n, k)           # log x
        negative = is_negative(a, n + 1)
        if negative:
            negate(a, n + 1)
        full[n + 1] = multiply_word(full, a, n + 1, p.mantissa)
        if p.exponent >= 0:
            shift_left(full, n + 2, p.exponent)
        else:
            shift_right(full, n + 2, -p.exponent)
        if negative != p.negative:
            negate(full, n + 2)
        k = exp_fixed(s, full, n)           # |y log x| < 801 fits n + 1 limbs
        s[n] = 1
        # the error of log x times |y| < 2^(exponent + 53), one unit for the shift; a factor 4
        # for the exponential of the sum
        error = log_error(n) + 1
        if p.exponent > -53:
            error += p.exponent + 53
        error += 3
        if decide(s, n + 1, k - 64 * n, error, bits, &pattern):
            break
    return from_pattern(pattern, False, bits)


# ---- for tests -----------------------------------------------------------------------------------

def exact(str function, double x, double y, int bits, int first):
    """The exact path by itself: f(x), or x^y, from the given attempt on."""
    if function == "exp":
        return exact_exp(x, bits, first)
    if function == "log":
        return exact_log(x, bits, first)
    if function == "log1p":
        return exact_log1p(x, bits, first)
    if function == "sin":
        return exact_sin(x, bits, first)
    if function == "cos":
        return exact_cos(x, bits, first)
    if function == "pow":
        return exact_pow(x, y, bits, first)
    raise ValueError(function)
