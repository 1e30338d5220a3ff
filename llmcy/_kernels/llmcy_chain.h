/* A chain of additions, sum = ((sum + x[0]) + x[1]) + ..., each rounded to binary64, side by side.
 *
 * While the sum stays in [c, 2 c), c a power of two, all its values are multiples of u = ulp(c),
 * and an addition does nothing but round its term to one: RN(sum + x) = sum + r(x).  r(x) depends
 * on the sum only if x lies exactly between two multiples, where the even one of the results is
 * taken.  Since c itself is an even multiple, r(x) = (x + c) - c for 0 <= x <= c.  Multiples of u
 * below 2 c are added exactly, in any order; so the sum at the end is that of the chain.
 */
#ifndef LLMCY_CHAIN_H
#define LLMCY_CHAIN_H
#include "llmcy_types.h"

enum { LLMCY_DOUBLES = LLMCY_VEC_BYTES / 8 };
typedef double llmcy_doubles __attribute__((vector_size(LLMCY_VEC_BYTES), aligned(8), may_alias));
typedef int64_t llmcy_masks __attribute__((vector_size(LLMCY_VEC_BYTES), aligned(8), may_alias));

/* Adds the terms (|g[i]| / top)**2 to a sum of at least 1, one after the other; n is a multiple of
 * DOUBLES.  0, and nothing has changed, if an element is above top > 0, if a term lies between two
 * multiples, or if the sum would reach 2 c (as that of a NaN does). */
static int llmcy_add_scaled_squares(const double *g, ptrdiff_t n, double top, double *sum) {
    const double c = llmcy_from_bits(llmcy_bits(*sum) & 0x7ff0000000000000ULL);
    const double half = c * 0x1p-53; /* u / 2 */
    const llmcy_masks magnitude = (llmcy_masks){0} + 0x7fffffffffffffffLL;
    llmcy_doubles total = {0};
    llmcy_masks refused = {0};
    for (ptrdiff_t i = 0; i < n; i += LLMCY_DOUBLES) {
        llmcy_doubles a = (llmcy_doubles)(*(const llmcy_masks *)(g + i) & magnitude);
        llmcy_doubles ratio = a / top, term = ratio * ratio;
        llmcy_doubles rounded = (term + c) - c, rest = term - rounded;
        refused |= (llmcy_masks)(a > top);
        refused |= (llmcy_masks)((llmcy_doubles)((llmcy_masks)rest & magnitude) == half);
        total += rounded;
    }
    double end = 0.0;
    int64_t any = 0;
    for (int lane = 0; lane < LLMCY_DOUBLES; lane++) {
        end += total[lane];
        any |= refused[lane];
    }
    end += *sum;
    if (any || !(end < 2.0 * c)) return 0;
    *sum = end;
    return 1;
}
#endif
