"""Kahan's compensated sums, in memory order (numerics contract, part two, section 4).

One chain cannot be shared among threads; the pool runs it for the state of the processor.
"""

from llmcy._kernels.pool cimport parallel_for


cdef struct Job:
    const double* x  # IN (n)
    Py_ssize_t n
    double whole
    double share
    double total  # OUT
    Py_ssize_t reach  # OUT


cdef struct Sum:
    double total
    double lost  # what the last addition has rounded up


cdef inline void _add(Sum* sum, double value) noexcept nogil:
    cdef double y = value - sum.lost
    cdef double t = sum.total + y
    sum.lost = (t - sum.total) - y
    sum.total = t


cdef void _total(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Sum sum, before
    cdef Py_ssize_t i
    cdef bint settled = False  # whether one more zero would change nothing
    sum.total = sum.lost = 0.0
    for i in range(job.n):
        if job.x[i] != 0.0:
            _add(&sum, job.x[i])
            settled = False
        elif not settled:
            before = sum
            _add(&sum, job.x[i])
            settled = sum.total == before.total and sum.lost == before.lost
    job.total = sum.total


cdef void _reach(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Sum sum
    cdef Py_ssize_t i = 0
    sum.total = sum.lost = 0.0
    while i < job.n and not sum.total >= job.share:
        _add(&sum, job.x[i] / job.whole)
        i += 1
    job.reach = i


def total(const double[::1] x):
    """The compensated sum of ``x``."""
    cdef Job job
    job.n = x.shape[0]
    job.x = &x[0] if job.n else NULL
    with nogil:
        parallel_for(_total, &job, 1, 1, 0, 1)
    return job.total


def reach(const double[::1] x, double whole, double share):
    """How many leading values it takes until those over ``whole`` sum to ``share``."""
    cdef Job job
    job.n = x.shape[0]
    job.x = &x[0] if job.n else NULL
    job.whole = whole
    job.share = share
    with nogil:
        parallel_for(_reach, &job, 1, 1, 0, 1)
    return job.reach
