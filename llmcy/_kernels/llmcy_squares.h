/* Sums of squares of several runs of binary32 numbers side by side, each one chain in binary64, where
 * the squares are exact: sums[r] = ((0 + x[r][0]**2) + x[r][1]**2) + ...
 *
 * Lane r of a vector is the chain of run r, so squares of LANES x LANES numbers are transposed.
 */
#ifndef LLMCY_SQUARES_H
#define LLMCY_SQUARES_H
#include "llmcy_transpose.h"

#define LLMCY_RUNS (LLMCY_VEC_BYTES / 4)

#if LLMCY_IS_F32 && defined(__AVX512F__)
typedef __m512d llmcy_wide;
#define LLMCY_LOW(v) _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)(v)))
#define LLMCY_HIGH(v) _mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)(v), 1))
#elif LLMCY_IS_F32 && defined(__AVX2__)
typedef __m256d llmcy_wide;
#define LLMCY_LOW(v) _mm256_cvtps_pd(_mm256_castps256_ps128((__m256)(v)))
#define LLMCY_HIGH(v) _mm256_cvtps_pd(_mm256_extractf128_ps((__m256)(v), 1))
#elif LLMCY_IS_F32 && defined(__SSE2__)
typedef __m128d llmcy_wide;
#define LLMCY_LOW(v) _mm_cvtps_pd((__m128)(v))
#define LLMCY_HIGH(v) _mm_cvtps_pd(_mm_movehl_ps((__m128)(v), (__m128)(v)))
#endif

/* LLMCY_RUNS runs of n numbers; n is a multiple of LLMCY_RUNS. */
LLMCY_INLINE void llmcy_sum_squares(const llmcy_real *const *x, ptrdiff_t n, double *sums) {
#ifdef LLMCY_LOW
    llmcy_wide low = {0}, high = {0};
    for (ptrdiff_t j = 0; j < n; j += LLMCY_RUNS) {
        llmcy_aligned_vec line[LLMCY_LANES];
        for (int r = 0; r < LLMCY_RUNS; r++) line[r] = (llmcy_aligned_vec)llmcy_vec_load(x[r] + j);
        for (int r = 0; r < LLMCY_RUNS; r++) __builtin_prefetch(x[r] + j + 128);
        llmcy_transpose_square(line);
        for (int k = 0; k < LLMCY_RUNS; k++) {
            llmcy_wide a = LLMCY_LOW(line[k]), b = LLMCY_HIGH(line[k]);
            low = low + a * a;
            high = high + b * b;
        }
    }
    memcpy(sums, &low, sizeof low);
    memcpy(sums + LLMCY_RUNS / 2, &high, sizeof high);
#else
    for (int r = 0; r < LLMCY_RUNS; r++) sums[r] = 0.0;
    for (ptrdiff_t j = 0; j < n; j++)
        for (int r = 0; r < LLMCY_RUNS; r++) sums[r] = sums[r] + (double)x[r][j] * (double)x[r][j];
#endif
}
#endif
