"""Which instruction sets this processor and operating system offer."""

cdef extern from *:
    """
    #if defined(__x86_64__)
    static int llmcy_has(int level) {
        __builtin_cpu_init();
        int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
            && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
        if (level == 1) return avx2;
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
            && __builtin_cpu_supports("avx512cd");
    }
    #define LLMCY_FAMILY 1
    #elif defined(__aarch64__)
    static int llmcy_has(int level) { (void)level; return 0; }
    #define LLMCY_FAMILY 2
    #else
    static int llmcy_has(int level) { (void)level; return 0; }
    #define LLMCY_FAMILY 0
    #endif
    """
    bint llmcy_has(int level)
    enum:
        LLMCY_FAMILY


def supported_isas():
    """Names of the instruction sets that can run here, weakest first."""
    if LLMCY_FAMILY == 2:
        return ("neon",)
    if LLMCY_FAMILY == 0:
        return ("generic",)
    names = ["sse2"]
    if llmcy_has(1):
        names.append("avx2")
    if llmcy_has(2):
        names.append("avx512")
    return tuple(names)
