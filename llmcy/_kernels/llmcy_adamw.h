/* The loop of the AdamW update (adamw.pyx has the formula, line by line).
 *
 * Results may go where the old values are: an element depends on the elements of its own index
 * alone, which Cython has no way to say, and without which nothing here becomes vector code.
 */
#ifndef LLMCY_ADAMW_H
#define LLMCY_ADAMW_H
#include <math.h>
#include <stddef.h>
#include "llmcy_adamw_staggered.h"
#include "llmcy_types.h"

#if defined(__clang__)
#define LLMCY_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define LLMCY_INDEPENDENT _Pragma("GCC ivdep")
#else
#define LLMCY_INDEPENDENT
#endif

/* Negative for infinities and NaN alone.  The smallest exponent is added to the magnitude: that
 * reaches the sign bit from the largest exponent only, and needs no comparison of 64-bit integers,
 * for which SSE2 has no instruction. */
LLMCY_INLINE int64_t llmcy_overflow(double x) {
    return (int64_t)((llmcy_bits(x) & 0x7fffffffffffffffULL) + 0x0010000000000000ULL);
}
#if LLMCY_IS_F32
typedef int32_t llmcy_sign;
LLMCY_INLINE llmcy_sign llmcy_overflow_real(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (llmcy_sign)((bits & 0x7fffffffu) + 0x00800000u);
}
#else
typedef int64_t llmcy_sign;
LLMCY_INLINE llmcy_sign llmcy_overflow_real(double x) { return llmcy_overflow(x); }
#endif

/* `divided`: whether the divisor is another than 1, whose quotient is the gradient.
 * `quick`: v is divided without the divider, which is what bounds the loop.  (To spare it m as well
 * takes as many instructions as it saves time.)
 * `checked`: whether somebody asks if everything is finite. */
LLMCY_INLINE int llmcy_adamw_loop(const llmcy_adamw_rule *given, int divided, int quick, int checked,
                                  const llmcy_real *param, const llmcy_real *grad,
                                  const llmcy_real *first, const llmcy_real *second,
                                  llmcy_real *new_param, llmcy_real *new_first,
                                  llmcy_real *new_second, ptrdiff_t n) {
    const llmcy_adamw_rule rule = *given;
    const llmcy_divisor c2 = llmcy_divisor_of(rule.c2);
    llmcy_sign stored = 0;
    int64_t inner = 0;
    LLMCY_INDEPENDENT for (ptrdiff_t i = 0; i < n; i++) {
        double g = (double)grad[i], p = (double)param[i];
        if (divided) g = g / rule.divisor;
        g = g * rule.multiplier;
        double m = rule.beta1 * (double)first[i] + rule.one_minus_beta1 * g;
        double v = rule.beta2 * (double)second[i] + rule.one_minus_beta2 * (g * g);
        double vh = quick ? llmcy_quotient(v, c2) : v / rule.c2;
        double step = rule.lr * ((m / rule.c1) / (sqrt(vh) + rule.eps));
        llmcy_real next = (llmcy_real)((p - step) - rule.decay * p);
        llmcy_real next_m = (llmcy_real)m, next_v = (llmcy_real)v;
        if (checked) {
            /* A line that is not finite shows in one of these four: all others reach p' or v',
             * except that an infinite vh would hide in a direction of zero.  Where division is quick,
             * vh is infinite only with v. */
            if (!quick) inner |= llmcy_overflow(vh);
            stored |= llmcy_overflow_real(next) | llmcy_overflow_real(next_m) |
                      llmcy_overflow_real(next_v);
        }
        new_param[i] = next;
        new_first[i] = next_m;
        new_second[i] = next_v;
    }
    return inner < 0 || stored < 0;
}

/* New values of n elements; whether any line of any of them is not finite, or 0 if none is known to
 * be. */
static int llmcy_adamw_update(const llmcy_adamw_rule *rule, int known_finite,
                              const llmcy_real *param, const llmcy_real *grad,
                              const llmcy_real *first, const llmcy_real *second,
                              llmcy_real *new_param, llmcy_real *new_first,
                              llmcy_real *new_second, ptrdiff_t n) {
#define LLMCY_UPDATE(divided, quick, checked)                                                      \
    llmcy_adamw_loop(rule, divided, quick, checked, param, grad, first, second, new_param,          \
                     new_first, new_second, n)
    int bad = 0;
    if (!llmcy_divides_quickly(rule))
        return rule->divisor == 1.0 ? LLMCY_UPDATE(0, 0, 1) : LLMCY_UPDATE(1, 0, 1);
#if LLMCY_STAGGERED
#define LLMCY_UPDATE_MOST(seen)                                                                    \
    llmcy_adamw_staggered(rule, param, grad, first, second, new_param, new_first, new_second, n,    \
                          seen)
    llmcy_seen seen = {{0}};
    ptrdiff_t done = known_finite ? LLMCY_UPDATE_MOST(NULL) : LLMCY_UPDATE_MOST(&seen);
    bad = llmcy_saw_non_finite(seen);
    param += done, grad += done, first += done, second += done;
    new_param += done, new_first += done, new_second += done, n -= done;
#undef LLMCY_UPDATE_MOST
#endif
    return bad | (known_finite ? LLMCY_UPDATE(0, 1, 0) : LLMCY_UPDATE(0, 1, 1));
#undef LLMCY_UPDATE
}
#endif
