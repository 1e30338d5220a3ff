/* A square of VEC_LANES x VEC_LANES numbers, its rows in memory, to one vector a column.
 *
 * Interleaving line i with line i + VEC_LANES / 2, log2(VEC_LANES) times, transposes a square; moving
 * numbers rounds nothing.
 */
#ifndef LLMCY_TRANSPOSE_H
#define LLMCY_TRANSPOSE_H
#include "llmcy_types.h"
#include <stddef.h>

enum { LLMCY_LANES = LLMCY_VEC_BYTES / sizeof(llmcy_real) };

#if defined(__GNUC__) && !defined(__clang__)
#if LLMCY_IS_F32
typedef int32_t llmcy_lane_index;
#else
typedef int64_t llmcy_lane_index;
#endif
typedef llmcy_lane_index llmcy_lane_indices __attribute__((vector_size(LLMCY_VEC_BYTES)));
typedef llmcy_real llmcy_aligned_vec __attribute__((vector_size(LLMCY_VEC_BYTES)));

LLMCY_INLINE void llmcy_interleave(llmcy_aligned_vec a, llmcy_aligned_vec b, llmcy_aligned_vec *low,
                                   llmcy_aligned_vec *high) {
    llmcy_lane_indices first, second;
    for (int lane = 0; lane < LLMCY_LANES; lane++) {
        first[lane] = lane / 2 + (lane % 2) * LLMCY_LANES;
        second[lane] = first[lane] + LLMCY_LANES / 2;
    }
    *low = __builtin_shuffle(a, b, first);
    *high = __builtin_shuffle(a, b, second);
}
#else
typedef llmcy_vec llmcy_aligned_vec;
LLMCY_INLINE void llmcy_interleave(llmcy_aligned_vec a, llmcy_aligned_vec b, llmcy_aligned_vec *low,
                                   llmcy_aligned_vec *high) {
    for (int lane = 0; lane < LLMCY_LANES / 2; lane++) {
        (*low)[2 * lane] = a[lane];
        (*low)[2 * lane + 1] = b[lane];
        (*high)[2 * lane] = a[lane + LLMCY_LANES / 2];
        (*high)[2 * lane + 1] = b[lane + LLMCY_LANES / 2];
    }
}
#endif

/* columns[c][r] = x[r * stride + c] */
LLMCY_INLINE void llmcy_transpose(const llmcy_real *x, ptrdiff_t stride, llmcy_vec *columns) {
    llmcy_aligned_vec one[LLMCY_LANES], two[LLMCY_LANES];
    for (int r = 0; r < LLMCY_LANES; r++) one[r] = (llmcy_aligned_vec)llmcy_vec_load(x + r * stride);
    for (int width = 1; width < LLMCY_LANES; width *= 2) {
        for (int i = 0; i < LLMCY_LANES / 2; i++)
            llmcy_interleave(one[i], one[i + LLMCY_LANES / 2], &two[2 * i], &two[2 * i + 1]);
        for (int i = 0; i < LLMCY_LANES; i++) one[i] = two[i];
    }
    for (int c = 0; c < LLMCY_LANES; c++) columns[c] = (llmcy_vec)one[c];
}
#endif
