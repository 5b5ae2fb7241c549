/* Threads read pages of shared memory that have left, while another maps new memory over all of it: they read the
 * old contents or the new, and none waits for a page of memory that has ended. */
#include "hazard.h"

enum { READERS = 3, READS = 4, ROUNDS = 30 };
static const size_t bytes = 2 * MB;
static char *memory, *others;
static size_t other_bytes;
static atomic_int round_now, returned;

static void *reader(void *number)
{
    uint64_t at = (uintptr_t)number;
    for (int seen = 0; seen < ROUNDS; seen++) {
        while (atomic_load(&round_now) == seen)
            sched_yield();
        for (int i = 0; i < READS; i++) {
            at = mix(at);
            size_t offset = at % (bytes / PAGE) * PAGE;
            uint64_t word = *(volatile uint64_t *)(memory + offset);
            CHECK(word == 0 || word == mix(offset + seen + 1));
        }
        atomic_fetch_add(&returned, 1);
    }
    return NULL;
}

static char *map_shared(void *where, size_t len)
{
    int flags = MAP_SHARED | MAP_ANONYMOUS | (where ? MAP_FIXED : 0);
    char *at = mmap(where, len, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

int main(void)
{
    pthread_t threads[READERS];
    other_bytes = hazard_bytes() / 4;
    memory = map_shared(NULL, bytes);
    others = map_shared(NULL, other_bytes);
    for (uintptr_t i = 0; i < READERS; i++)
        CHECK(pthread_create(&threads[i], NULL, reader, (void *)(i + 1)) == 0);
    for (int i = 1; i <= ROUNDS; i++) {
        for (size_t offset = 0; offset < bytes; offset += PAGE)
            *(uint64_t *)(memory + offset) = mix(offset + i);
        /* Pushes it out. */
        for (size_t offset = 0; offset < other_bytes; offset += 8)
            *(uint64_t *)(others + offset) = mix(offset + i);
        atomic_store(&returned, 0);
        atomic_store(&round_now, i);
        struct timespec pause = {0, i * 37 % 400 * 1000};
        nanosleep(&pause, NULL);
        map_shared(memory, bytes);
        while (atomic_load(&returned) < READERS)
            sched_yield();
    }
    for (int i = 0; i < READERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}
