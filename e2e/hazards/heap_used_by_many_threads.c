/* Every function of malloc's family, blocks freed by other threads, sizes from a byte to
 * megabytes, forks in the middle, and thread-local arrays of a megabyte. */
#include "hazard.h"
#include <malloc.h>

enum { SLOTS = 4000, THREADS = 6 };
static struct { _Atomic(uint64_t *) block; } slot[SLOTS];
static __thread uint64_t thread_local_array[MB / 8];

static void check_and_free(uint64_t *block)
{
    size_t words = block[0];
    CHECK(words >= 2 && words < 4 * MB);
    for (size_t i = 2; i < words; i += words / 16 + 1)
        CHECK(block[i] == mix(block[1] + i));
    CHECK(malloc_usable_size(block) >= words * 8);
    free(block);
}

static void *user(void *arg)
{
    uint64_t id = (uintptr_t)arg;
    fill(thread_local_array, sizeof thread_local_array, id);
    double end = now() + 3;
    for (uint64_t k = 0; (now() < end || k < 4000) && k < 60000; k++) {
        uint64_t r = mix(id * 1000000007 + k);
        size_t words = r % 64 == 0 ? 2 + (r >> 20) % 40000 : 2 + (r >> 20) % 500;
        uint64_t *block = NULL;
        switch (r % 6) {
        case 0: case 1: block = malloc(words * 8); break;
        case 2:
            block = calloc(words, 8);
            CHECK(block && all_zero(block, words * 8));
            break;
        case 3: CHECK(posix_memalign((void **)&block, 64 << r / 7 % 8, words * 8) == 0); break;
        case 4: block = aligned_alloc(4096, (words * 8 + 4095) & ~4095ul); break;
        case 5:
            block = malloc(16);
            CHECK(block);
            block[0] = 77, block[1] = k;
            block = realloc(block, words * 8);
            CHECK(block && block[0] == 77 && block[1] == k);
            break;
        }
        CHECK(block);
        block[0] = words, block[1] = r;
        for (size_t i = 2; i < words; i++)
            block[i] = mix(r + i);
        uint64_t *old = atomic_exchange(&slot[(r >> 40) % SLOTS].block, block);
        if (old)
            check_and_free(old);
        if (k % 2000 == 1999) {
            pid_t child = checked_fork();
            if (child == 0) {
                char *p = malloc(2 * MB);
                fill(p, 2 * MB, k);
                CHECK(holds(p, 2 * MB, k));
                CHECK(holds(thread_local_array, sizeof thread_local_array, id));
                for (int i = 0; i < SLOTS; i += 40) {
                    uint64_t *b = atomic_exchange(&slot[i].block, NULL);
                    if (b)
                        check_and_free(b);
                }
                _exit(0);
            }
            reap(child);
        }
    }
    CHECK(holds(thread_local_array, sizeof thread_local_array, id));
    return NULL;
}

int main(void)
{
    pthread_t t[THREADS];
    struct churn churn[1];
    churn_start(churn, 1);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, user, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    churn_stop(churn, 1);
    for (int i = 0; i < SLOTS; i++)
        if (slot[i].block)
            check_and_free(slot[i].block);
    void *volatile absurd = malloc((size_t)1 << 62);
    CHECK(absurd == NULL && errno == ENOMEM);
    malloc_trim(0);
    return 0;
}
