/* The largest number of a row, and where it stands first. */
#ifndef LLMCY_MAXIMUM_H
#define LLMCY_MAXIMUM_H
#include "llmcy_types.h"
#include <stddef.h>

#if defined(__AVX512F__) && LLMCY_IS_F32
#define LLMCY_LARGER(x, best) ((llmcy_vec)_mm512_max_ps((__m512)(x), (__m512)(best)))
#define LLMCY_EQUAL(a, b) _mm512_cmp_ps_mask((__m512)(a), (__m512)(b), _CMP_EQ_OQ)
#elif defined(__AVX512F__)
#define LLMCY_LARGER(x, best) ((llmcy_vec)_mm512_max_pd((__m512d)(x), (__m512d)(best)))
#define LLMCY_EQUAL(a, b) _mm512_cmp_pd_mask((__m512d)(a), (__m512d)(b), _CMP_EQ_OQ)
#elif defined(__AVX2__) && LLMCY_IS_F32
#define LLMCY_LARGER(x, best) ((llmcy_vec)_mm256_max_ps((__m256)(x), (__m256)(best)))
#define LLMCY_EQUAL(a, b) _mm256_movemask_ps(_mm256_cmp_ps((__m256)(a), (__m256)(b), _CMP_EQ_OQ))
#elif defined(__AVX2__)
#define LLMCY_LARGER(x, best) ((llmcy_vec)_mm256_max_pd((__m256d)(x), (__m256d)(best)))
#define LLMCY_EQUAL(a, b) _mm256_movemask_pd(_mm256_cmp_pd((__m256d)(a), (__m256d)(b), _CMP_EQ_OQ))
#elif defined(__SSE2__) && LLMCY_IS_F32
#define LLMCY_LARGER(x, best) ((llmcy_vec)_mm_max_ps((__m128)(x), (__m128)(best)))
#define LLMCY_EQUAL(a, b) _mm_movemask_ps(_mm_cmpeq_ps((__m128)(a), (__m128)(b)))
#elif defined(__SSE2__)
#define LLMCY_LARGER(x, best) ((llmcy_vec)_mm_max_pd((__m128d)(x), (__m128d)(best)))
#define LLMCY_EQUAL(a, b) _mm_movemask_pd(_mm_cmpeq_pd((__m128d)(a), (__m128d)(b)))
#endif

/* x > best ? x : best, lane by lane */
LLMCY_INLINE llmcy_vec llmcy_larger(llmcy_vec x, llmcy_vec best) {
#ifdef LLMCY_LARGER
    return LLMCY_LARGER(x, best);
#else
    for (int lane = 0; lane < LLMCY_VEC_LANES; lane++)
        best[lane] = x[lane] > best[lane] ? x[lane] : best[lane];
    return best;
#endif
}

/* Bit i tells whether lane i of both is equal. */
LLMCY_INLINE unsigned llmcy_equal_lanes(llmcy_vec a, llmcy_vec b) {
#ifdef LLMCY_EQUAL
    return (unsigned)LLMCY_EQUAL(a, b);
#else
    unsigned equal = 0;
    for (int lane = 0; lane < LLMCY_VEC_LANES; lane++) equal |= (unsigned)(a[lane] == b[lane]) << lane;
    return equal;
#endif
}

/* The largest of n >= 1 numbers, of zeros any; with a NaN among them, any of them. */
LLMCY_INLINE llmcy_real llmcy_row_max(const llmcy_real *x, ptrdiff_t n) {
    enum { LANES = LLMCY_VEC_BYTES / sizeof(llmcy_real) };
    llmcy_vec best[4];
    llmcy_real lane[LANES];
    ptrdiff_t i = 0;
    if (n < LANES) {
        llmcy_real top = x[0];
        for (i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
        return top;
    }
    LLMCY_UNROLLED for (int v = 0; v < 4; v++) best[v] = llmcy_vec_load(x);
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        LLMCY_UNROLLED for (int v = 0; v < 4; v++)
            best[v] = llmcy_larger(llmcy_vec_load(x + i + v * LANES), best[v]);
    for (; i + LANES <= n; i += LANES) best[0] = llmcy_larger(llmcy_vec_load(x + i), best[0]);
    best[1] = llmcy_larger(llmcy_vec_load(x + n - LANES), best[1]); /* some of them twice */
    best[0] = llmcy_larger(llmcy_larger(best[3], best[2]), llmcy_larger(best[1], best[0]));
    llmcy_vec_store(lane, best[0]);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int r = 0; r < half; r++) lane[r] = lane[r + half] > lane[r] ? lane[r + half] : lane[r];
    return lane[0];
}

/* Index of the first of n numbers that equals `value`, or -1. */
LLMCY_INLINE ptrdiff_t llmcy_first_equal(const llmcy_real *x, llmcy_real value, ptrdiff_t n) {
    enum { LANES = LLMCY_VEC_BYTES / sizeof(llmcy_real) };
    const llmcy_vec wanted = llmcy_vec_zero() + value;
    unsigned equal;
    if (n < LANES) {
        for (ptrdiff_t i = 0; i < n; i++)
            if (x[i] == value) return i;
        return -1;
    }
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        i = i + LANES <= n ? i : n - LANES; /* the last ones: some of them twice, and unequal */
        equal = llmcy_equal_lanes(llmcy_vec_load(x + i), wanted);
        if (equal) return i + __builtin_ctz(equal);
    }
    return -1;
}
#endif
