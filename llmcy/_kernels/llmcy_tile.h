/* The pieces of a tile (tile.pxd): loops over its rows and vectors that must be unrolled before the
 * compiler decides what lives in registers.  Left to itself GCC unrolls them later, and every tile
 * then passes through the stack on its way in and out: a tenth of the time of a small product.
 * Cython has no word for the pragma, hence C.
 */
#ifndef LLMCY_TILE_H
#define LLMCY_TILE_H
#include <stddef.h>
#include "llmcy_types.h"

/* Two steps of k to a turn of the loop, where there are 32 registers: with 16 GCC loads what several
 * steps need ahead of time and puts sums on the stack for it (AVX2, float32: half as fast).  With four
 * it does so with 32, and the processor recognises no stride in loads that only every fourth step does
 * (docs/kernels.md). */
#if !defined(__AVX512F__) && !defined(__aarch64__)
#define LLMCY_UNROLLED_STEPS
#elif defined(__clang__)
#define LLMCY_UNROLLED_STEPS _Pragma("unroll 2")
#elif defined(__GNUC__)
#define LLMCY_UNROLLED_STEPS _Pragma("GCC unroll 2")
#else
#define LLMCY_UNROLLED_STEPS
#endif

/* The compiler learns nothing about where an address comes from.  It would else work out all addresses
 * of C before the loop over k, where the registers are needed. */
#if defined(__GNUC__)
#define LLMCY_FROM_HERE_ON(address) __asm__("" : "+r"(address))
#else
#define LLMCY_FROM_HERE_ON(address) ((void)0)
#endif

/* Tiles that all but fill the registers (strip.pxd).  Their loops need less of the compiler, and more of
 * what it does shows between two tiles. */
#define LLMCY_IS_WIDE(vectors) ((vectors) > LLMCY_TILE_VECTORS)

/* +0, in a register cleared for it.  GCC would clear one and copy it into the others, which a tile that
 * begins has to wait for. */
#if defined(__GNUC__) && defined(__AVX512VL__)
#define LLMCY_CLEAR(x) __asm__ __volatile__("vpxord %x0, %x0, %x0" : "=v"(x))
#else
#define LLMCY_CLEAR(x) ((x) = llmcy_vec_zero())
#endif

/* The first `lanes` of a vector, 0 to all of them; the other lanes are loaded as +0, not stored. */
#if defined(__AVX512F__) && LLMCY_IS_F32
LLMCY_INLINE llmcy_vec llmcy_vec_load_part(const llmcy_real *p, int lanes) {
    return (llmcy_vec)_mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1), p);
}
LLMCY_INLINE void llmcy_vec_store_part(llmcy_real *p, llmcy_vec v, int lanes) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << lanes) - 1), (__m512)v);
}
#elif defined(__AVX512F__)
LLMCY_INLINE llmcy_vec llmcy_vec_load_part(const llmcy_real *p, int lanes) {
    return (llmcy_vec)_mm512_maskz_loadu_pd((__mmask8)((1u << lanes) - 1), p);
}
LLMCY_INLINE void llmcy_vec_store_part(llmcy_real *p, llmcy_vec v, int lanes) {
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << lanes) - 1), (__m512d)v);
}
#else
LLMCY_INLINE llmcy_vec llmcy_vec_load_part(const llmcy_real *p, int lanes) {
    llmcy_real edge[LLMCY_VEC_LANES] = {0};
    for (int lane = 0; lane < lanes; lane++) edge[lane] = p[lane];
    return llmcy_vec_load(edge);
}
LLMCY_INLINE void llmcy_vec_store_part(llmcy_real *p, llmcy_vec v, int lanes) {
    llmcy_real edge[LLMCY_VEC_LANES];
    llmcy_vec_store(edge, v);
    for (int lane = 0; lane < lanes; lane++) p[lane] = edge[lane];
}
#endif

/* `acc` holds rows x vectors; `lanes` is the number of columns in the last vector if `part` is set. */
LLMCY_INLINE void llmcy_tile_zero(int size, llmcy_vec *acc) {
    LLMCY_UNROLLED for (int i = 0; i < size; i++) {
        if (size > LLMCY_TILE_ROWS * LLMCY_TILE_VECTORS) LLMCY_CLEAR(acc[i]);
        else acc[i] = llmcy_vec_zero();
    }
}

LLMCY_INLINE void llmcy_tile_add(int size, llmcy_vec *acc, const llmcy_vec *more) {
    LLMCY_UNROLLED for (int i = 0; i < size; i++) acc[i] = acc[i] + more[i];
}

LLMCY_INLINE void llmcy_tile_load(int rows, int vectors, int part, int lanes, const llmcy_real *c,
                                  ptrdiff_t c_row, llmcy_vec *acc) {
    LLMCY_UNROLLED for (int i = 0; i < rows; i++) {
        const llmcy_real *row = c + i * c_row;
        LLMCY_UNROLLED for (int v = 0; v < vectors; v++)
            acc[i * vectors + v] = part && v == vectors - 1
                ? llmcy_vec_load_part(row + v * LLMCY_VEC_LANES, lanes)
                : llmcy_vec_load(row + v * LLMCY_VEC_LANES);
    }
}

/* C = acc, or with `add` C = C + acc.  A fused chain whose products were all too small for binary32
 * can be -0: +0 is stored. */
LLMCY_INLINE void llmcy_tile_store(int rows, int vectors, int part, int lanes, const llmcy_vec *acc,
                                   llmcy_real *c, ptrdiff_t c_row, int add) {
    LLMCY_FROM_HERE_ON(c);
    LLMCY_UNROLLED for (int i = 0; i < rows; i++) {
        llmcy_real *row = c + i * c_row;
        if (LLMCY_IS_WIDE(vectors)) LLMCY_FROM_HERE_ON(row);
        LLMCY_UNROLLED for (int v = 0; v < vectors; v++) {
            llmcy_real *goal = row + v * LLMCY_VEC_LANES;
            llmcy_vec x = acc[i * vectors + v];
            int narrow = part && v == vectors - 1;
            if (add) x = (narrow ? llmcy_vec_load_part(goal, lanes) : llmcy_vec_load(goal)) + x;
            if (LLMCY_IS_F32) x = x + llmcy_vec_zero();
            if (narrow) llmcy_vec_store_part(goal, x, lanes);
            else llmcy_vec_store(goal, x);
        }
    }
}

/* Ask for the cache lines of a rectangle; an address outside the array does no harm. */
LLMCY_INLINE void llmcy_tile_prefetch(int rows, int vectors, const llmcy_real *c, ptrdiff_t c_row) {
    LLMCY_UNROLLED for (int i = 0; i < rows; i++)
        LLMCY_UNROLLED for (int v = 0; v < vectors; v++)
            __builtin_prefetch(c + i * c_row + v * LLMCY_VEC_LANES);
}

/* One k for the rows from `first` on. */
LLMCY_INLINE void llmcy_tile_step(int first, int rows, int vectors, const llmcy_real *a,
                                  ptrdiff_t a_row, const llmcy_real *b, llmcy_vec *acc) {
    llmcy_vec row[2 * LLMCY_TILE_VECTORS]; /* as wide as any tile */
    LLMCY_UNROLLED for (int v = 0; v < vectors; v++) row[v] = llmcy_vec_load(b + v * LLMCY_VEC_LANES);
    LLMCY_UNROLLED for (int i = 0; i < rows; i++)
        if (i >= first) {
            llmcy_real x = a[i * a_row];
            LLMCY_UNROLLED for (int v = 0; v < vectors; v++)
                acc[i * vectors + v] = llmcy_vec_mul_add(x, row[v], acc[i * vectors + v]);
        }
}

/* `depth` steps of k: two to a turn of the loop, but one where a step is long enough. */
LLMCY_INLINE void llmcy_tile_steps(int rows, int vectors, ptrdiff_t depth, const llmcy_real *a,
                                   ptrdiff_t a_row, ptrdiff_t a_col, const llmcy_real *b,
                                   ptrdiff_t b_row, llmcy_vec *acc) {
    if (LLMCY_IS_WIDE(vectors)) {
        for (ptrdiff_t k = 0; k < depth; k++)
            llmcy_tile_step(0, rows, vectors, a + k * a_col, a_row, b + k * b_row, acc);
        return;
    }
    LLMCY_UNROLLED_STEPS for (ptrdiff_t k = 0; k < depth; k++) {
        llmcy_tile_step(0, rows, vectors, a, a_row, b, acc);
        a += a_col;
        b += b_row;
    }
}
#endif
