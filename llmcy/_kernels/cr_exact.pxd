"""Correctly rounded elementary functions by integer arithmetic: slow, and always decided.

`bits` is the precision of the result: 53 for binary64, 24 for binary32 (whose value is returned
as the double equal to it).  The arguments are finite and lie where the function is neither
exact by definition nor a limit; cr_math deals with the rest before it comes here.  `first` is 0
(tests begin at a later, longer attempt).
"""

cdef double exact_exp(double x, int bits, int first) noexcept nogil       # |x| >= 2^-100
cdef double exact_log(double x, int bits, int first) noexcept nogil       # x > 0, x != 1
cdef double exact_log1p(double x, int bits, int first) noexcept nogil     # x > -1, |x| >= 2^-54
cdef double exact_sin(double x, int bits, int first) noexcept nogil       # |x| >= 2^-27
cdef double exact_cos(double x, int bits, int first) noexcept nogil       # |x| >= 2^-28
cdef double exact_pow(double x, double y, int bits, int first) noexcept nogil     # x > 0, x != 1, y != 0
