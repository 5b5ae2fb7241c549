/* Allocators and language runtimes reserve large memory at addresses of their choice, use little of it, and unmap it, while
 * other threads fault nearby: what comes of it is zero each time. */
#include "hazard.h"

#define ROUNDS 500
#define RESERVED ((size_t)16 << 30)
#define THREADS 3

static volatile int stop;

static void *reserve(void *at, size_t n)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *p = mmap(at, n, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* Faults in memory of its own, which it discards each time. */
static void *neighbour(void *unused)
{
    size_t n = 64 * PAGE;
    char *p = map_private(n);
    for (int round = 1; !stop; round++) {
        fill(p, n, round);
        CHECK(holds(p, n, round));
        CHECK(madvise(p, n, MADV_DONTNEED) == 0);
        CHECK(p[n / 2] == 0);
    }
    return unused;
}

static void *reserver(void *number)
{
    char *hint = (char *)0x200000000000 + (size_t)number * 8 * RESERVED;
    for (int round = 0; round < ROUNDS; round++) {
        char *p = reserve(hint, RESERVED);
        /* Pages of three units, and none of the others. */
        size_t at[] = {0, RESERVED / 2 + (size_t)round * PAGE, RESERVED - PAGE};
        for (int i = 0; i < 3; i++) {
            CHECK(p[at[i]] == 0);
            p[at[i]] = 1 + i;
        }
        if (round % 64 == 0) {
            /* In two parts, and the first one's place mapped again meanwhile. */
            CHECK(munmap(p, RESERVED / 2) == 0);
            char *again = reserve(p, 16 * PAGE);
            CHECK(again[0] == 0);
            again[0] = 7;
            CHECK(p[at[1]] == 2 && p[at[2]] == 3);
            CHECK(munmap(p + RESERVED / 2, RESERVED / 2) == 0);
            CHECK(again[0] == 7);
            CHECK(munmap(again, 16 * PAGE) == 0);
            continue;
        }
        for (int i = 0; i < 3; i++)
            CHECK(p[at[i]] == 1 + i);
        CHECK(munmap(p, RESERVED) == 0);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS], other;
    CHECK(pthread_create(&other, NULL, neighbour, NULL) == 0);
    for (size_t n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, reserver, (void *)n) == 0);
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    stop = 1;
    CHECK(pthread_join(other, NULL) == 0);
    return 0;
}
