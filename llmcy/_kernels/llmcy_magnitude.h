/* The largest magnitude among n numbers, found by comparing bit patterns: without the sign they are
 * in the order of the magnitudes, with infinity and NaN above all numbers. */
#ifndef LLMCY_MAGNITUDE_H
#define LLMCY_MAGNITUDE_H
#include "llmcy_types.h"

#ifdef LLMCY_F32
typedef int32_t llmcy_pattern;
#define LLMCY_MAGNITUDE ((llmcy_pattern)0x7fffffff)
#else
typedef int64_t llmcy_pattern;
#define LLMCY_MAGNITUDE ((llmcy_pattern)0x7fffffffffffffffLL)
#endif

typedef struct {
    llmcy_pattern largest; /* magnitude */
    llmcy_pattern any;     /* all patterns joined by or: negative if any number is, -0 included */
} llmcy_survey;

static inline llmcy_survey llmcy_survey_of(const llmcy_real *x, ptrdiff_t n) {
    llmcy_pattern largest = 0, any = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        llmcy_pattern bits, magnitude;
        memcpy(&bits, x + i, sizeof bits);
        magnitude = bits & LLMCY_MAGNITUDE;
        any |= bits;
        largest = magnitude > largest ? magnitude : largest;
    }
    return (llmcy_survey){largest, any};
}

/* Let `to` cover what `found` covers; several threads may do so at once. */
static inline void llmcy_survey_join(llmcy_survey *to, llmcy_survey found) {
    llmcy_pattern seen = __atomic_load_n(&to->largest, __ATOMIC_RELAXED);
    while (found.largest > seen &&
           !__atomic_compare_exchange_n(&to->largest, &seen, found.largest, 1, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
    __atomic_fetch_or(&to->any, found.any, __ATOMIC_RELAXED);
}

/* The magnitude as a number; a NaN or an infinity as infinity. */
static inline double llmcy_survey_largest(llmcy_survey s) {
    llmcy_real x;
    memcpy(&x, &s.largest, sizeof x);
    return llmcy_is_finite_real(x) ? (double)x : (double)__builtin_inf();
}
static inline int llmcy_survey_negative(llmcy_survey s) { return s.any < 0; }
#endif
