/* Eight chains of additions side by side: sums[r] = ((sums[r] + x[r][0]) + x[r][1]) + ...
 *
 * Lane r of a vector is the chain of row r.  The rows lie in memory one after the other, so blocks
 * of 8 x 8 (4 x 4) numbers are transposed on the way; moving numbers rounds nothing.
 */
#ifndef LLMCY_ORDER_H
#define LLMCY_ORDER_H
#include "llmcy_types.h"
#include <stddef.h>

#define LLMCY_ROWS 8

LLMCY_INLINE void llmcy_continue_chains(const double *x, ptrdiff_t stride, ptrdiff_t n, double *sums) {
    ptrdiff_t j = 0;
#ifdef LLMCY_ANY_ORDER /* what the order costs, for benchmarks: partial sums along each row */
    for (int r = 0; r < LLMCY_ROWS; r++) {
        double part[16] = {0};
        for (j = 0; j + 16 <= n; j += 16)
            for (int lane = 0; lane < 16; lane++) part[lane] += x[r * stride + j + lane];
        for (int lane = 0; lane < 16; lane++) sums[r] += part[lane];
    }
#elif defined(__AVX512F__)
    __m512d acc = _mm512_loadu_pd(sums);
    for (; j + 8 <= n; j += 8) {
        __m512d row[8], pair[8], quad[8];
        for (int r = 0; r < 8; r++) row[r] = _mm512_loadu_pd(x + r * stride + j);
        for (int r = 0; r < 8; r += 2) { /* columns 0 2 4 6 and 1 3 5 7 of two rows */
            pair[r] = _mm512_unpacklo_pd(row[r], row[r + 1]);
            pair[r + 1] = _mm512_unpackhi_pd(row[r], row[r + 1]);
        }
        for (int r = 0; r < 8; r += 4) { /* columns 0 4, 1 5, 2 6, 3 7 of four rows */
            quad[r] = _mm512_shuffle_f64x2(pair[r], pair[r + 2], 0x88);
            quad[r + 1] = _mm512_shuffle_f64x2(pair[r + 1], pair[r + 3], 0x88);
            quad[r + 2] = _mm512_shuffle_f64x2(pair[r], pair[r + 2], 0xdd);
            quad[r + 3] = _mm512_shuffle_f64x2(pair[r + 1], pair[r + 3], 0xdd);
        }
        for (int c = 0; c < 4; c++) acc = acc + _mm512_shuffle_f64x2(quad[c], quad[c + 4], 0x88);
        for (int c = 0; c < 4; c++) acc = acc + _mm512_shuffle_f64x2(quad[c], quad[c + 4], 0xdd);
    }
    _mm512_storeu_pd(sums, acc);
#elif defined(__AVX2__)
    __m256d acc[2] = {_mm256_loadu_pd(sums), _mm256_loadu_pd(sums + 4)};
    for (; j + 4 <= n; j += 4)
        for (int half = 0; half < 2; half++) {
            const double *at = x + 4 * half * stride + j;
            __m256d r0 = _mm256_loadu_pd(at), r1 = _mm256_loadu_pd(at + stride);
            __m256d r2 = _mm256_loadu_pd(at + 2 * stride), r3 = _mm256_loadu_pd(at + 3 * stride);
            __m256d even01 = _mm256_unpacklo_pd(r0, r1), odd01 = _mm256_unpackhi_pd(r0, r1);
            __m256d even23 = _mm256_unpacklo_pd(r2, r3), odd23 = _mm256_unpackhi_pd(r2, r3);
            acc[half] = acc[half] + _mm256_permute2f128_pd(even01, even23, 0x20);
            acc[half] = acc[half] + _mm256_permute2f128_pd(odd01, odd23, 0x20);
            acc[half] = acc[half] + _mm256_permute2f128_pd(even01, even23, 0x31);
            acc[half] = acc[half] + _mm256_permute2f128_pd(odd01, odd23, 0x31);
        }
    _mm256_storeu_pd(sums, acc[0]);
    _mm256_storeu_pd(sums + 4, acc[1]);
#endif
    for (; j < n; j++)
        for (int r = 0; r < LLMCY_ROWS; r++) sums[r] = sums[r] + x[r * stride + j];
}
#endif
