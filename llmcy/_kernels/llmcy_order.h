/* Sums along rows, the chains of LLMCY_ROWS rows side by side:
 *
 *     sums[r] = ((0 + x[r][0] y[r][0]) + x[r][1] y[r][1]) + ...      in binary64
 *
 * Lane r of a vector is the chain of row r.  The rows lie in memory one after the other, so squares
 * of numbers are transposed on the way; moving numbers rounds nothing.  An addition takes longer than
 * the moves for one more addition: two vectors of chains are filled where there are rows enough.
 */
#ifndef LLMCY_ORDER_H
#define LLMCY_ORDER_H
#include "llmcy_types.h"
#include <stddef.h>

#define LLMCY_ROWS 16

LLMCY_INLINE double llmcy_term(const llmcy_real *x, const llmcy_real *y) {
    return y ? (double)*x * (double)*y : (double)*x;
}

#if defined(__AVX512F__)
enum { LLMCY_SQUARE = 8 };
LLMCY_INLINE __m512d llmcy_widened(const llmcy_real *x) {
#if LLMCY_IS_F32
    return _mm512_cvtps_pd(_mm256_loadu_ps(x));
#else
    return _mm512_loadu_pd(x);
#endif
}
LLMCY_INLINE __m512d llmcy_add_columns(__m512d sums, const __m512d *row) {
    __m512d pair[8], quad[8];
    LLMCY_UNROLLED for (int r = 0; r < 8; r += 2) { /* columns 0 2 4 6 and 1 3 5 7 of two rows */
        pair[r] = _mm512_unpacklo_pd(row[r], row[r + 1]);
        pair[r + 1] = _mm512_unpackhi_pd(row[r], row[r + 1]);
    }
    LLMCY_UNROLLED for (int r = 0; r < 8; r += 4) { /* columns 0 4, 1 5, 2 6, 3 7 of four rows */
        quad[r] = _mm512_shuffle_f64x2(pair[r], pair[r + 2], 0x88);
        quad[r + 1] = _mm512_shuffle_f64x2(pair[r + 1], pair[r + 3], 0x88);
        quad[r + 2] = _mm512_shuffle_f64x2(pair[r], pair[r + 2], 0xdd);
        quad[r + 3] = _mm512_shuffle_f64x2(pair[r + 1], pair[r + 3], 0xdd);
    }
    LLMCY_UNROLLED for (int c = 0; c < 4; c++)
        sums = sums + _mm512_shuffle_f64x2(quad[c], quad[c + 4], 0x88);
    LLMCY_UNROLLED for (int c = 0; c < 4; c++)
        sums = sums + _mm512_shuffle_f64x2(quad[c], quad[c + 4], 0xdd);
    return sums;
}
typedef __m512d llmcy_chain;

#elif defined(__AVX2__)
enum { LLMCY_SQUARE = 4 };
LLMCY_INLINE __m256d llmcy_widened(const llmcy_real *x) {
#if LLMCY_IS_F32
    return _mm256_cvtps_pd(_mm_loadu_ps(x));
#else
    return _mm256_loadu_pd(x);
#endif
}
LLMCY_INLINE __m256d llmcy_add_columns(__m256d sums, const __m256d *row) {
    __m256d even01 = _mm256_unpacklo_pd(row[0], row[1]), odd01 = _mm256_unpackhi_pd(row[0], row[1]);
    __m256d even23 = _mm256_unpacklo_pd(row[2], row[3]), odd23 = _mm256_unpackhi_pd(row[2], row[3]);
    sums = sums + _mm256_permute2f128_pd(even01, even23, 0x20);
    sums = sums + _mm256_permute2f128_pd(odd01, odd23, 0x20);
    sums = sums + _mm256_permute2f128_pd(even01, even23, 0x31);
    return sums + _mm256_permute2f128_pd(odd01, odd23, 0x31);
}
typedef __m256d llmcy_chain;

#elif defined(__SSE2__)
enum { LLMCY_SQUARE = 2 };
LLMCY_INLINE __m128d llmcy_widened(const llmcy_real *x) {
#if LLMCY_IS_F32
    double two;
    memcpy(&two, x, sizeof two);
    return _mm_cvtps_pd(_mm_castpd_ps(_mm_set_sd(two)));
#else
    return _mm_loadu_pd(x);
#endif
}
LLMCY_INLINE __m128d llmcy_add_columns(__m128d sums, const __m128d *row) {
    sums = sums + _mm_unpacklo_pd(row[0], row[1]);
    return sums + _mm_unpackhi_pd(row[0], row[1]);
}
typedef __m128d llmcy_chain;

#else
enum { LLMCY_SQUARE = 1 };
typedef double llmcy_chain;
LLMCY_INLINE double llmcy_widened(const llmcy_real *x) { return *x; }
LLMCY_INLINE double llmcy_add_columns(double sums, const double *row) { return sums + row[0]; }
#endif

/* The next LLMCY_SQUARE terms of `lanes` chains; row r goes on at[r] elements after x and y. */
LLMCY_INLINE llmcy_chain llmcy_add_square(llmcy_chain chain, const llmcy_real *x,
                                          const llmcy_real *y, const ptrdiff_t *at) {
    llmcy_chain row[LLMCY_SQUARE];
    LLMCY_UNROLLED for (int r = 0; r < LLMCY_SQUARE; r++) {
        row[r] = llmcy_widened(x + at[r]);
        if (y) row[r] = row[r] * llmcy_widened(y + at[r]);
    }
    return llmcy_add_columns(chain, row);
}

/* `lanes` chains, a constant. */
LLMCY_INLINE void llmcy_chains(const llmcy_real *x, const llmcy_real *y, const ptrdiff_t *at,
                               ptrdiff_t n, int lanes, double *sums) {
    ptrdiff_t j = 0;
#ifdef LLMCY_ANY_ORDER /* what the order costs, for benchmarks: partial sums along each row */
    for (int r = 0; r < lanes; r++) {
        double part[16] = {0};
        for (j = 0; j + 16 <= n; j += 16)
            for (int lane = 0; lane < 16; lane++)
                part[lane] += llmcy_term(x + at[r] + j + lane, y ? y + at[r] + j + lane : y);
        for (int lane = 0; lane < 16; lane++) sums[r] += part[lane];
    }
#else
    enum { LINE = 64 / sizeof(llmcy_real) }; /* a line of the cache is taken whole: rows may share sets */
    llmcy_chain chain[LLMCY_ROWS / LLMCY_SQUARE];
    memset(chain, 0, sizeof chain);
    for (; j + LINE <= n; j += LINE)
        LLMCY_UNROLLED for (int c = 0; c < lanes / LLMCY_SQUARE; c++)
            LLMCY_UNROLLED for (int s = 0; s < LINE; s += LLMCY_SQUARE)
                chain[c] = llmcy_add_square(chain[c], x + j + s, y ? y + j + s : y,
                                            at + c * LLMCY_SQUARE);
    for (; j + LLMCY_SQUARE <= n; j += LLMCY_SQUARE)
        LLMCY_UNROLLED for (int c = 0; c < lanes / LLMCY_SQUARE; c++)
            chain[c] = llmcy_add_square(chain[c], x + j, y ? y + j : y, at + c * LLMCY_SQUARE);
    memcpy(sums, chain, (size_t)lanes * sizeof *sums);
#endif
    for (; j < n; j++)
        for (int r = 0; r < lanes; r++)
            sums[r] = sums[r] + llmcy_term(x + at[r] + j, y ? y + at[r] + j : y);
}

/* sums[r], r < rows <= LLMCY_ROWS, of rows `stride` elements apart; y may be NULL, which leaves it out
 * of the products.  Row r has n elements, or where `longer` is 1, n + r.  `sums` has LLMCY_ROWS
 * elements; those beyond `rows` are of no meaning. */
LLMCY_INLINE void llmcy_sum_rows(const llmcy_real *x, const llmcy_real *y, ptrdiff_t rows,
                                 ptrdiff_t stride, ptrdiff_t n, int longer, double *sums) {
    ptrdiff_t at[LLMCY_ROWS];
    for (ptrdiff_t r = 0; r < LLMCY_ROWS; r++) {
        at[r] = (r < rows ? r : rows - 1) * stride; /* a lane without a row takes the last one's */
        sums[r] = 0;
    }
    if (rows > LLMCY_ROWS / 2)
        llmcy_chains(x, y, at, n, LLMCY_ROWS, sums);
    else if (rows > 1)
        llmcy_chains(x, y, at, n, LLMCY_ROWS / 2, sums);
    else
        for (ptrdiff_t j = 0; j < n; j++) sums[0] = sums[0] + llmcy_term(x + j, y ? y + j : y);
    if (longer)
        for (ptrdiff_t r = 1; r < rows; r++)
            for (ptrdiff_t i = at[r] + n; i < at[r] + n + r; i++)
                sums[r] = sums[r] + llmcy_term(x + i, y ? y + i : y);
}
#endif
