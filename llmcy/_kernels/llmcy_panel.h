/* One pass over a panel of packed columns (panels.pxd): `vectors` vectors of sums for each of `rows`
 * rows of a stay in registers while k runs, and the panel is read as one stream.
 *
 *     out[i, j] = fold over k of a[i, k] * b[k, j]     in ascending k, from +0
 *
 * The loops are unrolled by pragma for the reason told in llmcy_tile.h.
 */
#ifndef LLMCY_PANEL_H
#define LLMCY_PANEL_H
#include "llmcy_tile.h"

/* A panel is as wide on every instruction set, so what is packed can be read by all of them. */
enum {
    LLMCY_LINE = 64 / sizeof(llmcy_real),       /* columns of a cache line: widths are multiples */
    LLMCY_PANEL = 4 * LLMCY_LINE,               /* columns of a whole panel */
    LLMCY_AHEAD = 2048 / sizeof(llmcy_real),    /* how far ahead of the loads lines are asked for */
    LLMCY_LINE_VECTORS = 64 / LLMCY_VEC_BYTES
};

/* Vectors of a panel side by side, such that all sums fit the registers. */
#if LLMCY_VEC_BYTES == 64
#define LLMCY_PANEL_VECTORS(rows) 4
#elif LLMCY_VEC_BYTES == 32
#define LLMCY_PANEL_VECTORS(rows) ((rows) == 1 ? 8 : (rows) < 4 ? 4 : 2)
#elif defined(__aarch64__)
#define LLMCY_PANEL_VECTORS(rows) ((rows) < 3 ? 8 : 4)
#else
#define LLMCY_PANEL_VECTORS(rows) ((rows) < 3 ? 4 : 2)
#endif

LLMCY_INLINE void llmcy_panel_pass(int rows, int vectors, const llmcy_real *a, ptrdiff_t a_row,
                                   ptrdiff_t k, const llmcy_real *b, ptrdiff_t b_row,
                                   llmcy_real *out, ptrdiff_t out_row) {
    llmcy_vec acc[16];
    llmcy_tile_zero(rows * vectors, acc);
    LLMCY_UNROLLED_STEPS for (ptrdiff_t step = 0; step < k; step++) {
        LLMCY_UNROLLED for (int v = 0; v < vectors; v += LLMCY_LINE_VECTORS)
            __builtin_prefetch(b + LLMCY_AHEAD + v * LLMCY_VEC_LANES);
        LLMCY_UNROLLED for (int v = 0; v < vectors; v++) {
            llmcy_vec line = llmcy_vec_load(b + v * LLMCY_VEC_LANES);
            LLMCY_UNROLLED for (int i = 0; i < rows; i++)
                acc[i * vectors + v] = llmcy_vec_mul_add(a[i * a_row + step], line, acc[i * vectors + v]);
        }
        b += b_row;
    }
    llmcy_tile_store(rows, vectors, 0, 0, acc, out, out_row, 0);
}

/* `width` columns: a multiple of LLMCY_LINE, at most LLMCY_PANEL. */
LLMCY_INLINE void llmcy_panel_of(int rows, const llmcy_real *a, ptrdiff_t a_row, ptrdiff_t k,
                                 const llmcy_real *b, ptrdiff_t width, llmcy_real *out,
                                 ptrdiff_t out_row) {
    const int most = LLMCY_PANEL_VECTORS(rows);
    ptrdiff_t j = 0;
    for (; j + most * LLMCY_VEC_LANES <= width; j += most * LLMCY_VEC_LANES)
        llmcy_panel_pass(rows, most, a, a_row, k, b + j, width, out + j, out_row);
    if (most / 2 >= LLMCY_LINE_VECTORS && j + most / 2 * LLMCY_VEC_LANES <= width) {
        llmcy_panel_pass(rows, most / 2, a, a_row, k, b + j, width, out + j, out_row);
        j += most / 2 * LLMCY_VEC_LANES;
    }
    if (most / 4 >= LLMCY_LINE_VECTORS && j < width)
        llmcy_panel_pass(rows, most / 4, a, a_row, k, b + j, width, out + j, out_row);
}

static void llmcy_panel_product(int rows, const llmcy_real *a, ptrdiff_t a_row, ptrdiff_t k,
                                const llmcy_real *b, ptrdiff_t width, llmcy_real *out,
                                ptrdiff_t out_row) {
    if (rows == 1) llmcy_panel_of(1, a, a_row, k, b, width, out, out_row);
    else if (rows == 2) llmcy_panel_of(2, a, a_row, k, b, width, out, out_row);
    else if (rows == 3) llmcy_panel_of(3, a, a_row, k, b, width, out, out_row);
    else llmcy_panel_of(4, a, a_row, k, b, width, out, out_row);
}
#endif
