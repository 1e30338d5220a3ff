"""Arithmetic of single numbers that belongs to a kernel, in the state of the processor that kernels use
(numerics contract, part two, section 5): Python's own rounds as its thread happens to do."""

from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport sqrt


cdef enum Operation:
    PRODUCT
    QUOTIENT
    ROOT

cdef struct Job:
    Operation operation
    double x, y         # IN
    bint single         # whether the result is rounded to binary32 once more
    double result       # OUT


cdef void _compute(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef double result
    if job.operation == PRODUCT:
        result = job.x * job.y
    elif job.operation == QUOTIENT:
        result = job.x / job.y
    else:
        result = sqrt(job.x)
    job.result = <float>result if job.single else result


cdef double _run(Operation operation, double x, double y, bint single):
    cdef Job job
    job.operation, job.x, job.y, job.single = operation, x, y, single
    with nogil:
        parallel_for(_compute, &job, 1, 1, 0, 1)
    return job.result


def product(double x, double y) -> float:
    """x * y, rounded to nearest."""
    return _run(PRODUCT, x, y, False)


def quotient(double x, double y, bint single) -> float:
    """x / y, rounded to nearest; with `single` rounded to binary32 after that."""
    return _run(QUOTIENT, x, y, single)


def root(double x) -> float:
    """The square root of x, rounded to nearest."""
    return _run(ROOT, x, 0.0, False)
