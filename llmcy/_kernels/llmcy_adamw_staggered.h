/* The AdamW update of binary32 numbers, eight elements at a time and in two stages (adamw.pyx has the
 * formula, line by line).
 *
 * The processor looks only so many instructions ahead: with one element's lines after the other the
 * divider waits for the moments of the next few.  Here an element's division comes LAG turns after
 * its root, and the divider has work all the time.  Both moments are divided without it.
 */
#ifndef LLMCY_ADAMW_STAGGERED_H
#define LLMCY_ADAMW_STAGGERED_H
#include "llmcy_adamw_rule.h"

#if LLMCY_IS_F32 && defined(__AVX512F__)
#define LLMCY_STAGGERED 1
enum {
    LLMCY_EIGHT = 8,
    LLMCY_LAG = 4,
    LLMCY_UPDATE_AHEAD = 768 /* elements between a turn and what it asks for */
};

typedef struct { __m512d c, h, l; } llmcy_eight_divisor;
typedef struct {
    __m512d beta1, beta2, one_minus_beta1, one_minus_beta2, lr, eps, decay, multiplier;
    llmcy_eight_divisor c1, c2;
} llmcy_eight_rule;
typedef struct { __m512d mh, root; } llmcy_waiting; /* between the stages */
typedef struct { __m256 first, second, param; } llmcy_seen; /* NaN where a result was not finite, or 0 */

LLMCY_INLINE llmcy_eight_divisor llmcy_eight_divisor_of(double c) {
    llmcy_divisor by = llmcy_divisor_of(c);
    return (llmcy_eight_divisor){_mm512_set1_pd(by.c), _mm512_set1_pd(by.h), _mm512_set1_pd(by.l)};
}

/* As llmcy_quotient, which makes +0 of -0. */
LLMCY_INLINE __m512d llmcy_eight_quotients(__m512d x, llmcy_eight_divisor by) {
    __m512d q = _mm512_fmadd_pd(x, by.h, x * by.l);
    return _mm512_fmadd_pd(_mm512_fnmadd_pd(q, by.c, x), by.h, q);
}
LLMCY_INLINE __m512d llmcy_with_sign_of(__m512d x, __m512d magnitudes) {
    const __m512i rest = _mm512_set1_epi64(0x7fffffffffffffffLL);
    /* 0xca: rest ? magnitudes : x, bit by bit */
    return (__m512d)_mm512_ternarylogic_epi64(rest, (__m512i)magnitudes, (__m512i)x, 0xca);
}
LLMCY_INLINE __m512d llmcy_eight_of(const float *x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }
LLMCY_INLINE __m256 llmcy_put_eight(float *x, __m512d v) {
    __m256 stored = _mm512_cvtpd_ps(v);
    _mm256_storeu_ps(x, stored);
    return stored;
}
/* x * 0 is a NaN for infinities and NaN, and nothing takes a NaN out of a sum. */
LLMCY_INLINE __m256 llmcy_see(__m256 seen, __m256 x) {
    return _mm256_fmadd_ps(x, _mm256_setzero_ps(), seen);
}
LLMCY_INLINE int llmcy_saw_non_finite(llmcy_seen seen) {
    __m256 all = seen.first + seen.second + seen.param;
    return _mm256_cmp_ps_mask(all, all, _CMP_UNORD_Q) != 0;
}

/* With `seen` a NULL, nobody asks whether results are finite. */
LLMCY_INLINE llmcy_waiting llmcy_first_stage(const llmcy_eight_rule *rule, const float *grad,
                                             const float *first, const float *second,
                                             float *new_first, float *new_second, llmcy_seen *seen) {
    __m512d g = llmcy_eight_of(grad) * rule->multiplier;
    __m512d m = rule->beta1 * llmcy_eight_of(first) + rule->one_minus_beta1 * g;
    __m512d v = rule->beta2 * llmcy_eight_of(second) + rule->one_minus_beta2 * (g * g);
    __m256 stored_m = llmcy_put_eight(new_first, m), stored_v = llmcy_put_eight(new_second, v);
    if (seen) {
        seen->first = llmcy_see(seen->first, stored_m);
        seen->second = llmcy_see(seen->second, stored_v);
    }
    return (llmcy_waiting){llmcy_with_sign_of(m, llmcy_eight_quotients(m, rule->c1)),
                           _mm512_sqrt_pd(llmcy_eight_quotients(v, rule->c2))};
}

LLMCY_INLINE void llmcy_second_stage(const llmcy_eight_rule *rule, llmcy_waiting of,
                                     const float *param, float *new_param, llmcy_seen *seen) {
    __m512d p = llmcy_eight_of(param);
    __m512d step = rule->lr * (of.mh / (of.root + rule->eps));
    __m256 stored = llmcy_put_eight(new_param, (p - step) - rule->decay * p);
    if (seen) seen->param = llmcy_see(seen->param, stored);
}

/* How many elements were updated: n, or the multiple of eight below it; none of a few. */
LLMCY_INLINE ptrdiff_t llmcy_adamw_staggered(const llmcy_adamw_rule *given, const float *param,
                                             const float *grad, const float *first,
                                             const float *second, float *new_param, float *new_first,
                                             float *new_second, ptrdiff_t n, llmcy_seen *seen) {
    const llmcy_eight_rule rule = {
        _mm512_set1_pd(given->beta1), _mm512_set1_pd(given->beta2),
        _mm512_set1_pd(given->one_minus_beta1), _mm512_set1_pd(given->one_minus_beta2),
        _mm512_set1_pd(given->lr), _mm512_set1_pd(given->eps), _mm512_set1_pd(given->decay),
        _mm512_set1_pd(given->multiplier), llmcy_eight_divisor_of(given->c1),
        llmcy_eight_divisor_of(given->c2),
    };
    const ptrdiff_t lag = LLMCY_LAG * LLMCY_EIGHT;
    llmcy_waiting waiting[LLMCY_LAG + 1];
    ptrdiff_t i = 0;
    if (n < lag) return 0;
    LLMCY_UNROLLED for (int k = 0; k < LLMCY_LAG; k++, i += LLMCY_EIGHT)
        waiting[k] = llmcy_first_stage(&rule, grad + i, first + i, second + i, new_first + i,
                                       new_second + i, seen);
    for (; i + LLMCY_EIGHT <= n; i += LLMCY_EIGHT) {
        __builtin_prefetch(grad + i + LLMCY_UPDATE_AHEAD);
        __builtin_prefetch(first + i + LLMCY_UPDATE_AHEAD);
        __builtin_prefetch(second + i + LLMCY_UPDATE_AHEAD);
        __builtin_prefetch(param + i + LLMCY_UPDATE_AHEAD);
        waiting[LLMCY_LAG] = llmcy_first_stage(&rule, grad + i, first + i, second + i,
                                               new_first + i, new_second + i, seen);
        llmcy_second_stage(&rule, waiting[0], param + i - lag, new_param + i - lag, seen);
        LLMCY_UNROLLED for (int k = 0; k < LLMCY_LAG; k++) waiting[k] = waiting[k + 1];
    }
    LLMCY_UNROLLED for (int k = 0; k < LLMCY_LAG; k++) {
        ptrdiff_t late = i - lag + k * LLMCY_EIGHT;
        llmcy_second_stage(&rule, waiting[k], param + late, new_param + late, seen);
    }
    return i;
}
#else
#define LLMCY_STAGGERED 0
#endif
#endif
