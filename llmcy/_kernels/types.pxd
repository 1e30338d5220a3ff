# The scalar type of a build and the few operations whose rounding the contract fixes.
#
# A kernel source is compiled once with LLMCY_F32 undefined (real = double) and once with it
# defined (real = float).  Legend used in all kernels: B rows, T positions, D d_model, H heads,
# Dh head_dim, F d_ff, V vocab_size; matrices m, n, k.

cdef extern from "llmcy_types.h" nogil:
    ctypedef double real "llmcy_real"          # float in the f32 builds
    ctypedef double vec "llmcy_vec"            # VEC_LANES reals, loadable from any address
    ctypedef long long i64 "int64_t"
    ctypedef unsigned long long u64 "uint64_t"
    ctypedef unsigned int u32 "uint32_t"
    ctypedef unsigned char u8 "uint8_t"
    enum:
        IS_F32 "LLMCY_IS_F32"                  # compile-time 0 or 1
        VEC_LANES "LLMCY_VEC_LANES"
        TILE_ROWS "LLMCY_TILE_ROWS"            # micro-kernel tile: rows x (vectors * lanes)
        TILE_VECTORS "LLMCY_TILE_VECTORS"
        WIDE_ROWS "LLMCY_WIDE_ROWS"            # rows of a tile twice as wide; 0: there is none
        NPY_REAL "LLMCY_NPY_REAL"              # numpy type number of `real`

    # acc + a*b: two roundings in binary64 (numerics contract, section 1), one in binary32
    # (contract for float32, rule 1), whatever the processor offers.
    real mul_add "llmcy_mul_add"(real a, real b, real acc)
    vec vec_mul_add "llmcy_vec_mul_add"(real a, vec b, vec acc)
    vec vec_load "llmcy_vec_load"(const real* address)
    void vec_store "llmcy_vec_store"(real* address, vec value)
    vec vec_zero "llmcy_vec_zero"()

    # correctly rounded by IEEE 754 on every processor
    double sqrt "__builtin_sqrt"(double x)
    float sqrtf "__builtin_sqrtf"(float x)
    double fabs "__builtin_fabs"(double x)

    # +0 for either zero, else x (the contract's zero())
    real zero "llmcy_zero"(real x)

    bint is_finite "llmcy_is_finite"(double x)
    bint is_finite_real "llmcy_is_finite_real"(real x)
    u64 bits_of "llmcy_bits"(double x)
    double from_bits "llmcy_from_bits"(u64 bits)
