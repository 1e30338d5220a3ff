/* Memory of large arrays, kept for the next array of about the same size.
 *
 * The C library returns large blocks to the system as soon as they are freed, and a fresh block is
 * paid for page by page when it is first written: for a training step, which makes the same arrays
 * again and again, a quarter of the time.  Freed blocks wait here in lists by size class instead, up
 * to a total.  Blocks start at multiples of 64, so that no vector load straddles two cache lines.
 *
 * Pages of 2 MB spare looking up addresses, which shows where every array is touched once: 1 to 3 % of
 * a step of the 3.3M model with one row of 256 tokens.  Blocks of that size have such pages of their
 * own; smaller ones are cut from regions that do.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { MEMORY_CLASSES = 416, MEMORY_LARGE = 1 << 21, MEMORY_REGION = 1 << 24 };

typedef struct llmcy_block { struct llmcy_block *next; } llmcy_block;

/* Small blocks follow this, which lies at a multiple of MEMORY_REGION. */
typedef struct llmcy_region {
    struct llmcy_region *next;
    size_t used; /* bytes cut off so far */
    size_t live; /* blocks in use */
    int retired; /* its free blocks are in no list: it goes with its last block in use */
} llmcy_region;

static struct {
    pthread_mutex_t lock;
    llmcy_block *free_lists[MEMORY_CLASSES];
    llmcy_region *regions; /* not retired; blocks are cut from the first */
    size_t held;           /* bytes in the lists */
    size_t made;           /* blocks ever taken from the C library or a region */
    size_t limit;          /* of held */
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Nobody else is inside while a process forks, so the child's copy is whole. */
static void memory_lock(void) { pthread_mutex_lock(&memory.lock); }
static void memory_unlock(void) { pthread_mutex_unlock(&memory.lock); }

/* Class sizes: eight steps to a doubling, so at most an eighth of a block is unused. */
static unsigned memory_class(size_t size, size_t *class_size) {
    unsigned log = 12;
    while (log < 62 && ((size_t)1 << (log + 1)) <= size) log++;
    size_t step = ((size_t)1 << log) / 8;
    size_t base = (size_t)1 << log;
    unsigned steps = size <= base ? 0 : (unsigned)((size - base + step - 1) / step);
    *class_size = base + steps * step;
    return (log - 12) * 8 + steps; /* eight steps lead to the class of the next power */
}

static llmcy_region *region_of(void *block) {
    return (llmcy_region *)((uintptr_t)block & ~(uintptr_t)(MEMORY_REGION - 1));
}

/* Large pages for the whole ones among `size` bytes. */
static void use_large_pages(void *address, size_t size) {
#if defined(MADV_HUGEPAGE)
    madvise(address, size / MEMORY_LARGE * MEMORY_LARGE, MADV_HUGEPAGE);
#endif
}

/* The pages inside a block of a region that stays: nobody needs what they hold. */
static void give_pages_back(void *block, size_t size) {
#if defined(__linux__)
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGE_SIZE);
    uintptr_t first = ((uintptr_t)block + page - 1) / page * page;
    uintptr_t last = ((uintptr_t)block + size) / page * page;
    if (first < last) madvise((void *)first, last - first, MADV_DONTNEED);
#endif
}

/* With the lock held: no block waits any longer. */
static void memory_drop_all(void) {
    for (unsigned c = 0; c < MEMORY_CLASSES; c++) {
        size_t class_size = ((size_t)1 << (c / 8 + 12)) / 8 * (8 + c % 8);
        for (llmcy_block *block = memory.free_lists[c], *next; block; block = next) {
            next = block->next;
            if (class_size >= MEMORY_LARGE) free(block);
            else if (region_of(block)->live) give_pages_back(block, class_size);
        }
        memory.free_lists[c] = NULL;
    }
    for (llmcy_region *region = memory.regions, *next; region; region = next) {
        next = region->next;
        region->retired = 1;
        if (!region->live) free(region);
    }
    memory.regions = NULL;
    memory.held = 0;
}

static size_t memory_default_limit(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    return pages > 0 && page > 0 ? (size_t)pages / 4 * (size_t)page : (size_t)1 << 30;
}

static void *new_large_block(size_t class_size) {
    void *block;
    if (posix_memalign(&block, MEMORY_LARGE, class_size)) return NULL;
    use_large_pages(block, class_size);
    return block;
}

static void *new_small_block(size_t class_size) {
    llmcy_region *region = memory.regions;
    if (!region || MEMORY_REGION - region->used < class_size) {
        void *address;
        if (posix_memalign(&address, MEMORY_REGION, MEMORY_REGION)) return NULL;
        use_large_pages(address, MEMORY_REGION);
        region = address;
        *region = (llmcy_region){.next = memory.regions, .used = 64};
        memory.regions = region;
    }
    void *block = (char *)region + region->used;
    region->used += class_size;
    return block;
}

static void *new_block(size_t class_size) {
    void *block = class_size >= MEMORY_LARGE ? new_large_block(class_size) : new_small_block(class_size);
    memory.made += block != NULL;
    return block;
}

static void *llmcy_memory_take(size_t size) {
    size_t class_size;
    unsigned c = memory_class(size, &class_size);
    memory_lock();
    llmcy_block *block = memory.free_lists[c];
    if (block) {
        memory.free_lists[c] = block->next;
        memory.held -= class_size;
    } else {
        block = new_block(class_size);
        if (!block) {
            memory_drop_all();
            block = new_block(class_size);
        }
    }
    if (block && class_size < MEMORY_LARGE) region_of(block)->live++;
    memory_unlock();
    return block;
}

static void llmcy_memory_give_back(void *address, size_t size) {
    size_t class_size;
    unsigned c = memory_class(size, &class_size);
    int small = class_size < MEMORY_LARGE;
    memory_lock();
    if (memory.limit == 0) memory.limit = memory_default_limit();
    if (small && --region_of(address)->live == 0 && region_of(address)->retired) {
        free(region_of(address));
    } else if (small && region_of(address)->retired) {
        give_pages_back(address, class_size);
    } else if (!small && (class_size > memory.limit || memory.held > memory.limit - class_size)) {
        free(address);
    } else {
        llmcy_block *block = address;
        block->next = memory.free_lists[c];
        memory.free_lists[c] = block;
        memory.held += class_size;
        if (memory.held > memory.limit) memory_drop_all();
    }
    memory_unlock();
}

static size_t llmcy_memory_held(void) { return memory.held; }
static size_t llmcy_memory_made(void) { return memory.made; }

static void llmcy_memory_release(void) {
    memory_lock();
    memory_drop_all();
    memory_unlock();
}

/* Once, before anything else. */
static void llmcy_memory_start(void) { pthread_atfork(memory_lock, memory_unlock, memory_unlock); }
