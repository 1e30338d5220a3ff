/* exp of whole vectors, correctly rounded: exp(x) = 2^(k/n) exp(r), x = k ln2/n + r.
 *
 * Two things make it fast.  The table of 2^(i/n) is so short (n = 32, for binary32 n = 16) that it
 * stays in registers, where the processor has an instruction that picks from there; the price is a
 * longer polynomial.  And LLMCY_EXP_SIDE vectors are computed side by side: an exponential is a chain
 * of some twenty operations of which each waits for the one before.
 *
 * binary64: hi + lo with an error below LLMCY_EXP64_ERROR; where both ends of that range round to one
 * double, it is the answer, and the other lanes (1 in 2000) are asked again one by one.  binary32:
 * computed in binary64 with an error far below half a unit of binary32; every argument was tried.
 * docs/elementary.md has the proofs.
 */
#ifndef LLMCY_EXP_H
#define LLMCY_EXP_H
#include "cr_tables.h"
#include "llmcy_types.h"

enum { LLMCY_DOUBLES = LLMCY_VEC_BYTES / 8 };
typedef double llmcy_doubles __attribute__((vector_size(LLMCY_VEC_BYTES), aligned(8), may_alias));
typedef uint64_t llmcy_words __attribute__((vector_size(LLMCY_VEC_BYTES), aligned(8), may_alias));
/* as many numbers of the build's type as there are doubles in a vector */
typedef llmcy_real llmcy_part __attribute__((
    vector_size(LLMCY_VEC_BYTES / 8 * sizeof(llmcy_real)), aligned(sizeof(llmcy_real)), may_alias));

#if defined(__AVX512F__)
enum { LLMCY_EXP_SIDE = 4 };
#else
enum { LLMCY_EXP_SIDE = 2 }; /* 16 registers */
#endif
enum { LLMCY_EXP_GROUP = LLMCY_EXP_SIDE * LLMCY_DOUBLES };

#define LLMCY_EACH LLMCY_UNROLLED for (int v = 0; v < LLMCY_EXP_SIDE; v++)

#define LLMCY_ROUND_TO_INTEGER 0x1.8p52 /* adding and subtracting it rounds to an integer */
#define LLMCY_ROUND_TO_32 0x1.8p20      /* ... to a multiple of 2^-32 */
#define LLMCY_EXP64_ERROR 0x1.08p-64

/* x, but at least `low`; a NaN becomes `low`, or stays when `keep_nan` */
LLMCY_INLINE llmcy_doubles llmcy_at_least(llmcy_doubles x, double low, int keep_nan) {
    const llmcy_doubles none = {0}, bound = none + low, a = keep_nan ? bound : x;
    const llmcy_doubles b = keep_nan ? x : bound; /* given when one of both is a NaN */
#if defined(__AVX512F__)
    return (llmcy_doubles)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX2__)
    return (llmcy_doubles)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif defined(__SSE2__)
    return (llmcy_doubles)_mm_max_pd((__m128d)a, (__m128d)b);
#else
    for (int lane = 0; lane < LLMCY_DOUBLES; lane++) x[lane] = a[lane] > b[lane] ? a[lane] : b[lane];
    return x;
#endif
}
/* x, but at most `high`; a NaN stays */
LLMCY_INLINE llmcy_doubles llmcy_at_most(llmcy_doubles x, double high) {
    const llmcy_doubles none = {0}, bound = none + high;
#if defined(__AVX512F__)
    return (llmcy_doubles)_mm512_min_pd((__m512d)bound, (__m512d)x);
#elif defined(__AVX2__)
    return (llmcy_doubles)_mm256_min_pd((__m256d)bound, (__m256d)x);
#elif defined(__SSE2__)
    return (llmcy_doubles)_mm_min_pd((__m128d)bound, (__m128d)x);
#else
    for (int lane = 0; lane < LLMCY_DOUBLES; lane++) x[lane] = bound[lane] < x[lane] ? bound[lane] : x[lane];
    return x;
#endif
}

#if LLMCY_IS_F32
/* a * b + c in binary64; fused or not, both were tried on every argument */
LLMCY_INLINE llmcy_doubles llmcy_exp_add(llmcy_doubles a, llmcy_doubles b, llmcy_doubles c) {
#if defined(__AVX512F__)
    return (llmcy_doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
    return (llmcy_doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

/* LLMCY_EXP32_POWER[index mod 16] */
LLMCY_INLINE llmcy_doubles llmcy_exp_power(llmcy_words index) {
#if defined(__AVX512F__)
    return (llmcy_doubles)_mm512_permutex2var_pd(_mm512_load_pd(LLMCY_EXP32_POWER), (__m512i)index,
                                                 _mm512_load_pd(LLMCY_EXP32_POWER + 8));
#else
    llmcy_doubles power = {0};
    index &= 15;
    for (int lane = 0; lane < LLMCY_DOUBLES; lane++) power[lane] = LLMCY_EXP32_POWER[index[lane]];
    return power;
#endif
}

/* a = exp(a), right once it is rounded to binary32; nothing is left in doubt.  `signs`: whether some
 * may be positive. */
LLMCY_INLINE int llmcy_exp_side(llmcy_doubles *a, llmcy_words *doubt, int signs) {
    const llmcy_doubles none = {0};
    llmcy_doubles k[LLMCY_EXP_SIDE], power[LLMCY_EXP_SIDE], r[LLMCY_EXP_SIDE];
    llmcy_doubles s[LLMCY_EXP_SIDE], p[LLMCY_EXP_SIDE], q[LLMCY_EXP_SIDE];
    (void)doubt;
    LLMCY_EACH a[v] = llmcy_at_least(a[v], -110.0, 1);
    if (signs) LLMCY_EACH a[v] = llmcy_at_most(a[v], 100.0);
    LLMCY_EACH k[v] = llmcy_exp_add(a[v], none + LLMCY_EXP32_INVERSE, none + LLMCY_ROUND_TO_INTEGER);
    /* the low bits of k hold it as an integer; its multiple of 2^48 is taken from the table already,
     * so that adding it moves the exponent alone */
    LLMCY_EACH power[v] = llmcy_exp_power((llmcy_words)k[v]);
    LLMCY_EACH power[v] = (llmcy_doubles)((llmcy_words)power[v] + ((llmcy_words)k[v] << 48));
    LLMCY_EACH k[v] = k[v] - LLMCY_ROUND_TO_INTEGER;
    LLMCY_EACH r[v] = llmcy_exp_add(k[v], none - LLMCY_EXP32_STEP_1, a[v]);
    LLMCY_EACH r[v] = llmcy_exp_add(k[v], none - LLMCY_EXP32_STEP_2, r[v]);
    LLMCY_EACH s[v] = r[v] * r[v];
    LLMCY_EACH p[v] = llmcy_exp_add(none + LLMCY_EXP32_C3, r[v], none + LLMCY_EXP32_C2);
    LLMCY_EACH q[v] = llmcy_exp_add(none + LLMCY_EXP32_C0, r[v], none + 0.5);
    LLMCY_EACH p[v] = llmcy_exp_add(p[v], r[v], none + LLMCY_EXP32_C1);
    LLMCY_EACH q[v] = llmcy_exp_add(q[v], s[v], r[v]);
    LLMCY_EACH s[v] = s[v] * s[v];
    LLMCY_EACH p[v] = llmcy_exp_add(p[v], s[v], q[v]);
    LLMCY_EACH a[v] = llmcy_exp_add(p[v], power[v], power[v]);
    return 0;
}

LLMCY_INLINE llmcy_doubles llmcy_widen(llmcy_part x) {
    return __builtin_convertvector(x, llmcy_doubles);
}
LLMCY_INLINE llmcy_part llmcy_narrow(llmcy_doubles x) {
    return __builtin_convertvector(x, llmcy_part);
}

#else
/* head and tail of 2^(i/32), i = index mod 32 */
LLMCY_INLINE void llmcy_exp_pick(llmcy_words index, llmcy_doubles *head, llmcy_doubles *tail) {
#if defined(__AVX512F__)
    const double *h = LLMCY_EXP64_HEAD, *t = LLMCY_EXP64_TAIL;
    const __m512i i = (__m512i)index;
    const __mmask8 upper = _mm512_test_epi64_mask(i, _mm512_set1_epi64(16));
    *head = (llmcy_doubles)_mm512_mask_blend_pd(
        upper, _mm512_permutex2var_pd(_mm512_load_pd(h), i, _mm512_load_pd(h + 8)),
        _mm512_permutex2var_pd(_mm512_load_pd(h + 16), i, _mm512_load_pd(h + 24)));
    *tail = (llmcy_doubles)_mm512_mask_blend_pd(
        upper, _mm512_permutex2var_pd(_mm512_load_pd(t), i, _mm512_load_pd(t + 8)),
        _mm512_permutex2var_pd(_mm512_load_pd(t + 16), i, _mm512_load_pd(t + 24)));
#else
    llmcy_doubles h = {0}, t = {0};
    index &= 31;
    for (int lane = 0; lane < LLMCY_DOUBLES; lane++) {
        h[lane] = LLMCY_EXP64_HEAD[index[lane]];
        t[lane] = LLMCY_EXP64_TAIL[index[lane]];
    }
    *head = h;
    *tail = t;
#endif
}

LLMCY_INLINE int llmcy_any_bit(llmcy_words a) {
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)a, (__m512i)a) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)a, (__m256i)a);
#else
    uint64_t all = 0;
    for (int lane = 0; lane < LLMCY_DOUBLES; lane++) all |= a[lane];
    return all != 0;
#endif
}

/* a = exp(a); whether a lane is left in doubt, or is out of the range of normal results: those have
 * bits in `doubt`.  `signs` as above. */
LLMCY_INLINE int llmcy_exp_side(llmcy_doubles *a, llmcy_words *doubt, int signs) {
    llmcy_doubles k[LLMCY_EXP_SIDE], s[LLMCY_EXP_SIDE], low[LLMCY_EXP_SIDE];
    llmcy_doubles th[LLMCY_EXP_SIDE], tl[LLMCY_EXP_SIDE], d[LLMCY_EXP_SIDE], p[LLMCY_EXP_SIDE];
    llmcy_doubles q[LLMCY_EXP_SIDE], c[LLMCY_EXP_SIDE], hi[LLMCY_EXP_SIDE];
    llmcy_words index[LLMCY_EXP_SIDE], any = {0};
    LLMCY_EACH doubt[v] = (llmcy_words)a[v];
    LLMCY_EACH a[v] = llmcy_at_least(a[v], -708.0, 0);
    if (signs) LLMCY_EACH a[v] = llmcy_at_most(a[v], 709.0);
    LLMCY_EACH doubt[v] ^= (llmcy_words)a[v];
    LLMCY_EACH k[v] = a[v] * LLMCY_EXP64_INVERSE;
    LLMCY_EACH k[v] = k[v] + LLMCY_ROUND_TO_INTEGER;
    LLMCY_EACH index[v] = (llmcy_words)k[v]; /* its low bits hold the integer k */
    LLMCY_EACH llmcy_exp_pick(index[v], &th[v], &tl[v]);
    LLMCY_EACH k[v] = k[v] - LLMCY_ROUND_TO_INTEGER;
    LLMCY_EACH d[v] = a[v] - k[v] * LLMCY_EXP64_STEP_1; /* product and difference exact */
    LLMCY_EACH p[v] = k[v] * LLMCY_EXP64_STEP_2;
    LLMCY_EACH s[v] = d[v] - p[v];
    LLMCY_EACH low[v] = (d[v] - s[v]) - p[v]; /* s + low = d - p */
    LLMCY_EACH d[v] = (s[v] + LLMCY_ROUND_TO_32) - LLMCY_ROUND_TO_32;
    LLMCY_EACH low[v] = (s[v] - d[v]) + low[v];
    /* q = exp(s) - 1 - s */
    LLMCY_EACH q[v] = s[v] * s[v];
    LLMCY_EACH p[v] = LLMCY_EXP64_C2 + q[v] * LLMCY_EXP64_C4;
    LLMCY_EACH c[v] = LLMCY_EXP64_C1 + q[v] * LLMCY_EXP64_C3;
    LLMCY_EACH p[v] = LLMCY_EXP64_C0 + q[v] * p[v];
    LLMCY_EACH c[v] = p[v] + s[v] * c[v];
    LLMCY_EACH p[v] = s[v] * q[v];
    LLMCY_EACH q[v] = 0.5 * q[v] + p[v] * c[v];
    LLMCY_EACH p[v] = th[v] * d[v]; /* exact: 27 and 26 bits */
    LLMCY_EACH hi[v] = th[v] + p[v];
    LLMCY_EACH p[v] = p[v] - (hi[v] - th[v]);
    LLMCY_EACH low[v] = tl[v] * (s[v] + q[v]) + th[v] * low[v];
    LLMCY_EACH low[v] = p[v] + (tl[v] + low[v]);
    LLMCY_EACH low[v] = th[v] * q[v] + low[v];
    LLMCY_EACH p[v] = hi[v] + (low[v] + LLMCY_EXP64_ERROR);
    LLMCY_EACH q[v] = hi[v] + (low[v] - LLMCY_EXP64_ERROR);
    LLMCY_EACH doubt[v] |= (llmcy_words)p[v] ^ (llmcy_words)q[v];
    LLMCY_EACH any |= doubt[v];
    LLMCY_EACH a[v] = (llmcy_doubles)((llmcy_words)p[v] + (index[v] >> 5 << 52));
    return llmcy_any_bit(any);
}

LLMCY_INLINE llmcy_doubles llmcy_widen(llmcy_part x) { return x; }
LLMCY_INLINE llmcy_part llmcy_narrow(llmcy_doubles x) { return x; }
#endif

/* The argument: x, x - shift <= 0 with a rounded difference, or -|x|. */
enum { LLMCY_EXP_PLAIN, LLMCY_EXP_SHIFTED, LLMCY_EXP_DECAY };

LLMCY_INLINE llmcy_doubles llmcy_exp_argument(const llmcy_real *x, int what, llmcy_real shift) {
    llmcy_part value = *(const llmcy_part *)x;
    llmcy_doubles wide;
    if (what == LLMCY_EXP_SHIFTED) value = value - shift;
    wide = llmcy_widen(value);
    if (what == LLMCY_EXP_DECAY) wide = (llmcy_doubles)((llmcy_words)wide | (uint64_t)1 << 63);
    return wide;
}

/* LLMCY_EXP_GROUP elements; `one` is exp of one double */
LLMCY_INLINE void llmcy_exp_group(const llmcy_real *x, llmcy_real *y, int what, llmcy_real shift,
                                  double (*one)(double)) {
    llmcy_doubles a[LLMCY_EXP_SIDE];
    llmcy_words doubt[LLMCY_EXP_SIDE];
    LLMCY_EACH a[v] = llmcy_exp_argument(x + v * LLMCY_DOUBLES, what, shift);
    if (__builtin_expect(llmcy_exp_side(a, doubt, what == LLMCY_EXP_PLAIN), 0)) {
        double values[LLMCY_EXP_GROUP], arguments[LLMCY_EXP_GROUP];
        uint64_t flags[LLMCY_EXP_GROUP];
        LLMCY_EACH *(llmcy_doubles *)(values + v * LLMCY_DOUBLES) = a[v];
        LLMCY_EACH *(llmcy_words *)(flags + v * LLMCY_DOUBLES) = doubt[v];
        LLMCY_EACH *(llmcy_doubles *)(arguments + v * LLMCY_DOUBLES) =
            llmcy_exp_argument(x + v * LLMCY_DOUBLES, what, shift);
        for (int i = 0; i < LLMCY_EXP_GROUP; i++)
            if (flags[i]) values[i] = one(arguments[i]);
        LLMCY_EACH a[v] = *(const llmcy_doubles *)(values + v * LLMCY_DOUBLES);
    }
    LLMCY_EACH *(llmcy_part *)(y + v * LLMCY_DOUBLES) = llmcy_narrow(a[v]);
}

LLMCY_INLINE void llmcy_exp_all(const llmcy_real *x, llmcy_real *y, ptrdiff_t n, int what,
                                llmcy_real shift, double (*one)(double)) {
    llmcy_real rest[LLMCY_EXP_GROUP];
    ptrdiff_t i = 0;
    for (; i + LLMCY_EXP_GROUP <= n; i += LLMCY_EXP_GROUP)
        llmcy_exp_group(x + i, y + i, what, shift, one);
    if (i < n) {
        for (int j = 0; j < LLMCY_EXP_GROUP; j++) rest[j] = x[i + j < n ? i + j : i];
        llmcy_exp_group(rest, rest, what, shift, one);
        memcpy(y + i, rest, (size_t)(n - i) * sizeof *x);
    }
}

/* Each for i < n; y may be x. */
static inline void llmcy_exp_of(const llmcy_real *x, llmcy_real *y, ptrdiff_t n,
                                double (*one)(double)) {
    llmcy_exp_all(x, y, n, LLMCY_EXP_PLAIN, 0, one);
}
static inline void llmcy_exp_of_shifted(const llmcy_real *x, llmcy_real shift, llmcy_real *y,
                                        ptrdiff_t n, double (*one)(double)) {
    llmcy_exp_all(x, y, n, LLMCY_EXP_SHIFTED, shift, one);
}
static inline void llmcy_exp_of_decay(const llmcy_real *x, llmcy_real *y, ptrdiff_t n,
                                      double (*one)(double)) {
    llmcy_exp_all(x, y, n, LLMCY_EXP_DECAY, 0, one);
}
#endif
