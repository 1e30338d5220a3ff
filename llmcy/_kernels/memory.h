/* Memory of large arrays, kept for the next array of about the same size.
 *
 * The C library returns large blocks to the system as soon as they are freed, and a fresh block is
 * paid for page by page when it is first written: for a training step, which makes the same arrays
 * again and again, a quarter of the time.  Freed blocks wait here in lists by size class instead, up
 * to a total.  Blocks start at multiples of 64, so that no vector load straddles two cache lines.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { MEMORY_CLASSES = 256, MEMORY_LARGE = 1 << 21 };

typedef struct llmcy_block { struct llmcy_block *next; } llmcy_block;

static struct {
    pthread_mutex_t lock;
    llmcy_block *free_lists[MEMORY_CLASSES];
    size_t held;  /* bytes in the lists */
    size_t made;  /* blocks ever taken from the C library */
    size_t limit; /* of held */
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Class sizes: four steps to a doubling, so at most a quarter of a block is unused (and pages that
 * are never written cost nothing). */
static unsigned memory_class(size_t size, size_t *class_size) {
    unsigned log = 12;
    while (log < 62 && ((size_t)1 << (log + 1)) <= size) log++;
    size_t step = ((size_t)1 << log) / 4;
    size_t base = (size_t)1 << log;
    unsigned steps = size <= base ? 0 : (unsigned)((size - base + step - 1) / step);
    *class_size = base + steps * step;
    return log * 4 + steps; /* four steps lead to the class of the next power */
}

static void memory_drop_all(void) { /* with the lock held */
    for (int c = 0; c < MEMORY_CLASSES; c++)
        while (memory.free_lists[c]) {
            llmcy_block *block = memory.free_lists[c];
            memory.free_lists[c] = block->next;
            free(block);
        }
    memory.held = 0;
}

static size_t memory_default_limit(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    return pages > 0 && page > 0 ? (size_t)pages / 4 * (size_t)page : (size_t)1 << 30;
}

/* The lock is only ever tried: a forked child may inherit it locked, and then does without. */
static void *llmcy_memory_take(size_t size) {
    size_t class_size;
    void *block = NULL;
    unsigned c = memory_class(size, &class_size);
    if (pthread_mutex_trylock(&memory.lock) == 0) {
        if (memory.free_lists[c]) {
            block = memory.free_lists[c];
            memory.free_lists[c] = memory.free_lists[c]->next;
            memory.held -= class_size;
        }
        pthread_mutex_unlock(&memory.lock);
    }
    if (block) return block;
    size_t alignment = class_size >= MEMORY_LARGE ? MEMORY_LARGE : 64;
    if (posix_memalign(&block, alignment, class_size)) {
        if (pthread_mutex_trylock(&memory.lock)) return NULL;
        memory_drop_all();
        pthread_mutex_unlock(&memory.lock);
        if (posix_memalign(&block, alignment, class_size)) return NULL;
    }
    __atomic_fetch_add(&memory.made, 1, __ATOMIC_RELAXED);
#if defined(MADV_HUGEPAGE)
    if (class_size >= MEMORY_LARGE)
        madvise(block, class_size / MEMORY_LARGE * MEMORY_LARGE, MADV_HUGEPAGE);
#endif
    return block;
}

static void llmcy_memory_give_back(void *address, size_t size) {
    size_t class_size;
    unsigned c = memory_class(size, &class_size);
    if (pthread_mutex_trylock(&memory.lock) == 0) {
        if (memory.limit == 0) memory.limit = memory_default_limit();
        if (class_size <= memory.limit && memory.held <= memory.limit - class_size) {
            llmcy_block *block = address;
            block->next = memory.free_lists[c];
            memory.free_lists[c] = block;
            memory.held += class_size;
            address = NULL;
        }
        pthread_mutex_unlock(&memory.lock);
    }
    free(address);
}

static size_t llmcy_memory_held(void) { return memory.held; }
static size_t llmcy_memory_made(void) { return memory.made; }

static void llmcy_memory_release(void) {
    if (pthread_mutex_trylock(&memory.lock)) return;
    memory_drop_all();
    pthread_mutex_unlock(&memory.lock);
}
