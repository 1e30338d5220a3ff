/* Small rectangles transposed in registers: rows of VEC_LANES numbers in memory, a power of two of them.
 *
 * Interleaving line i with line i + rows / 2, log2(rows) times, transposes; moving numbers rounds
 * nothing.
 */
#ifndef LLMCY_TRANSPOSE_H
#define LLMCY_TRANSPOSE_H
#include "llmcy_types.h"
#include <stddef.h>

enum {
    LLMCY_LANES = LLMCY_VEC_BYTES / sizeof(llmcy_real),
    LLMCY_MOST_LINES = LLMCY_LANES > 8 ? LLMCY_LANES : 8,
};

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

/* As llmcy_transpose_rows, of lines in registers.  Moving the top bit of a line's number to the end
 * of an element's place, once for each bit, is what the rounds do. */
LLMCY_INLINE void llmcy_transpose_lines(int rows, llmcy_aligned_vec *one) {
    llmcy_aligned_vec two[LLMCY_MOST_LINES];
    for (int width = 1; width < rows; width *= 2) {
        for (int i = 0; i < rows / 2; i++)
            llmcy_interleave(one[i], one[i + rows / 2], &two[2 * i], &two[2 * i + 1]);
        for (int i = 0; i < rows; i++) one[i] = two[i];
    }
}

/* flat[c * rows + r] = x[r * stride + c] for VEC_LANES columns; `rows` is a power of two, at most
 * LLMCY_MOST_LINES, and the number of vectors of `flat`. */
LLMCY_INLINE void llmcy_transpose_rows(int rows, const llmcy_real *x, ptrdiff_t stride,
                                       llmcy_vec *flat) {
    llmcy_aligned_vec line[LLMCY_MOST_LINES];
    for (int r = 0; r < rows; r++) line[r] = (llmcy_aligned_vec)llmcy_vec_load(x + r * stride);
    llmcy_transpose_lines(rows, line);
    for (int r = 0; r < rows; r++) flat[r] = (llmcy_vec)line[r];
}

/* columns[c][r] = x[r * stride + c] */
LLMCY_INLINE void llmcy_transpose(const llmcy_real *x, ptrdiff_t stride, llmcy_vec *columns) {
    llmcy_transpose_rows(LLMCY_LANES, x, stride, columns);
}
#endif
