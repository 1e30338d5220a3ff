/* The numbers of one AdamW update, and division by those that divide every element. */
#ifndef LLMCY_ADAMW_RULE_H
#define LLMCY_ADAMW_RULE_H
#include "llmcy_types.h"
#include <stddef.h>

typedef struct {
    double beta1, beta2, c1, c2, lr, eps, weight_decay, divisor, multiplier;
    double one_minus_beta1, one_minus_beta2, decay; /* derived: lr * weight_decay */
} llmcy_adamw_rule;

/* To be called within a chunk of work, whose rounding mode is known, if bits depend on it. */
LLMCY_INLINE llmcy_adamw_rule llmcy_with_derived(const llmcy_adamw_rule *given) {
    llmcy_adamw_rule rule = *given;
    rule.one_minus_beta1 = 1.0 - rule.beta1;
    rule.one_minus_beta2 = 1.0 - rule.beta2;
    rule.decay = rule.lr * rule.weight_decay;
    return rule;
}

/* Division by one number again and again: with h = RN(1 / c) and l = RN(1 / c - h), x * (h + l)
 * differs from x / c by 2**-104 of it before it is rounded, so q is one of the two neighbours of x / c.
 * The remainder x - q * c is then exact, and one more step in its direction rounds correctly
 * (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990).
 * That holds for x = 0, and where neither x nor the remainder comes near the limits of the exponent.
 * From an infinity or a NaN comes a NaN. */
#if LLMCY_IS_F32 && (defined(__FMA__) || defined(__aarch64__))
#define LLMCY_QUICK_DIVISION 1
#else
#define LLMCY_QUICK_DIVISION 0 /* float64 can be too small, and without an instruction it is slow */
#endif
typedef struct { double c, h, l; } llmcy_divisor;

LLMCY_INLINE llmcy_divisor llmcy_divisor_of(double c) {
    double h = 1.0 / c;
#if LLMCY_QUICK_DIVISION
    return (llmcy_divisor){c, h, __builtin_fma(-c, h, 1.0) / c};
#else
    return (llmcy_divisor){c, h, 0.0};
#endif
}
LLMCY_INLINE double llmcy_quotient(double x, llmcy_divisor by) {
#if LLMCY_QUICK_DIVISION
    double q = __builtin_fma(x, by.h, x * by.l);
    return __builtin_fma(__builtin_fma(-q, by.c, x), by.h, q);
#else
    return x / by.c;
#endif
}

/* Whether that holds for all m and v of float32: elements are 0 or at least 2**-149, and sums of two
 * products of theirs are 0 or at least 2**-53 of the smaller one. */
LLMCY_INLINE int llmcy_is_moderate(double x) { return x == 0.0 || (x >= 1e-60 && x <= 1e60); }
LLMCY_INLINE int llmcy_divides_quickly(const llmcy_adamw_rule *rule) {
    return LLMCY_QUICK_DIVISION && rule->divisor == 1.0 && llmcy_is_moderate(rule->multiplier) &&
           llmcy_is_moderate(rule->beta1) && llmcy_is_moderate(rule->one_minus_beta1) &&
           llmcy_is_moderate(rule->beta2) && llmcy_is_moderate(rule->one_minus_beta2) &&
           rule->c1 > 0.0 && llmcy_is_moderate(rule->c1) &&
           rule->c2 > 0.0 && llmcy_is_moderate(rule->c2);
}
#endif
