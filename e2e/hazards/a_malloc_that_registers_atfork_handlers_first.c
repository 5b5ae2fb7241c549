/* A program with a malloc of its own, which registers its fork handlers at its first use,
 * and that comes before any library's constructor. While the main thread forks, a thread that holds
 * the allocator's lock must get through mmap. */
#include "hazard.h"

/* Each block is a mapping, so that the lock is held through mmap and munmap. */
#define HEADER 64ul
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int registered;

static void take(void) { pthread_mutex_lock(&lock); }
static void give(void) { pthread_mutex_unlock(&lock); }

static void *aligned(size_t align, size_t bytes)
{
    if (!atomic_exchange(&registered, 1))
        pthread_atfork(take, give, give);
    align = align < HEADER ? HEADER : align;
    size_t whole = bytes + align + HEADER + PAGE;
    take();
    char *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    give();
    if (p == MAP_FAILED)
        return errno = ENOMEM, NULL;
    char *at = (char *)(((uintptr_t)p + HEADER + align - 1) & -align);
    size_t *head = (size_t *)(at - 24);
    head[0] = (size_t)p, head[1] = whole, head[2] = bytes;
    return at;
}

void *malloc(size_t bytes) { return aligned(HEADER, bytes); }
void *memalign(size_t align, size_t bytes) { return aligned(align, bytes); }
void *aligned_alloc(size_t align, size_t bytes) { return aligned(align, bytes); }
int posix_memalign(void **to, size_t align, size_t bytes)
{
    *to = aligned(align, bytes);
    return *to ? 0 : ENOMEM;
}
void *calloc(size_t n, size_t bytes) { return aligned(HEADER, n * bytes); }
size_t malloc_usable_size(void *at) { return at ? ((size_t *)((char *)at - 24))[2] : 0; }

void free(void *at)
{
    if (!at)
        return;
    size_t *head = (size_t *)((char *)at - 24);
    take();
    munmap((void *)head[0], head[1]);
    give();
}

void *realloc(void *at, size_t bytes)
{
    void *fresh = malloc(bytes);
    size_t had = malloc_usable_size(at);
    if (fresh && at)
        memcpy(fresh, at, had < bytes ? had : bytes);
    free(at);
    return fresh;
}

/* Runs before the constructors of the libraries, as the loader's own allocations do. */
static void *volatile early_block;
static void early(void) { early_block = malloc(1); }
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = early;

static atomic_int stop;

static void *allocate(void *seed)
{
    for (uint64_t i = (uintptr_t)seed; !stop; i++) {
        size_t bytes = 4096 + mix(i) % 65536 / 8 * 8;
        char *block = malloc(bytes);
        CHECK(block);
        fill(block, 4096, i);
        CHECK(holds(block, 4096, i));
        free(block);
    }
    return NULL;
}

int main(void)
{
    CHECK(registered);
    alarm(100);
    pthread_t threads[3];
    for (long i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, allocate, (void *)(i << 32)) == 0);
    for (int i = 0; i < 60; i++) {
        char *before = malloc(8192);
        fill(before, 8192, i);
        pid_t child = checked_fork();
        if (child == 0) {
            char *own = malloc(10000);
            fill(own, 8192, ~i);
            _exit(holds(before, 8192, i) && holds(own, 8192, ~i) ? 0 : 1);
        }
        reap(child);
        free(before);
    }
    stop = 1;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}
