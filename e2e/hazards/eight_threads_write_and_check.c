/* Eight threads write a pattern over the whole size and check each other's, in several
 * orders; prints a digest of what they read. */
#include "hazard.h"

enum { THREADS = 8, ROUNDS = 3 };
static char *memory;
static size_t bytes;
static pthread_barrier_t barrier;
static uint64_t digest[THREADS];

static void *body(void *arg)
{
    size_t id = (uintptr_t)arg, share = bytes / THREADS / PAGE * PAGE;
    for (int round = 0; round < ROUNDS; round++) {
        fill(memory + id * share, share, round * 100 + id);
        pthread_barrier_wait(&barrier);
        size_t other = (id + round + 1) % THREADS;
        CHECK(holds(memory + other * share, share, round * 100 + other));
        pthread_barrier_wait(&barrier);
        /* All threads write one word of every page, each its own word, at the same time. */
        for (size_t k = 0; k < bytes / PAGE / 8; k++) {
            size_t page = mix(k + round) % (share * THREADS / PAGE);
            __atomic_fetch_add((uint64_t *)(memory + page * PAGE) + 8 + id, 1, __ATOMIC_RELAXED);
        }
        pthread_barrier_wait(&barrier);
        for (size_t at = id * share; at < (id + 1) * share; at += PAGE)
            for (int w = 0; w < 512; w += 7)
                digest[id] = mix(digest[id] ^ ((uint64_t *)(memory + at))[w]);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(void)
{
    bytes = hazard_bytes() / PAGE / THREADS * THREADS * PAGE;
    memory = map_private(bytes);
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, body, (void *)i) == 0);
    uint64_t all = 0;
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(t[i], NULL) == 0);
        all = mix(all ^ digest[i]);
    }
    printf("%016lx\n", (unsigned long)all);
    return 0;
}
