/* The scalar type of one build, its vector type, and the multiply-add of the contract. */
#ifndef LLMCY_TYPES_H
#define LLMCY_TYPES_H
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifdef LLMCY_F32
typedef float llmcy_real;
#define LLMCY_IS_F32 1
#define LLMCY_NPY_REAL 11 /* NPY_FLOAT */
#else
typedef double llmcy_real;
#define LLMCY_IS_F32 0
#define LLMCY_NPY_REAL 12 /* NPY_DOUBLE */
#endif

/* Vector width and micro-kernel tile of each instruction set (docs/kernels.md says how chosen). */
#if defined(__AVX512F__)
#define LLMCY_VEC_BYTES 64
#define LLMCY_TILE_ROWS 8
#define LLMCY_TILE_VECTORS 2
#define LLMCY_WIDE_ROWS 6 /* of a tile of twice as many vectors, where registers suffice for one */
#elif defined(__AVX2__)
#define LLMCY_VEC_BYTES 32
#define LLMCY_TILE_ROWS 6
#define LLMCY_TILE_VECTORS 2
#elif defined(__aarch64__)
#define LLMCY_VEC_BYTES 16
#define LLMCY_TILE_ROWS 6
#define LLMCY_TILE_VECTORS 4
#else
#define LLMCY_VEC_BYTES 16
#define LLMCY_TILE_ROWS 4
#define LLMCY_TILE_VECTORS 2
#endif
#ifndef LLMCY_WIDE_ROWS
#define LLMCY_WIDE_ROWS 0
#endif
#define LLMCY_VEC_LANES ((int)(LLMCY_VEC_BYTES / sizeof(llmcy_real)))

#define LLMCY_INLINE static inline __attribute__((always_inline, unused))

/* Before a loop over vectors that must live in registers: unrolled before the compiler decides what
 * does. */
#if defined(__clang__)
#define LLMCY_UNROLLED _Pragma("unroll")
#elif defined(__GNUC__)
#define LLMCY_UNROLLED _Pragma("GCC unroll 32")
#else
#define LLMCY_UNROLLED
#endif

/* element alignment: loads and stores work at any address of an array */
typedef llmcy_real llmcy_vec
    __attribute__((vector_size(LLMCY_VEC_BYTES), aligned(sizeof(llmcy_real)), may_alias));

LLMCY_INLINE uint64_t llmcy_bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
LLMCY_INLINE double llmcy_from_bits(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }
LLMCY_INLINE int llmcy_is_finite(double x) {
    return (llmcy_bits(x) & 0x7ff0000000000000ULL) != 0x7ff0000000000000ULL;
}
LLMCY_INLINE int llmcy_is_finite_real(llmcy_real x) { return llmcy_is_finite((double)x); }
LLMCY_INLINE llmcy_real llmcy_zero(llmcy_real x) { return x == 0 ? (llmcy_real)0 : x; }

LLMCY_INLINE llmcy_vec llmcy_vec_load(const llmcy_real *p) { return *(const llmcy_vec *)p; }
LLMCY_INLINE void llmcy_vec_store(llmcy_real *p, llmcy_vec v) { *(llmcy_vec *)p = v; }
LLMCY_INLINE llmcy_vec llmcy_vec_zero(void) { llmcy_vec v = {0}; return v; }

#if LLMCY_IS_F32
#if defined(__FMA__) || defined(__aarch64__)
LLMCY_INLINE float llmcy_mul_add(float a, float b, float acc) { return __builtin_fmaf(a, b, acc); }
#else
/* Without a fused instruction: the product of two binary32 numbers is exact in binary64.  Adding
 * acc there and rounding the sum to odd leaves enough bits that the final rounding to binary32 is
 * the fused one (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums"). */
LLMCY_INLINE float llmcy_mul_add(float a, float b, float acc) {
    double p = (double)a * (double)b, c = (double)acc;
    double s = p + c;
    double t = s - p;
    double error = (p - (s - t)) + (c - t); /* exact: two-sum */
    uint64_t bits = llmcy_bits(s);
    /* toward the error: away from zero when error and sum agree in sign */
    uint64_t step = ((llmcy_bits(error) ^ bits) >> 63) ? (uint64_t)-1 : 1;
    uint64_t odd = bits + step;
    int inexact = error != 0.0 && llmcy_is_finite(s) && !(bits & 1);
    return (float)llmcy_from_bits(inexact ? odd : bits);
}
#endif
#else
LLMCY_INLINE double llmcy_mul_add(double a, double b, double acc) { return acc + a * b; }
#endif

#if LLMCY_IS_F32 && defined(__SSE2__) && !defined(__FMA__)
/* s = p + c, rounded to odd instead of to nearest: cut toward zero, then the last bit set if
 * anything was cut off.  Both lanes at once, same as in llmcy_mul_add. */
LLMCY_INLINE __m128d llmcy_to_odd(__m128d p, __m128d c, __m128d s) {
    __m128d t = _mm_sub_pd(s, p);
    __m128d error = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(s, t)), _mm_sub_pd(c, t));
    __m128d none = _mm_setzero_pd(); /* a NaN compares false both ways: infinities stay */
    __m128i inexact = _mm_castpd_si128(
        _mm_or_pd(_mm_cmplt_pd(error, none), _mm_cmpgt_pd(error, none)));
    __m128i bits = _mm_castpd_si128(s);
    __m128i beyond = _mm_srli_epi64(_mm_xor_si128(_mm_castpd_si128(error), bits), 63);
    bits = _mm_sub_epi64(bits, _mm_and_si128(beyond, inexact));
    bits = _mm_or_si128(bits, _mm_srli_epi64(inexact, 63));
    return _mm_castsi128_pd(bits);
}
#endif

LLMCY_INLINE llmcy_vec llmcy_vec_mul_add(llmcy_real a, llmcy_vec b, llmcy_vec acc) {
#if !LLMCY_IS_F32
    return acc + a * b;
#elif defined(__AVX512F__)
    return (llmcy_vec)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, (__m512)acc);
#elif defined(__AVX2__)
    return (llmcy_vec)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)acc);
#elif defined(__SSE2__)
    __m128d x = _mm_set1_pd((double)a);
    __m128d p0 = _mm_mul_pd(x, _mm_cvtps_pd((__m128)b));
    __m128d p1 = _mm_mul_pd(x, _mm_cvtps_pd(_mm_movehl_ps((__m128)b, (__m128)b)));
    __m128d c0 = _mm_cvtps_pd((__m128)acc);
    __m128d c1 = _mm_cvtps_pd(_mm_movehl_ps((__m128)acc, (__m128)acc));
    __m128d s0 = _mm_add_pd(p0, c0), s1 = _mm_add_pd(p1, c1);
    /* The second rounding can only go wrong on a boundary between two binary32 numbers, whose low
     * 28 bits are zero; everything else is on the same side of it as the exact sum. */
    __m128i low = _mm_castps_si128(
        _mm_shuffle_ps(_mm_castpd_ps(s0), _mm_castpd_ps(s1), _MM_SHUFFLE(2, 0, 2, 0)));
    __m128i doubt = _mm_cmpeq_epi32(_mm_slli_epi32(low, 4), _mm_setzero_si128());
    if (__builtin_expect(_mm_movemask_epi8(doubt), 0)) {
        s0 = llmcy_to_odd(p0, c0, s0);
        s1 = llmcy_to_odd(p1, c1, s1);
    }
    return (llmcy_vec)_mm_movelh_ps(_mm_cvtpd_ps(s0), _mm_cvtpd_ps(s1));
#else
    llmcy_vec r;
    for (int lane = 0; lane < LLMCY_VEC_LANES; lane++) r[lane] = llmcy_mul_add(a, b[lane], acc[lane]);
    return r;
#endif
}
#endif
