"""Error-free sums and products of doubles (Dekker, Knuth): the tools of the fast paths.

A pair (hi, lo) stands for the real number hi + lo.  No fused multiply-add is needed, and none may
be formed: the build forbids contraction.
"""

cdef struct Pair:
    double hi
    double lo


cdef inline Pair two_sum(double a, double b) noexcept nogil:
    """hi = fl(a + b), hi + lo = a + b exactly."""
    cdef Pair p
    cdef double back
    p.hi = a + b
    back = p.hi - a
    p.lo = (a - (p.hi - back)) + (b - back)
    return p


cdef inline Pair fast_two_sum(double a, double b) noexcept nogil:
    """two_sum for |a| >= |b| or a = 0."""
    cdef Pair p
    p.hi = a + b
    p.lo = b - (p.hi - a)
    return p


cdef inline Pair halves(double a) noexcept nogil:
    """a = hi + lo exactly, each of at most 26 bits (Veltkamp); |a| < 2^995."""
    cdef Pair p
    cdef double c = a * 134217729.0                 # 2^27 + 1
    p.hi = c - (c - a)
    p.lo = a - p.hi
    return p


cdef inline Pair two_product(double a, double b) noexcept nogil:
    """hi = fl(a * b), hi + lo = a * b exactly (unless lo would be below 2^-1022)."""
    cdef Pair p
    cdef Pair x = halves(a)
    cdef Pair y = halves(b)
    p.hi = a * b
    p.lo = ((x.hi * y.hi - p.hi) + x.hi * y.lo + x.lo * y.hi) + x.lo * y.lo
    return p


cdef inline bint rounds_alike(Pair p, double error, double* result) noexcept nogil:
    """Whether all reals within `error` of p round to the same double, which is then `result`.

    Rounding is monotonic: what lies between hi + fl(lo - error) and hi + fl(lo + error) rounds to
    the common rounding of the two.  `error` must allow for the rounding of lo +- error.
    """
    result[0] = p.hi + (p.lo + error)
    return result[0] == p.hi + (p.lo - error)
