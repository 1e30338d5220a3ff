"""One token each of one to four sequences through a whole decoder, in a single call.

    x = table[token];  for every block:
    h = norm(x, g1);  q, k, v = h Wq, h Wk, h Wv;  q and k rotated;  a = attention over the cache
    x = x + a Wo;  h = norm(x, g2);  x = x + (silu(h Wgate) * (h Wup)) Wdown
    logits = norm(x, g) head^T

Every value is computed as by the kernel of its own name, from the same pieces and in the same order,
so the bits are theirs (numerics contract, section 6).

Matrices are packed (panels.pxd) into one array in the order of their use, so that a token reads it
from one end to the other: for every block [Wq | Wk | Wv], Wo, panels of Wgate and Wup by turns, Wdown;
then the head.  What follows a product element by element, the residual sum and SwiGLU, happens panel
by panel where the product has just been made.
"""

cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact

from llmcy._kernels.inverse_root cimport inverse_root
from llmcy._kernels.panels cimport (
    PANEL, pack_panel, panel_product, panels_of, whole_lines, width_of,
)
from llmcy._kernels.pool cimport chunk_fn, parallel_for
from llmcy._kernels.sigmoid cimport sigmoids
from llmcy._kernels.step_heads cimport Step, append_token, attend_heads
from llmcy._kernels.types cimport NPY_REAL, i64, real

cnp.import_array()

cdef enum:
    MOST_ROWS = 4
    MOST_PANEL = 64         # PANEL of binary32
    GRAIN_WORK = 6144       # weights below which a second thread costs more than it gains

# Everything is (n, ...), rows one after the other; *_row is the distance of two rows.
cdef struct Pass:
    Py_ssize_t n, D, Q, K, F, V, Dh     # Q = H * Dh query features, K = Hk * Dh
    const i64* tokens
    const i64* positions
    const real* table
    const real* cos_table               # (T, Dh / 2)
    const real* sin_table
    const real* gain
    double eps
    real* cos                           # (n, Dh): for feature i of a head, the factor of x[i]
    real* sin                           # (n, Dh): the factor of the pair's other one, with its sign
    real* x
    real* h
    Py_ssize_t x_row
    real* qkv
    Py_ssize_t qkv_row
    real* mixed
    real* hidden
    Py_ssize_t hidden_row
    real* logits
    # the product at hand
    const real* a
    Py_ssize_t a_row, k
    const real* weights
    int bad


cdef inline int _not_finite(const real* x, Py_ssize_t n) noexcept nogil:
    cdef int bad = 0
    cdef Py_ssize_t i
    for i in range(n):
        bad |= (x[i] - x[i]) != 0
    return bad


# ---- what one thread does between two products ------------------------------------------------
cdef void _begin(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Pass* p = <Pass*>ctx
    cdef const real* c
    cdef const real* s
    cdef Py_ssize_t r, i
    for r in range(p.n):
        for i in range(p.D):
            p.x[r * p.x_row + i] = p.table[p.tokens[r] * p.D + i]
        c = p.cos_table + p.positions[r] * (p.Dh // 2)
        s = p.sin_table + p.positions[r] * (p.Dh // 2)
        for i in range(p.Dh // 2):
            p.cos[r * p.Dh + 2 * i] = p.cos[r * p.Dh + 2 * i + 1] = c[i]
            p.sin[r * p.Dh + 2 * i] = -s[i]
            p.sin[r * p.Dh + 2 * i + 1] = s[i]


cdef inline double _sum_of_squares(const real* x, Py_ssize_t n) noexcept nogil:
    cdef double total = 0.0
    cdef Py_ssize_t i
    for i in range(n):
        total = total + <double>x[i] * <double>x[i]
    return total


cdef void _normalise(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Pass* p = <Pass*>ctx
    cdef const real* x
    cdef real* h
    cdef real inv
    cdef Py_ssize_t r, d
    for r in range(p.n):
        x = p.x + r * p.x_row
        h = p.h + r * p.x_row
        inv = inverse_root(_sum_of_squares(x, p.D) / <double>p.D + p.eps)
        for d in range(p.D):
            h[d] = (x[d] * inv) * p.gain[d]


cdef inline void _turn(
    real* x, const real* cos, const real* sin, Py_ssize_t heads, Py_ssize_t Dh
) noexcept nogil:
    cdef Py_ssize_t head, j
    cdef real a, c
    for head in range(heads):
        for j in range(Dh // 2):
            a = x[2 * j]
            c = x[2 * j + 1]
            x[2 * j] = <real>0 + (a * cos[2 * j] + c * sin[2 * j])
            x[2 * j + 1] = <real>0 + (c * cos[2 * j + 1] + a * sin[2 * j + 1])
        x += Dh


cdef void _rotate(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Pass* p = <Pass*>ctx
    cdef Py_ssize_t r
    cdef real* row
    for r in range(p.n):
        row = p.qkv + r * p.qkv_row
        _turn(row, p.cos + r * p.Dh, p.sin + r * p.Dh, (p.Q + p.K) // p.Dh, p.Dh)
        p.bad |= _not_finite(row, p.Q + 2 * p.K)


# ---- products, panel by panel -----------------------------------------------------------------
cdef void _project(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Pass* p = <Pass*>ctx
    cdef Py_ssize_t panel
    for panel in range(lo, hi):
        panel_product(
            p.n, p.h, p.x_row, p.D, p.weights + panel * PANEL * p.D,
            width_of(panel, p.Q + 2 * p.K), p.qkv + panel * PANEL, p.qkv_row,
        )


cdef void _add_product(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """x = x + a W."""
    cdef Pass* p = <Pass*>ctx
    cdef real o[MOST_ROWS * MOST_PANEL]
    cdef real* x
    cdef Py_ssize_t panel, r, j, count
    for panel in range(lo, hi):
        panel_product(
            p.n, p.a, p.a_row, p.k, p.weights + panel * PANEL * p.k, width_of(panel, p.D), o, PANEL
        )
        count = min(p.D - panel * PANEL, <Py_ssize_t>PANEL)
        for r in range(p.n):
            x = p.x + r * p.x_row + panel * PANEL
            for j in range(count):
                x[j] = x[j] + o[r * PANEL + j]
            if _not_finite(x, count):
                p.bad = 1


cdef void _gate_up(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Pass* p = <Pass*>ctx
    cdef real gate[MOST_ROWS * MOST_PANEL]
    cdef real up[MOST_ROWS * MOST_PANEL]
    cdef real sg[MOST_PANEL]
    cdef const real* w
    cdef real* hidden
    cdef Py_ssize_t panel, width, r, j
    for panel in range(lo, hi):
        width = width_of(panel, p.F)
        w = p.weights + 2 * panel * PANEL * p.D
        panel_product(p.n, p.h, p.x_row, p.D, w, width, gate, PANEL)
        panel_product(p.n, p.h, p.x_row, p.D, w + width * p.D, width, up, PANEL)
        for r in range(p.n):
            hidden = p.hidden + r * p.hidden_row + panel * PANEL
            sigmoids(gate + r * PANEL, sg, width)
            for j in range(width):
                hidden[j] = (gate[r * PANEL + j] * sg[j]) * up[r * PANEL + j]


cdef void _head(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Pass* p = <Pass*>ctx
    cdef real o[MOST_ROWS * MOST_PANEL]
    cdef real* logits
    cdef Py_ssize_t panel, r, j, count
    for panel in range(lo, hi):
        panel_product(
            p.n, p.h, p.x_row, p.D, p.weights + panel * PANEL * p.D, width_of(panel, p.V), o, PANEL
        )
        count = min(p.V - panel * PANEL, <Py_ssize_t>PANEL)
        for r in range(p.n):
            logits = p.logits + r * p.V + panel * PANEL
            for j in range(count):
                logits[j] = o[r * PANEL + j]
            if _not_finite(logits, count):
                p.bad = 1


cdef inline void _share(
    chunk_fn work, Pass* p, Py_ssize_t columns, Py_ssize_t k, int n_threads
) noexcept nogil:
    """The panels of a product of k rows, in chunks that are worth a thread.

    A few panels that every thread can have as many of are cut that way: two chunks a thread, as the
    pool makes them, would leave one of them waiting.
    """
    cdef Py_ssize_t panels = panels_of(columns), grain = GRAIN_WORK // (PANEL * k) + 1
    if panels < 8 * n_threads and panels % n_threads == 0 and panels % (2 * n_threads) != 0:
        grain = max(grain, panels // n_threads)
    parallel_for(work, p, panels, grain, 0, n_threads)


cdef int _whole_pass(
    Pass* p, Step* step, Py_ssize_t L, const real* gains, real* qkv, const i64* storage, int n_threads
) noexcept nogil:
    """All blocks and the head; 0, or -1 when there is no memory for scratch."""
    cdef Py_ssize_t layer
    parallel_for(_begin, p, 1, 1, 0, 1)
    for layer in range(L):
        p.qkv = qkv + layer * p.n * p.qkv_row
        p.gain = gains
        parallel_for(_normalise, p, 1, 1, 0, 1)
        _share(_project, p, p.Q + 2 * p.K, p.D, n_threads)
        p.weights += p.qkv_row * p.D
        parallel_for(_rotate, p, 1, 1, 0, 1)
        step.q, step.new_key, step.new_value = p.qkv, p.qkv + p.Q, p.qkv + p.Q + p.K
        step.keys = <const real*>storage[2 * layer]
        step.values = <const real*>storage[2 * layer + 1]
        if attend_heads(step, p.n, n_threads):
            return -1
        p.a, p.a_row, p.k = p.mixed, p.Q, p.Q
        _share(_add_product, p, p.D, p.Q, n_threads)
        p.weights += p.x_row * p.Q
        p.gain = gains + p.D
        parallel_for(_normalise, p, 1, 1, 0, 1)
        _share(_gate_up, p, p.F, 2 * p.D, n_threads)
        p.weights += 2 * p.hidden_row * p.D
        p.a, p.a_row, p.k = p.hidden, p.hidden_row, p.F
        _share(_add_product, p, p.D, p.F, n_threads)
        p.weights += p.x_row * p.F
        gains += 2 * p.D
        if p.bad:
            return 0
    p.gain = gains
    parallel_for(_normalise, p, 1, 1, 0, 1)
    _share(_head, p, p.V, p.D, n_threads)
    return 0


# What stays the same from token to token.
cdef struct Fixed:
    const real* table
    const real* gains
    const real* weights
    const real* cos
    const real* sin
    double eps
    Py_ssize_t L, D, F, V, C, H, Hk, Dh


cdef int _run(
    Fixed* f, const i64* storage, const i64* tokens, const i64* rows, const i64* positions,
    real* scratch, real* qkv, real* logits, Py_ssize_t n, Py_ssize_t longest, int n_threads,
) noexcept nogil:
    """0; 1 when a value was not finite; -1 when there is no memory for scratch."""
    cdef Pass p
    cdef Step step
    p.n, p.D, p.Q, p.K, p.F, p.V, p.Dh = n, f.D, f.H * f.Dh, f.Hk * f.Dh, f.F, f.V, f.Dh
    p.tokens, p.positions = tokens, positions
    p.table, p.cos_table, p.sin_table = f.table, f.cos, f.sin
    p.weights = f.weights
    p.logits = logits
    p.eps = f.eps
    p.x_row, p.hidden_row = whole_lines(p.D), whole_lines(p.F)
    p.qkv_row = whole_lines(p.Q + 2 * p.K)
    p.x = scratch
    p.h = p.x + n * p.x_row
    p.hidden = p.h + n * p.x_row
    p.mixed = p.hidden + n * p.hidden_row
    p.cos = p.mixed + n * p.Q
    p.sin = p.cos + n * p.Dh
    p.bad = 0
    step.q_row = step.kv_row = p.qkv_row
    step.out, step.weights = p.mixed, NULL
    step.rows, step.lengths = rows, positions
    step.longest, step.C, step.H, step.Hk, step.Dh = longest, f.C, f.H, f.Hk, f.Dh
    if _whole_pass(&p, &step, f.L, f.gains, qkv, storage, n_threads):
        return -1
    return p.bad


cdef inline Py_ssize_t _scratch_of_a_token(Fixed* f) noexcept nogil:
    return 2 * whole_lines(f.D) + whole_lines(f.F) + (f.H + 2) * f.Dh


cdef inline Py_ssize_t _projected_of_a_token(Fixed* f) noexcept nogil:
    return whole_lines((f.H + 2 * f.Hk) * f.Dh)


cdef void _append(
    Fixed* f, const i64* storage, const i64* rows, const i64* positions, const real* row,
    i64* filled, Py_ssize_t n, Py_ssize_t B,
) noexcept nogil:
    cdef Py_ssize_t layer, i
    for layer in range(f.L):
        for i in range(n):
            append_token(
                row + f.H * f.Dh, row + (f.H + f.Hk) * f.Dh, <real*>storage[2 * layer],
                <real*>storage[2 * layer + 1], rows[i], positions[i], f.C, f.Hk, f.Dh,
            )
            filled[layer * B + rows[i]] += 1
            row += _projected_of_a_token(f)


cdef inline Py_ssize_t _changed(
    const i64* filled, const i64* rows, const i64* positions, Py_ssize_t n, Py_ssize_t L, Py_ssize_t B
) noexcept nogil:
    """The first layer in which a sequence does not end at its position; -1."""
    cdef Py_ssize_t layer, i
    for layer in range(L):
        for i in range(n):
            if filled[layer * B + rows[i]] != positions[i]:
                return layer
    return -1


cdef Fixed _fixed(tuple held):
    cdef Fixed f
    f.table = <const real*>cnp.PyArray_DATA(<cnp.ndarray>held[0])
    f.gains = <const real*>cnp.PyArray_DATA(<cnp.ndarray>held[1])
    f.weights = <const real*>cnp.PyArray_DATA(<cnp.ndarray>held[2])
    f.cos = <const real*>cnp.PyArray_DATA(<cnp.ndarray>held[3])
    f.sin = <const real*>cnp.PyArray_DATA(<cnp.ndarray>held[4])
    f.eps = held[5]
    f.L, f.D, f.F, f.V = held[6], held[7], held[8], held[9]
    f.C, f.H, f.Hk, f.Dh = held[10], held[11], held[12], held[13]
    return f


def addresses(
    tuple keys, tuple values,  # of L layers
    cnp.ndarray storage,  # OUT int64 (2 L,)
):
    """Where the cache of every layer is: the `storage` of the functions below."""
    cdef i64* places = <i64*>cnp.PyArray_DATA(storage)
    cdef Py_ssize_t layer
    for layer in range(len(keys)):
        places[2 * layer] = <i64>cnp.PyArray_DATA(<cnp.ndarray>keys[layer])
        places[2 * layer + 1] = <i64>cnp.PyArray_DATA(<cnp.ndarray>values[layer])


def decode_step(
    tuple held,  # table (V, D), gains (2 L + 1, D), packed weights, cos and sin (T, Dh / 2), eps, and
    # L, D, F, V, C, H, Hk, Dh
    cnp.ndarray storage,
    cnp.ndarray tokens, cnp.ndarray rows, cnp.ndarray positions,  # IN (n,)
    cnp.ndarray scratch,  # (n * (2 whole(D) + whole(F) + (H + 2) * Dh),)
    cnp.ndarray qkv,  # OUT (L, n, whole((H + 2 Hk) * Dh))
    cnp.ndarray logits,  # OUT (n, V)
    Py_ssize_t n, Py_ssize_t longest, int n_threads,
):
    """1 <= n <= 4.  Whether every value that later ones depend on is finite."""
    cdef Fixed f = _fixed(held)
    cdef int status
    with nogil:
        status = _run(
            &f, <const i64*>cnp.PyArray_DATA(storage), <const i64*>cnp.PyArray_DATA(tokens),
            <const i64*>cnp.PyArray_DATA(rows), <const i64*>cnp.PyArray_DATA(positions),
            <real*>cnp.PyArray_DATA(scratch), <real*>cnp.PyArray_DATA(qkv),
            <real*>cnp.PyArray_DATA(logits), n, longest, n_threads,
        )
    if status < 0:
        raise MemoryError("decode_step: no memory for the threads' scratch buffers")
    return status == 0


def append_step(
    tuple held, cnp.ndarray storage,
    cnp.ndarray qkv,  # IN (L, n, row)
    cnp.ndarray filled,  # IN and OUT (L, B)
    cnp.ndarray rows, cnp.ndarray positions,  # IN (n,), rows all different
    Py_ssize_t n, Py_ssize_t B,
):
    """Put the keys and values that decode_step found into the caches of all layers, which grow.

    -1, or the first layer in which a sequence does not end at its position; then nothing is done.
    """
    cdef Fixed f = _fixed(held)
    cdef const i64* owner = <const i64*>cnp.PyArray_DATA(rows)
    cdef const i64* place = <const i64*>cnp.PyArray_DATA(positions)
    cdef i64* counts = <i64*>cnp.PyArray_DATA(filled)
    cdef Py_ssize_t changed = _changed(counts, owner, place, n, f.L, B)
    if changed < 0:
        _append(
            &f, <const i64*>cnp.PyArray_DATA(storage), owner, place,
            <const real*>cnp.PyArray_DATA(qkv), counts, n, B,
        )
    return changed


def advance(
    tuple held, cnp.ndarray storage,
    cnp.ndarray filled,  # IN and OUT (L, B)
    cnp.ndarray lengths,  # IN and OUT (B,), as every layer has them
    list ids, list owners, Py_ssize_t B, int n_threads,
):
    """decode_step and append_step for sequences that are not empty, of numbers as they come.

    A tuple of logits (n, V), rows, positions and new lengths (n,), and the sum of the latter.  None,
    with nothing done, for anything unusual: single steps then accept or explain.  Or the first layer
    in which another thread has changed a sequence meanwhile; nothing is done then.
    """
    cdef Fixed f = _fixed(held)
    cdef cnp.npy_intp dims[2]
    cdef cnp.ndarray logits, rows, positions, grown, scratch
    cdef i64 tokens[MOST_ROWS]
    cdef i64* owner
    cdef i64* place
    cdef i64* length = <i64*>cnp.PyArray_DATA(lengths)
    cdef i64* counts = <i64*>cnp.PyArray_DATA(filled)
    cdef const i64* where = <const i64*>cnp.PyArray_DATA(storage)
    cdef real* qkv
    cdef Py_ssize_t n = len(ids), i, j, longest = 0, total = 0
    cdef int status, overflow = 0
    if not 1 <= n <= MOST_ROWS or len(owners) != n:
        return None
    dims[0], dims[1] = n, f.V
    rows = cnp.PyArray_EMPTY(1, dims, cnp.NPY_INT64, 0)
    positions = cnp.PyArray_EMPTY(1, dims, cnp.NPY_INT64, 0)
    grown = cnp.PyArray_EMPTY(1, dims, cnp.NPY_INT64, 0)
    owner = <i64*>cnp.PyArray_DATA(rows)
    place = <i64*>cnp.PyArray_DATA(positions)
    for i in range(n):
        if not (PyLong_CheckExact(ids[i]) and PyLong_CheckExact(owners[i])):
            return None
        tokens[i] = PyLong_AsLongLongAndOverflow(ids[i], &overflow)
        if overflow or not 0 <= tokens[i] < f.V:
            return None
        owner[i] = PyLong_AsLongLongAndOverflow(owners[i], &overflow)
        if overflow or not 0 <= owner[i] < B:
            return None
        for j in range(i):
            if owner[j] == owner[i]:
                return None
        place[i] = length[owner[i]]
        if not 0 < place[i] < f.C:
            return None
        longest = max(longest, <Py_ssize_t>place[i])
        total += place[i] + 1
        (<i64*>cnp.PyArray_DATA(grown))[i] = place[i] + 1
    if _changed(counts, owner, place, n, f.L, B) >= 0:
        return None
    logits = cnp.PyArray_EMPTY(2, dims, NPY_REAL, 0)
    dims[0] = n * (_scratch_of_a_token(&f) + f.L * _projected_of_a_token(&f))
    scratch = cnp.PyArray_EMPTY(1, dims, NPY_REAL, 0)
    qkv = <real*>cnp.PyArray_DATA(scratch) + n * _scratch_of_a_token(&f)
    with nogil:
        status = _run(
            &f, where, tokens, owner, place, <real*>cnp.PyArray_DATA(scratch), qkv,
            <real*>cnp.PyArray_DATA(logits), n, longest, n_threads,
        )
    if status != 0:
        return None
    i = _changed(counts, owner, place, n, f.L, B)
    if i >= 0:
        return i
    _append(&f, where, owner, place, qkv, counts, n, B)
    for i in range(n):
        length[owner[i]] = place[i] + 1
    return logits, rows, positions, grown, total


def width_in_panels(Py_ssize_t columns):
    """Columns that a matrix takes when it is packed."""
    return whole_lines(columns)


def pack(
    cnp.ndarray matrix,  # IN (k, columns), or with `transposed` (columns, k)
    cnp.ndarray packed,  # OUT from `start` on
    Py_ssize_t start, Py_ssize_t k, Py_ssize_t columns,
    Py_ssize_t before, Py_ssize_t total,  # its place among the columns of the packed matrix
    Py_ssize_t turns, Py_ssize_t turn,  # panels of so many packed matrices alternate; which this is
    bint transposed,
):
    """Pack a matrix, or one of some that lie side by side; columns of none are left as they are."""
    cdef const real* b = <const real*>cnp.PyArray_DATA(matrix)
    cdef real* out = <real*>cnp.PyArray_DATA(packed) + start
    cdef Py_ssize_t k_step = 1 if transposed else columns, column_step = k if transposed else 1
    cdef Py_ssize_t panel, first, last, width
    with nogil:
        for panel in range(panels_of(total)):
            first, last = panel * PANEL, min((panel + 1) * PANEL, total)
            width = width_of(panel, total)
            if last > before and first < before + columns:
                pack_panel(
                    b, k_step, column_step, k,
                    max(first, before) - before, min(last, before + columns) - before,
                    out + (turns * first + turn * width) * k + max(first, before) - first, width,
                )
