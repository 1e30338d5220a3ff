/* Rectangles transposed in registers: rows of VEC_LANES numbers in memory, a power of two of them.
 *
 * Moving numbers rounds nothing.  A square is transposed in two kinds of rounds, whose moves are
 * single instructions everywhere: within blocks of 16 bytes, and of whole blocks.  Wider moves take
 * several instructions or registers full of indices.
 */
#ifndef LLMCY_TRANSPOSE_H
#define LLMCY_TRANSPOSE_H
#include "llmcy_types.h"
#include <stddef.h>

enum {
    LLMCY_LANES = LLMCY_VEC_BYTES / sizeof(llmcy_real),
    LLMCY_MOST_LINES = LLMCY_LANES > 8 ? LLMCY_LANES : 8,
    LLMCY_BLOCK = 16 / sizeof(llmcy_real), /* numbers of a block */
    LLMCY_BLOCKS = LLMCY_VEC_BYTES / 16,
};

#if defined(__GNUC__) && !defined(__clang__)
#if LLMCY_IS_F32
typedef int32_t llmcy_lane_index;
#else
typedef int64_t llmcy_lane_index;
#endif
typedef llmcy_lane_index llmcy_lane_indices __attribute__((vector_size(LLMCY_VEC_BYTES)));
typedef llmcy_real llmcy_aligned_vec __attribute__((vector_size(LLMCY_VEC_BYTES)));
#define LLMCY_SHUFFLE(a, b, from) __builtin_shuffle(a, b, from)
#else
typedef llmcy_vec llmcy_aligned_vec;
typedef int llmcy_lane_indices[LLMCY_LANES];
LLMCY_INLINE llmcy_aligned_vec llmcy_shuffle(llmcy_aligned_vec a, llmcy_aligned_vec b,
                                             const int *from) {
    llmcy_aligned_vec out;
    for (int lane = 0; lane < LLMCY_LANES; lane++)
        out[lane] = from[lane] < LLMCY_LANES ? a[from[lane]] : b[from[lane] - LLMCY_LANES];
    return out;
}
#define LLMCY_SHUFFLE(a, b, from) llmcy_shuffle(a, b, from)
#endif

/* In pieces of `width` numbers: a0 b0 a1 b1 ... of the first half of each piece, and of the second. */
LLMCY_INLINE void llmcy_interleave(int width, llmcy_aligned_vec a, llmcy_aligned_vec b,
                                   llmcy_aligned_vec *low, llmcy_aligned_vec *high) {
    llmcy_lane_indices first, second;
    for (int lane = 0; lane < LLMCY_LANES; lane++) {
        int piece = lane / width * width, place = lane % width;
        first[lane] = piece + place / 2 + (place % 2) * LLMCY_LANES;
        second[lane] = first[lane] + width / 2;
    }
    *low = LLMCY_SHUFFLE(a, b, first);
    *high = LLMCY_SHUFFLE(a, b, second);
}

/* Blocks 0, 2, .. of a and then of b, and blocks 1, 3, .. of both. */
LLMCY_INLINE void llmcy_part_blocks(llmcy_aligned_vec a, llmcy_aligned_vec b,
                                    llmcy_aligned_vec *even, llmcy_aligned_vec *odd) {
    llmcy_lane_indices first, second;
    for (int lane = 0; lane < LLMCY_LANES; lane++) {
        int place = 2 * (lane / LLMCY_BLOCK) * LLMCY_BLOCK + lane % LLMCY_BLOCK;
        first[lane] = place; /* b begins at LLMCY_LANES */
        second[lane] = place + LLMCY_BLOCK;
    }
    *even = LLMCY_SHUFFLE(a, b, first);
    *odd = LLMCY_SHUFFLE(a, b, second);
}

/* Each block of each BLOCK lines, as squares of BLOCK x BLOCK numbers, for itself. */
LLMCY_INLINE void llmcy_transpose_blocks(int rows, llmcy_aligned_vec *line) {
    llmcy_aligned_vec moved[LLMCY_MOST_LINES];
    for (int width = 1; width < LLMCY_BLOCK; width *= 2) {
        for (int top = 0; top < rows; top += LLMCY_BLOCK)
            for (int i = 0; i < LLMCY_BLOCK / 2; i++)
                llmcy_interleave(LLMCY_BLOCK, line[top + i], line[top + i + LLMCY_BLOCK / 2],
                                 &moved[top + 2 * i], &moved[top + 2 * i + 1]);
        for (int i = 0; i < rows; i++) line[i] = moved[i];
    }
}

/* line[c][r] = line[r][c] */
LLMCY_INLINE void llmcy_transpose_square(llmcy_aligned_vec *line) {
    llmcy_aligned_vec moved[LLMCY_LANES];
    llmcy_transpose_blocks(LLMCY_LANES, line);
    for (int width = 1; width < LLMCY_BLOCKS; width *= 2) {
        for (int i = 0; i < LLMCY_LANES / 2; i++) {
            int from = i / LLMCY_BLOCK * 2 * LLMCY_BLOCK + i % LLMCY_BLOCK;
            llmcy_part_blocks(line[from], line[from + LLMCY_BLOCK], &moved[i],
                              &moved[i + LLMCY_LANES / 2]);
        }
        for (int i = 0; i < LLMCY_LANES; i++) line[i] = moved[i];
    }
}

/* As llmcy_transpose_square of `rows` lines, a power of two of them below LANES: one after the other
 * the vectors hold rows x LANES numbers, column after column. */
LLMCY_INLINE void llmcy_transpose_lines(int rows, llmcy_aligned_vec *line) {
    llmcy_aligned_vec moved[LLMCY_MOST_LINES];
    if (rows == 2 * LLMCY_BLOCK && LLMCY_BLOCKS == 4) {
        llmcy_transpose_blocks(rows, line);
        /* columns c and c + 1 of both groups of lines take turns in blocks */
        for (int pair = 0; pair < LLMCY_BLOCK; pair += 2) {
            llmcy_aligned_vec even[2], odd[2];
            llmcy_part_blocks(line[pair], line[pair + LLMCY_BLOCK], &even[0], &odd[0]);
            llmcy_part_blocks(line[pair + 1], line[pair + 1 + LLMCY_BLOCK], &even[1], &odd[1]);
            llmcy_part_blocks(even[0], even[1], &moved[pair / 2], &moved[pair / 2 + LLMCY_BLOCK]);
            llmcy_part_blocks(odd[0], odd[1], &moved[pair / 2 + LLMCY_BLOCK / 2],
                              &moved[pair / 2 + 3 * LLMCY_BLOCK / 2]);
        }
        for (int i = 0; i < rows; i++) line[i] = moved[i];
        return;
    }
    /* Moving the top bit of a line's number to the end of an element's place, once for each bit. */
    for (int width = 1; width < rows; width *= 2) {
        for (int i = 0; i < rows / 2; i++)
            llmcy_interleave(LLMCY_LANES, line[i], line[i + rows / 2], &moved[2 * i],
                             &moved[2 * i + 1]);
        for (int i = 0; i < rows; i++) line[i] = moved[i];
    }
}

/* flat[c * rows + r] = x[r * stride + c] for VEC_LANES columns; `rows` is a power of two, at most
 * LLMCY_MOST_LINES, and the number of vectors of `flat`. */
LLMCY_INLINE void llmcy_transpose_rows(int rows, const llmcy_real *x, ptrdiff_t stride,
                                       llmcy_vec *flat) {
    llmcy_aligned_vec line[LLMCY_MOST_LINES];
    for (int r = 0; r < rows; r++) line[r] = (llmcy_aligned_vec)llmcy_vec_load(x + r * stride);
    if (rows == LLMCY_LANES) llmcy_transpose_square(line);
    else llmcy_transpose_lines(rows, line);
    for (int r = 0; r < rows; r++) flat[r] = (llmcy_vec)line[r];
}

/* columns[c][r] = x[r * stride + c] */
LLMCY_INLINE void llmcy_transpose(const llmcy_real *x, ptrdiff_t stride, llmcy_vec *columns) {
    llmcy_transpose_rows(LLMCY_LANES, x, stride, columns);
}

/* The same to memory: `rows` lines of x, in vectors out_step apart; the lines from `ahead` on are
 * asked for.  Functions of their own: inlined, the pointers to all lines are kept and spilled. */
LLMCY_INLINE void llmcy_transpose_to(int rows, const llmcy_real *x, ptrdiff_t stride,
                                     const llmcy_real *ahead, llmcy_real *out, ptrdiff_t out_step) {
    llmcy_vec flat[LLMCY_MOST_LINES];
    for (int r = 0; r < rows; r++) __builtin_prefetch(ahead + r * stride);
    llmcy_transpose_rows(rows, x, stride, flat);
    for (int r = 0; r < rows; r++) llmcy_vec_store(out + r * out_step, flat[r]);
}
static __attribute__((noinline, unused)) void
llmcy_square_to(const llmcy_real *x, ptrdiff_t stride, const llmcy_real *ahead, llmcy_real *out,
                ptrdiff_t out_step) {
    llmcy_transpose_to(LLMCY_LANES, x, stride, ahead, out, out_step);
}
static __attribute__((noinline, unused)) void
llmcy_tile_rows_to(const llmcy_real *x, ptrdiff_t stride, const llmcy_real *ahead,
                   llmcy_real *out) {
#if (LLMCY_TILE_ROWS & (LLMCY_TILE_ROWS - 1)) == 0
    llmcy_transpose_to(LLMCY_TILE_ROWS, x, stride, ahead, out, LLMCY_LANES);
#endif
}
#endif
