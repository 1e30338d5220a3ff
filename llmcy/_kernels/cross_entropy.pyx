"""Mean negative log-likelihood of target classes, and its gradient at the logits.

With M, e and tail of a row of V logits as in softmax_rows.pxd, and its target c:

    row loss   (M - x[c]) + log1p(tail)
    mean       zero(fold over rows of the row losses / N)
    gradient   zero((p[v] - [v = c]) * r),  p[v] = zero(e[v] / (1 + tail)),  r = d_loss / N

(numerics contract, section 7).  When a row loss or the running sum overflows, the mean is the fold
of ((M - x[c]) / N) + (log1p(tail) / N), and where M - x[c] itself overflows, of
((M / N) - (x[c] / N)) + (log1p(tail) / N).  Everything about the loss is binary64 for both types,
the gradient is of the build's own (contract for float32, rule 6).

A thread owns whole rows; the fold over rows is one chain.

Where the logits are a block of a larger batch that is not kept, `cross_entropy_block` looks for NaN
and infinity, takes the losses and writes the gradient over the logits, a few rows at a time;
`mean_loss` then takes the mean of all blocks.
"""

cimport numpy as cnp

from llmcy._kernels.cr_math cimport cr_log1p
from llmcy._kernels.order cimport ROWS, row_grain
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.softmax_rows cimport exponential_rows
from llmcy._kernels.types cimport i64, is_finite, is_finite_real, real

cnp.import_array()

cdef extern from "llmcy_search.h" nogil:
    bint any_non_finite "llmcy_any_non_finite"(const real* x, Py_ssize_t n)

cdef struct Job:
    const real* logits
    const i64* targets
    real* p             # probabilities: kept (forward, may be NULL) or read (backward)
    double* losses
    double* log_tails
    double* tops
    double* wanted      # logits of the targets
    real* d_logits      # may be `logits` itself in a block
    Py_ssize_t V
    real r
    int bad             # of a block: set, never cleared, by a thread that meets a NaN or infinity


cdef inline void row_loss(Job* job, Py_ssize_t row, real top, real wanted, double tail) noexcept nogil:
    """The loss of a row, and its parts, which the fallback of the mean needs."""
    job.tops[row] = <double>top
    job.wanted[row] = <double>wanted
    job.log_tails[row] = cr_log1p(tail)
    job.losses[row] = (job.tops[row] - job.wanted[row]) + job.log_tails[row]


cdef inline void gradient_of_row(
    const real* e, Py_ssize_t target, Py_ssize_t V, real total, real r, real* out
) noexcept nogil:
    """From the exponentials and 1 + tail; `out` may be `e`."""
    cdef real at_target = e[target] / total
    cdef Py_ssize_t v
    for v in range(V):
        out[v] = <real>0 + (e[v] / total) * r
    out[target] = <real>0 + (at_target - <real>1) * r


cdef void _losses(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t V = job.V
    cdef real tops[ROWS]
    cdef double tails[ROWS]
    cdef real total
    cdef real* e = <real*>scratch
    cdef const real* x
    cdef Py_ssize_t row, r, rows, v
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        x = job.logits + row * V
        if job.p != NULL:
            e = job.p + row * V
        exponential_rows(x, rows, V, e, tops, tails)
        for r in range(rows):
            row_loss(job, row + r, tops[r], x[r * V + job.targets[row + r]], tails[r])
            if job.p != NULL:
                total = <real>(1.0 + tails[r])
                for v in range(r * V, r * V + V):
                    e[v] = e[v] / total


cdef void _gradient(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t V = job.V
    cdef real r_scale = job.r
    cdef real tops[ROWS]
    cdef double tails[ROWS]
    cdef real at_target
    cdef real* out
    cdef const real* p
    cdef Py_ssize_t row, r, rows, v
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        out = job.d_logits + row * V
        if job.p == NULL:
            exponential_rows(job.logits + row * V, rows, V, out, tops, tails)
        for r in range(rows):
            if job.p == NULL:
                gradient_of_row(
                    out, job.targets[row + r], V, <real>(1.0 + tails[r]), r_scale, out
                )
            else:
                p = job.p + (row + r) * V               # may be `out` itself
                at_target = p[job.targets[row + r]]
                for v in range(V):
                    out[v] = <real>0 + p[v] * r_scale
                out[job.targets[row + r]] = <real>0 + (at_target - <real>1) * r_scale
            out += V


cdef void _block(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t V = job.V
    cdef real tops[ROWS]
    cdef double tails[ROWS]
    cdef real* e = <real*>scratch
    cdef const real* x
    cdef Py_ssize_t row, r, rows, target
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        x = job.logits + row * V
        if any_non_finite(x, rows * V):
            job.bad = 1
            return
        exponential_rows(x, rows, V, e, tops, tails)
        for r in range(rows):
            target = job.targets[row + r]
            row_loss(job, row + r, tops[r], x[r * V + target], tails[r])
            if job.d_logits != NULL:
                gradient_of_row(
                    e + r * V, target, V, <real>(1.0 + tails[r]), job.r,
                    job.d_logits + (row + r) * V,
                )


# The mean of all rows: one chain, which the pool runs for the state of the processor.
cdef struct Mean:
    const double* losses
    const double* log_tails
    const double* tops
    const double* wanted
    Py_ssize_t N
    double* out


cdef void _mean(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Mean* job = <Mean*>ctx
    cdef double n = <double>job.N, total = 0.0, below
    cdef Py_ssize_t i
    cdef bint finite = True
    for i in range(job.N):
        total = total + job.losses[i]
        finite = finite and is_finite(job.losses[i]) and is_finite(total)
    if finite:
        job.out[0] = 0.0 + total / n
        return
    total = 0.0
    for i in range(job.N):
        below = job.tops[i] - job.wanted[i]
        below = below / n if is_finite(below) else (job.tops[i] / n) - (job.wanted[i] / n)
        total = total + (below + job.log_tails[i] / n)
    job.out[0] = 0.0 + total


cdef Job _job(
    cnp.ndarray logits, cnp.ndarray targets, cnp.ndarray losses, cnp.ndarray parts,
    Py_ssize_t first,
):
    """`losses` and `parts` are those of all rows, of which `logits` are some from `first` on."""
    cdef Job job
    cdef Py_ssize_t N = cnp.PyArray_SIZE(losses)
    cdef double* part = <double*>cnp.PyArray_DATA(parts) + first
    job.logits = <const real*>cnp.PyArray_DATA(logits)
    job.targets = <const i64*>cnp.PyArray_DATA(targets) + first
    job.losses = <double*>cnp.PyArray_DATA(losses) + first
    job.log_tails, job.tops, job.wanted = part, part + N, part + 2 * N
    job.p, job.d_logits = NULL, NULL
    job.V = cnp.PyArray_DIM(logits, cnp.PyArray_NDIM(logits) - 1)
    job.r, job.bad = 0, 0
    return job


def cross_entropy(
    cnp.ndarray logits, cnp.ndarray targets,                            # IN
    cnp.ndarray losses, cnp.ndarray parts,                              # OUT, (N,), (3, N) float64
    cnp.ndarray mean,                                                   # OUT, () float64
    object p,                                                           # OUT or None
    int n_threads,
):
    """The mean, and the row losses with their parts."""
    cdef Job job = _job(logits, targets, losses, parts, 0)
    cdef Py_ssize_t N = cnp.PyArray_SIZE(targets)
    cdef int status
    job.p = <real*>cnp.PyArray_DATA(<cnp.ndarray>p) if p is not None else NULL
    with nogil:
        status = parallel_for(
            _losses, &job, N, row_grain(8 * job.V), ROWS * job.V * sizeof(real), n_threads
        )
    if status != 0:
        raise MemoryError("scratch memory of cross_entropy")
    mean_loss(losses, parts, mean)


def cross_entropy_block(
    cnp.ndarray logits,                                                 # IN, OUT with gradient
    cnp.ndarray targets, Py_ssize_t first,                              # IN
    cnp.ndarray losses, cnp.ndarray parts,                              # OUT, (N,), (3, N) float64
    double r, bint gradient, int n_threads,                             # IN; r finite as a real
) -> int:
    """Some of N rows from `first` on: losses, parts of losses, and the gradient over the logits.

    `targets`, `losses` and `parts` are those of all rows.  Gives the flat index of the first logit
    that is no finite number, or -1; after such a find the results are arbitrary.
    """
    cdef Job job = _job(logits, targets, losses, parts, first)
    cdef Py_ssize_t V = job.V, size = cnp.PyArray_SIZE(logits), i, found = -1
    cdef int status
    job.r = <real>r
    if gradient:
        job.d_logits = <real*>cnp.PyArray_DATA(logits)
    with nogil:
        status = parallel_for(
            _block, &job, size // V, row_grain(8 * V), ROWS * V * sizeof(real), n_threads
        )
        if job.bad:  # gradients already written over finite logits are finite themselves
            for i in range(size):
                if not is_finite_real(job.logits[i]):
                    found = i
                    break
    if status != 0:
        raise MemoryError("scratch memory of cross_entropy")
    return found


def mean_loss(cnp.ndarray losses, cnp.ndarray parts, cnp.ndarray mean):  # IN, IN, OUT () float64
    cdef Mean job
    cdef const double* part = <const double*>cnp.PyArray_DATA(parts)
    job.N = cnp.PyArray_SIZE(losses)
    job.losses = <const double*>cnp.PyArray_DATA(losses)
    job.log_tails, job.tops, job.wanted = part, part + job.N, part + 2 * job.N
    job.out = <double*>cnp.PyArray_DATA(mean)
    with nogil:
        parallel_for(_mean, &job, 1, 1, 0, 1)


def cross_entropy_backward(
    cnp.ndarray logits, cnp.ndarray targets, double r, object p,        # IN; p may be None
    cnp.ndarray d_logits, int n_threads,                                # OUT
):
    cdef Job job
    cdef Py_ssize_t N = cnp.PyArray_SIZE(targets)
    job.logits = <const real*>cnp.PyArray_DATA(logits)
    job.targets = <const i64*>cnp.PyArray_DATA(targets)
    job.d_logits = <real*>cnp.PyArray_DATA(d_logits)
    job.p = <real*>cnp.PyArray_DATA(<cnp.ndarray>p) if p is not None else NULL
    job.V = cnp.PyArray_DIM(logits, cnp.PyArray_NDIM(logits) - 1)
    job.r = <real>r
    with nogil:
        parallel_for(_gradient, &job, N, row_grain(8 * job.V), 0, n_threads)
