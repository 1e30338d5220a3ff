/* A small persistent pool of threads behind one call, llmcy_parallel_for.
 *
 * Why not OpenMP: its runtime hangs in a forked child and collapses beside busy neighbours.  Here
 * the caller works too and waits only for chunks that a worker has already claimed, so a worker
 * that the system has put aside costs nothing.  The partition of [0, n) depends on n, grain and
 * n_threads alone, and every chunk computes whole outputs, so no result depends on who ran it.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#define LLMCY_PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define LLMCY_PAUSE() __asm__ volatile("yield")
#else
#define LLMCY_PAUSE() ((void)0)
#endif

typedef void (*llmcy_chunk_fn)(void *ctx, ptrdiff_t lo, ptrdiff_t hi, char *scratch);

enum { LARGE_PAGE = 1 << 21, MAX_WORKERS = 255, SPINS_BEFORE_SLEEP = 20000, SPINS_BEFORE_YIELD = 2000 };
#define CLOSED 0xffffffffULL /* chunk index no job reaches: nothing to claim */

typedef struct { char *base; size_t size; } llmcy_arena;

static struct {
    _Alignas(64) _Atomic uint64_t ticket;  /* generation << 32 | next chunk to claim */
    _Alignas(64) _Atomic uint32_t finished; /* chunks of this generation that are done */
    _Atomic(llmcy_chunk_fn) fn;             /* the job; written while the ticket is CLOSED */
    _Atomic(void *) ctx;
    _Atomic ptrdiff_t n;
    _Atomic uint32_t n_chunks;
    _Atomic int n_helpers;                  /* workers that may take part: their scratch is there */
    _Alignas(64) pthread_mutex_t user;      /* one parallel region at a time */
    pthread_mutex_t sleep_lock;
    pthread_cond_t wake;
    _Atomic int sleepers;
    int n_workers;
    int fork_handler;
    llmcy_arena arenas[MAX_WORKERS];
} pool = {
    .ticket = CLOSED,
    .user = PTHREAD_MUTEX_INITIALIZER,
    .sleep_lock = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
};

/* When set, `grain` counts as 1: work too small to be worth a second thread is shared out all the
 * same.  Tests and the self test use it, since no result may depend on where the cuts are. */
static _Atomic int smallest_chunks;

static __thread int in_parallel_region; /* nested calls run on the calling thread */
static __thread llmcy_arena own_arena;  /* scratch of a thread that calls kernels */
static pthread_key_t arena_key;
static pthread_once_t arena_key_once = PTHREAD_ONCE_INIT;

/* ---- the processor's state (numerics contract, part two, section 5) ------------------------ */
#if defined(__x86_64__)
/* round to nearest, no flush to zero, no denormals-are-zero, all exceptions masked */
static inline unsigned fp_enter(void) {
    unsigned saved = _mm_getcsr();
    if ((saved & 0xffc0u) != 0x1f80u) _mm_setcsr(0x1f80u | (saved & 0x3fu));
    return saved;
}
static inline void fp_leave(unsigned saved) {
    if ((saved & 0xffc0u) != 0x1f80u) _mm_setcsr(saved);
}
#elif defined(__aarch64__)
static inline uint64_t fp_enter(void) {
    uint64_t saved, wanted = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    if (saved != wanted) __asm__ volatile("msr fpcr, %0" : : "r"(wanted));
    return saved;
}
static inline void fp_leave(uint64_t saved) {
    if (saved != 0) __asm__ volatile("msr fpcr, %0" : : "r"(saved));
}
#else
static inline int fp_enter(void) { return 0; }
static inline void fp_leave(int saved) { (void)saved; }
#endif

/* ---- scratch memory: grows on demand, kept for the life of its thread ----------------------
 *
 * Large scratch lies in large pages.  Packed panels are read again and again from a cache that finds
 * its lines by physical address: in small pages, wherever the system puts them, products took up to
 * 7 % more or less from one run to another. */
static int arena_reserve(llmcy_arena *arena, size_t size) {
    if (size <= arena->size) return 0;
    size_t unit = size < LARGE_PAGE / 4 ? 4096 : LARGE_PAGE;
    size = (size + unit - 1) / unit * unit;
    free(arena->base);
    arena->base = NULL;
    arena->size = 0;
    void *base = NULL;
    if (posix_memalign(&base, unit, size) != 0) return -1;
#if defined(MADV_HUGEPAGE)
    if (unit == LARGE_PAGE) madvise(base, size, MADV_HUGEPAGE);
#endif
    arena->base = base;
    arena->size = size;
    return 0;
}
static void arena_release(void *unused) {
    (void)unused;
    free(own_arena.base);
    own_arena.base = NULL;
    own_arena.size = 0;
}
static void make_arena_key(void) { pthread_key_create(&arena_key, arena_release); }

/* ---- chunks --------------------------------------------------------------------------------- */
/* Claim and run chunks of `generation` until none is left (worker -1 is the caller).  The fields of a job are replaced only
 * while the ticket is CLOSED under a newer generation, so a claim (compare-and-exchange on the
 * ticket) that succeeds proves that the fields read before it belong to this job. */
static void work_on(uint64_t generation, int worker, char *scratch) {
    for (;;) {
        uint64_t ticket = atomic_load_explicit(&pool.ticket, memory_order_acquire);
        uint64_t chunk = ticket & 0xffffffffULL;
        if (ticket >> 32 != generation || chunk == CLOSED) return;
        llmcy_chunk_fn fn = atomic_load_explicit(&pool.fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&pool.ctx, memory_order_relaxed);
        ptrdiff_t n = atomic_load_explicit(&pool.n, memory_order_relaxed);
        ptrdiff_t n_chunks = atomic_load_explicit(&pool.n_chunks, memory_order_relaxed);
        int n_helpers = atomic_load_explicit(&pool.n_helpers, memory_order_relaxed);
        if ((ptrdiff_t)chunk >= n_chunks || worker >= n_helpers) return;
        if (!atomic_compare_exchange_strong_explicit(&pool.ticket, &ticket, ticket + 1,
                                                     memory_order_acq_rel, memory_order_acquire))
            continue;
        ptrdiff_t size = n / n_chunks, extra = n % n_chunks, c = (ptrdiff_t)chunk;
        ptrdiff_t lo = size * c + (c < extra ? c : extra);
        ptrdiff_t hi = lo + size + (c < extra);
        unsigned long long fp = fp_enter();
        fn(ctx, lo, hi, scratch);
        fp_leave(fp);
        atomic_fetch_add_explicit(&pool.finished, 1, memory_order_release);
    }
}

static void *worker_main(void *index) {
    llmcy_arena *arena = &pool.arenas[(intptr_t)index];
    uint64_t seen = UINT64_MAX;
    in_parallel_region = 1;
    for (;;) {
        uint64_t generation;
        int spins = 0;
        while ((generation = atomic_load_explicit(&pool.ticket, memory_order_acquire) >> 32) == seen) {
            if (++spins < SPINS_BEFORE_SLEEP) {
                LLMCY_PAUSE();
                continue;
            }
            pthread_mutex_lock(&pool.sleep_lock);
            atomic_fetch_add(&pool.sleepers, 1);
            while (atomic_load(&pool.ticket) >> 32 == seen)
                pthread_cond_wait(&pool.wake, &pool.sleep_lock);
            atomic_fetch_sub(&pool.sleepers, 1);
            pthread_mutex_unlock(&pool.sleep_lock);
            spins = 0;
        }
        seen = generation;
        work_on(generation, (int)(intptr_t)index, arena->base);
    }
    return NULL;
}

/* In a forked child only the forking thread exists: forget the workers, renew the locks. */
static void after_fork_in_child(void) {
    pthread_mutex_init(&pool.user, NULL);
    pthread_mutex_init(&pool.sleep_lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pool.n_workers = 0;
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.ticket, ((atomic_load(&pool.ticket) >> 32) + 1) << 32 | CLOSED);
}

static void start_workers(int wanted) {
    sigset_t all, before;
    if (!pool.fork_handler) {
        pthread_atfork(NULL, NULL, after_fork_in_child);
        pool.fork_handler = 1;
    }
    if (pool.n_workers >= wanted) return;
    sigfillset(&all); /* signals belong to the interpreter's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.n_workers < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker_main, (void *)(intptr_t)pool.n_workers)) break;
        pthread_detach(thread);
        pool.n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int run_serial(llmcy_chunk_fn fn, void *ctx, ptrdiff_t n, char *scratch) {
    unsigned long long fp = fp_enter();
    fn(ctx, 0, n, scratch);
    fp_leave(fp);
    return 0;
}

static int run_parallel(llmcy_chunk_fn fn, void *ctx, ptrdiff_t n, uint32_t n_chunks,
                        size_t scratch_bytes, int n_threads, char *scratch) {
    int wanted = n_threads - 1 < MAX_WORKERS ? n_threads - 1 : MAX_WORKERS;
    for (int w = 0; w < wanted; w++)
        if (arena_reserve(&pool.arenas[w], scratch_bytes)) return -1;
    start_workers(wanted);

    uint64_t generation = (atomic_load(&pool.ticket) >> 32) + 1;
    atomic_store(&pool.ticket, generation << 32 | CLOSED);
    atomic_store(&pool.fn, fn);
    atomic_store(&pool.ctx, ctx);
    atomic_store(&pool.n, n);
    atomic_store(&pool.n_chunks, n_chunks);
    atomic_store(&pool.n_helpers, wanted);
    atomic_store(&pool.finished, 0);
    generation++;
    atomic_store(&pool.ticket, generation << 32);
    if (atomic_load(&pool.sleepers)) {
        pthread_mutex_lock(&pool.sleep_lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.sleep_lock);
    }
    in_parallel_region = 1;
    work_on(generation, -1, scratch);
    in_parallel_region = 0;
    for (int spins = 0; atomic_load_explicit(&pool.finished, memory_order_acquire) < n_chunks;) {
        if (++spins < SPINS_BEFORE_YIELD) LLMCY_PAUSE();
        else sched_yield();
    }
    return 0;
}

/* Run fn over [0, n) in contiguous chunks of at least `grain` items on at most n_threads threads.
 * Each chunk gets scratch_bytes of 64-byte aligned memory of its thread. Returns 0, or -1 when that
 * memory could not be had (then nothing has run). */
static int llmcy_parallel_for(llmcy_chunk_fn fn, void *ctx, ptrdiff_t n, ptrdiff_t grain,
                              size_t scratch_bytes, int n_threads) {
    if (n <= 0) return 0;
    if (scratch_bytes > own_arena.size) {
        pthread_once(&arena_key_once, make_arena_key);
        pthread_setspecific(arena_key, &own_arena);
        if (in_parallel_region) return -1; /* the outer region owns this thread's scratch */
        if (arena_reserve(&own_arena, scratch_bytes)) return -1;
    }
    if (grain < 1 || atomic_load_explicit(&smallest_chunks, memory_order_relaxed)) grain = 1;
    ptrdiff_t most = n / grain;
    if (n_threads <= 1 || most <= 1 || in_parallel_region || pthread_mutex_trylock(&pool.user))
        return run_serial(fn, ctx, n, own_arena.base);
    /* two chunks a thread even out a core that is busy elsewhere */
    ptrdiff_t n_chunks = most < 2 * (ptrdiff_t)n_threads ? most : 2 * (ptrdiff_t)n_threads;
    int status = run_parallel(fn, ctx, n, (uint32_t)n_chunks, scratch_bytes, n_threads, own_arena.base);
    pthread_mutex_unlock(&pool.user);
    return status;
}

static int llmcy_set_smallest_chunks(int on) { return atomic_exchange(&smallest_chunks, on); }
