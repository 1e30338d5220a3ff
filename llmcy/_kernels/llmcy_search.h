/* Is any of n numbers a NaN or an infinity?  x - x is +0 for every finite x and a NaN for the others,
 * so the bits of all differences, joined by or, are zero exactly when all numbers are finite. */
#ifndef LLMCY_SEARCH_H
#define LLMCY_SEARCH_H
#include "llmcy_types.h"

enum { LLMCY_SEARCH_UNROLL = 4 };

#ifdef LLMCY_F32
typedef uint32_t llmcy_bits_of_real;
#else
typedef uint64_t llmcy_bits_of_real;
#endif
typedef llmcy_bits_of_real llmcy_bits_vec
    __attribute__((vector_size(LLMCY_VEC_BYTES), aligned(sizeof(llmcy_real)), may_alias));

static inline int llmcy_any_non_finite(const llmcy_real *x, ptrdiff_t n) {
    llmcy_bits_vec bits[LLMCY_SEARCH_UNROLL] = {{0}};
    llmcy_bits_of_real all = 0;
    ptrdiff_t i = 0;
    for (; i + LLMCY_SEARCH_UNROLL * LLMCY_VEC_LANES <= n; i += LLMCY_SEARCH_UNROLL * LLMCY_VEC_LANES)
        for (int u = 0; u < LLMCY_SEARCH_UNROLL; u++) {
            llmcy_vec v = llmcy_vec_load(x + i + u * LLMCY_VEC_LANES);
            bits[u] |= (llmcy_bits_vec)(v - v);
        }
    for (int u = 1; u < LLMCY_SEARCH_UNROLL; u++) bits[0] |= bits[u];
    for (int lane = 0; lane < LLMCY_VEC_LANES; lane++) all |= bits[0][lane];
    for (; i < n; i++) all |= !llmcy_is_finite_real(x[i]);
    return (llmcy_bits_of_real)(all << 1) != 0; /* the sign aside: rounding down makes -0 */
}
#endif
