"""AdamW of one parameter (numerics contract, section 10).

    g  = (gradient / divisor) * multiplier      the effective gradient of clipping
    m' = beta1 * m + (1 - beta1) * g
    q  = g * g
    v' = beta2 * v + (1 - beta2) * q
    mh = m' / c1
    vh = v' / c2
    d  = mh / (sqrt(vh) + eps)
    a  = lr * d
    k  = (lr * weight_decay) * p
    p' = (p - a) - k

Everything is binary64 for both types, from exactly converted inputs; p', m' and v' are rounded
once to the build's type (contract for float32, rule 7).  A divisor and a multiplier of 1 leave the
gradient's bits alone, and a divisor of 1 makes the uniform scale.

Every line is checked to be finite; of several that are not, the first element's first line is
reported.  Results may go to arrays of their own, so that a caller can prepare all parameters before
it replaces any.  Or it asks ``adamw_is_bounded`` first: the largest magnitudes among parameters,
gradients and moments nearly always prove that no line of any element can overflow, and the update
can then be made in place.  Magnitudes before an update bound those after it, so that only gradients
need to be read at the next one, and not even these by a caller who has just measured their norm.
"""

cimport numpy as cnp
from libc.string cimport memset

from llmcy._kernels.order cimport GRAIN
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport IS_F32, is_finite, is_finite_real, real, sqrt

cnp.import_array()

cdef enum:
    STAGES = 10

STAGE_NAMES = (
    "effective_gradient",
    "first_moment",
    "squared_gradient",
    "second_moment",
    "corrected_first_moment",
    "corrected_second_moment",
    "direction",
    "step",
    "weight_decay",
    "parameter",
)

cdef extern from "llmcy_magnitude.h" nogil:
    ctypedef struct Survey "llmcy_survey":
        pass
    Survey survey_of "llmcy_survey_of"(const real* x, Py_ssize_t n)
    void join "llmcy_survey_join"(Survey* to, Survey found)
    double largest "llmcy_survey_largest"(Survey s)
    bint negative "llmcy_survey_negative"(Survey s)

cdef double ENORMOUS = 1e300                        # far enough from overflow for any rounding
cdef double ENORMOUS_STORED = 1e38 if IS_F32 else 1e300

cdef extern from "llmcy_adamw.h" nogil:
    ctypedef struct Rule "llmcy_adamw_rule":
        double beta1, beta2, c1, c2, lr, eps, weight_decay, divisor, multiplier
        double one_minus_beta1, one_minus_beta2, decay
    Rule with_derived "llmcy_with_derived"(const Rule* given)
    ctypedef struct Divisor "llmcy_divisor":
        pass
    Divisor divisor_of "llmcy_divisor_of"(double c)
    double quotient "llmcy_quotient"(double x, Divisor by)
    bint update_loop "llmcy_adamw_update"(
        const Rule* rule, bint known_finite, const real* param, const real* grad,
        const real* first, const real* second, real* new_param, real* new_first, real* new_second, Py_ssize_t n,
    )

cdef struct Job:
    const real* param
    const real* grad
    const real* first
    const real* second
    real* new_param
    real* new_first
    real* new_second
    Rule rule
    bint known_finite
    int bad             # set, never cleared, by any thread that meets a value that is not finite


cdef inline void stages(
    const Rule* rule, double p, double gradient, double m, double v, double* s
) noexcept nogil:
    """All lines of one element, in the order of STAGE_NAMES."""
    s[0] = (gradient / rule.divisor) * rule.multiplier
    s[1] = rule.beta1 * m + rule.one_minus_beta1 * s[0]
    s[2] = s[0] * s[0]
    s[3] = rule.beta2 * v + rule.one_minus_beta2 * s[2]
    s[4] = s[1] / rule.c1
    s[5] = s[3] / rule.c2
    s[6] = s[4] / (sqrt(s[5]) + rule.eps)
    s[7] = rule.lr * s[6]
    s[8] = rule.decay * p
    s[9] = (p - s[7]) - s[8]


cdef void _update(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Rule rule = with_derived(&job.rule)
    if update_loop(
        &rule, job.known_finite, job.param + lo, job.grad + lo, job.first + lo,
        job.second + lo, job.new_param + lo, job.new_first + lo, job.new_second + lo,
        hi - lo,
    ):
        job.bad = 1


# The first line that is not finite.
cdef struct Found:
    const Job* job
    Py_ssize_t index    # OUT, like the others
    int stage
    double value


cdef void _first_bad(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """Of elements lo .. hi-1, all on one thread."""
    cdef Found* found = <Found*>ctx
    cdef const Job* job = found.job
    cdef Rule rule = with_derived(&job.rule)
    cdef double s[STAGES]
    cdef Py_ssize_t i
    cdef int k
    for i in range(lo, hi):
        stages(&rule, job.param[i], job.grad[i], job.first[i], job.second[i], s)
        s[1] = s[1] if is_finite_real(<real>s[1]) else <double>(<real>s[1])     # as stored
        s[3] = s[3] if is_finite_real(<real>s[3]) else <double>(<real>s[3])
        s[9] = s[9] if is_finite_real(<real>s[9]) else <double>(<real>s[9])
        for k in range(STAGES):
            if not is_finite(s[k]):
                found.index, found.stage, found.value = i, k, s[k]
                return


cdef Rule _rule(
    double lr, double beta1, double beta2, double eps, double weight_decay,
    double correction1, double correction2, double divisor, double multiplier,
):
    cdef Rule rule
    rule.beta1 = beta1
    rule.beta2 = beta2
    rule.c1 = correction1
    rule.c2 = correction2
    rule.lr = lr
    rule.eps = eps
    rule.weight_decay = weight_decay
    rule.divisor = divisor
    rule.multiplier = multiplier
    rule.one_minus_beta1 = rule.one_minus_beta2 = rule.decay = 0.0  # derived in every chunk
    return rule


def adamw_update(
    cnp.ndarray param, cnp.ndarray grad, cnp.ndarray first, cnp.ndarray second,     # IN
    double lr, double beta1, double beta2, double eps, double weight_decay,
    double correction1, double correction2, double divisor, double multiplier,
    cnp.ndarray new_param, cnp.ndarray new_first, cnp.ndarray new_second,           # OUT
    int n_threads,
):
    """None, or (index, stage, value) of the first line that is not finite."""
    cdef Job job
    cdef Py_ssize_t n = cnp.PyArray_SIZE(param)
    cdef Found found
    job.param = <const real*>cnp.PyArray_DATA(param)
    job.grad = <const real*>cnp.PyArray_DATA(grad)
    job.first = <const real*>cnp.PyArray_DATA(first)
    job.second = <const real*>cnp.PyArray_DATA(second)
    job.new_param = <real*>cnp.PyArray_DATA(new_param)
    job.new_first = <real*>cnp.PyArray_DATA(new_first)
    job.new_second = <real*>cnp.PyArray_DATA(new_second)
    job.rule = _rule(
        lr, beta1, beta2, eps, weight_decay, correction1, correction2, divisor, multiplier
    )
    job.known_finite = False
    job.bad = 0
    found.job, found.stage = &job, -1
    with nogil:
        parallel_for(_update, &job, n, GRAIN // 4, 0, n_threads)
        if job.bad:
            parallel_for(_first_bad, &found, n, 1, 0, 1)
    return (found.index, STAGE_NAMES[found.stage], found.value) if found.stage >= 0 else None


def adamw_update_all(
    tuple params, tuple grads, tuple firsts, tuple seconds, tuple weight_decays,    # IN
    double lr, double beta1, double beta2, double eps,
    double correction1, double correction2, double divisor, double multiplier,
    tuple new_params, tuple new_firsts, tuple new_seconds,                  # OUT, may be the old
    bint known_finite,          # whether `adamw_is_bounded` said so
    int n_threads,
) -> bool:
    """Many parameters; False, without doing more, after one with a line that is not finite."""
    cdef Job job
    cdef Py_ssize_t i, n
    cdef Rule rule = _rule(
        lr, beta1, beta2, eps, 0.0, correction1, correction2, divisor, multiplier
    )
    job.known_finite = known_finite
    job.bad = 0
    # from the last to the first: what the norm of all gradients read last is still in the cache
    for i in range(len(params) - 1, -1, -1):
        n = cnp.PyArray_SIZE(<cnp.ndarray>params[i])
        job.param = <const real*>cnp.PyArray_DATA(<cnp.ndarray>params[i])
        job.grad = <const real*>cnp.PyArray_DATA(<cnp.ndarray>grads[i])
        job.first = <const real*>cnp.PyArray_DATA(<cnp.ndarray>firsts[i])
        job.second = <const real*>cnp.PyArray_DATA(<cnp.ndarray>seconds[i])
        job.new_param = <real*>cnp.PyArray_DATA(<cnp.ndarray>new_params[i])
        job.new_first = <real*>cnp.PyArray_DATA(<cnp.ndarray>new_firsts[i])
        job.new_second = <real*>cnp.PyArray_DATA(<cnp.ndarray>new_seconds[i])
        job.rule = rule
        job.rule.weight_decay = weight_decays[i]
        with nogil:
            parallel_for(_update, &job, n, GRAIN // 4, 0, n_threads)
        if job.bad:
            return False
    return True


cdef enum:              # what has a largest magnitude, in the order of the columns of `bounds`
    PARAM
    FIRST
    SECOND
    GRAD
    SUBJECTS

cdef double ROOM = 1.0 + 2.0**-20   # for the roundings of an update and of its bounds

cdef struct Surveys:
    const real* x[SUBJECTS]
    Survey found[SUBJECTS]
    int first_subject, last_subject     # the others have known bounds


cdef void _survey(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Surveys* job = <Surveys*>ctx
    cdef int k
    for k in range(job.first_subject, job.last_subject):
        join(&job.found[k], survey_of(job.x[k] + lo, hi - lo))


cdef bint _bounded(const Rule* rule, double g, double* bounds) noexcept nogil:
    """Is every line finite for all elements of at most these magnitudes?

    `bounds` of parameter and moments become those after the update.
    """
    cdef double p = bounds[PARAM], m = bounds[FIRST], v = bounds[SECOND]
    g = (g / rule.divisor) * rule.multiplier
    m = rule.beta1 * m + rule.one_minus_beta1 * g
    v = rule.beta2 * v + rule.one_minus_beta2 * (g * g)
    cdef double a = rule.lr * ((m / rule.c1) / rule.eps)
    cdef double new = p + a + rule.decay * p
    bounds[PARAM], bounds[FIRST], bounds[SECOND] = new * ROOM, m * ROOM, v * ROOM
    # a NaN fails every comparison
    return (
        g < ENORMOUS and g * g < ENORMOUS and m < ENORMOUS_STORED and v < ENORMOUS_STORED
        and m / rule.c1 < ENORMOUS and v / rule.c2 < ENORMOUS
        and (m / rule.c1) / rule.eps < ENORMOUS and new < ENORMOUS_STORED
    )


def adamw_is_bounded(
    tuple params, tuple grads, tuple firsts, tuple seconds, tuple weight_decays,    # IN
    double lr, double beta1, double beta2, double eps,
    double correction1, double correction2, double divisor, double multiplier,
    double[:, ::1] bounds,      # INOUT, (parameters, 3): of parameter and moments
    bint known,                 # whether bounds hold before the update
    double largest_grad,        # bound of all gradients, or negative
    int n_threads,
) -> bool:
    """Do the magnitudes alone prove every line of every element finite?

    What no bound is known of is read.  If they do, `bounds` hold after the update; if not, they are
    worth nothing.
    """
    cdef Surveys job
    cdef Py_ssize_t i, n
    cdef int k
    cdef bint bounded
    cdef double g = largest_grad
    cdef Rule rule = _rule(
        lr, beta1, beta2, eps, 0.0, correction1, correction2, divisor, multiplier
    )
    rule = with_derived(&rule)  # for bounds, whose ROOM is wider than any rounding
    job.first_subject = GRAD if known else PARAM
    job.last_subject = GRAD if largest_grad >= 0.0 else SUBJECTS
    for i in range(len(params)):
        n = cnp.PyArray_SIZE(<cnp.ndarray>params[i])
        job.x[PARAM] = <const real*>cnp.PyArray_DATA(<cnp.ndarray>params[i])
        job.x[FIRST] = <const real*>cnp.PyArray_DATA(<cnp.ndarray>firsts[i])
        job.x[SECOND] = <const real*>cnp.PyArray_DATA(<cnp.ndarray>seconds[i])
        job.x[GRAD] = <const real*>cnp.PyArray_DATA(<cnp.ndarray>grads[i])
        memset(job.found, 0, sizeof(job.found))
        rule.decay = lr * <double>weight_decays[i]
        with nogil:
            if job.first_subject < job.last_subject:
                parallel_for(_survey, &job, n, GRAIN, 0, n_threads)
            for k in range(job.first_subject, GRAD):
                bounds[i, k] = largest(job.found[k])
            if job.last_subject > GRAD:
                g = largest(job.found[GRAD])
            # a negative second moment has no root: the caller looks closer
            bounded = _bounded(&rule, g, &bounds[i, 0]) and not negative(job.found[SECOND])
        if not bounded:
            return False
    return True


def quotients(double[::1] x, double c, double[::1] out):  # IN, IN, OUT
    """x / c as the update of float32 divides second moments; for tests."""
    cdef Divisor by = divisor_of(c)
    cdef Py_ssize_t i
    with nogil:
        for i in range(x.shape[0]):
            out[i] = quotient(x[i], by)


cdef struct Lines:
    const Job* job
    double* out         # (STAGES, n)
    Py_ssize_t n


cdef void _lines(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Lines* lines = <Lines*>ctx
    cdef const Job* job = lines.job
    cdef Rule rule = with_derived(&job.rule)
    cdef double s[STAGES]
    cdef Py_ssize_t i
    cdef int k
    for i in range(lo, hi):
        stages(&rule, job.param[i], job.grad[i], job.first[i], job.second[i], s)
        for k in range(STAGES):
            lines.out[k * lines.n + i] = s[k]


def adamw_stages(
    cnp.ndarray param, cnp.ndarray grad, cnp.ndarray first, cnp.ndarray second,     # IN
    double lr, double beta1, double beta2, double eps, double weight_decay,
    double correction1, double correction2, double divisor, double multiplier,
    cnp.ndarray out,                                        # OUT, (10, n) float64
):
    """Every line of every element, in the order of STAGE_NAMES."""
    cdef Job job
    cdef Lines lines
    job.rule = _rule(
        lr, beta1, beta2, eps, weight_decay, correction1, correction2, divisor, multiplier
    )
    job.param = <const real*>cnp.PyArray_DATA(param)
    job.grad = <const real*>cnp.PyArray_DATA(grad)
    job.first = <const real*>cnp.PyArray_DATA(first)
    job.second = <const real*>cnp.PyArray_DATA(second)
    lines.job, lines.n = &job, cnp.PyArray_SIZE(param)
    lines.out = <double*>cnp.PyArray_DATA(out)
    with nogil:
        parallel_for(_lines, &lines, lines.n, GRAIN, 0, 1)
