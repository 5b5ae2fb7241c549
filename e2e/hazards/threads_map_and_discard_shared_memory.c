/* Threads map, use and unmap shared memory, and another discards what it has mapped, without a pause: memory that is
 * mapped where other memory was a moment ago is new and stays, and first touches elsewhere come to an end. */
#include "hazard.h"

enum { MAPPERS = 2, ROUNDS = 2000, TOUCHES = 1000 };
static const size_t bytes = 64 << 10;
static atomic_int is_over;

static char *map_shared(size_t len)
{
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void *mapper(void *number)
{
    uint64_t seed = mix((uintptr_t)number);
    for (int i = 0; i < ROUNDS; i++) {
        char *at = map_shared(bytes);
        for (size_t offset = 0; offset < bytes; offset += PAGE) {
            CHECK(*(uint64_t *)(at + offset) == 0);
            *(uint64_t *)(at + offset) = seed + i + offset;
        }
        for (size_t offset = 0; offset < bytes; offset += PAGE)
            CHECK(*(uint64_t *)(at + offset) == seed + i + offset);
        CHECK(munmap(at, bytes) == 0);
    }
    return NULL;
}

static void *discarder(void *memory)
{
    while (!atomic_load(&is_over))
        CHECK(madvise(memory, MB, MADV_DONTNEED) == 0);
    return NULL;
}

int main(void)
{
    pthread_t mappers[MAPPERS], discards;
    char *touched = map_shared(TOUCHES * PAGE);
    CHECK(pthread_create(&discards, NULL, discarder, map_shared(MB)) == 0);
    for (uintptr_t i = 0; i < MAPPERS; i++)
        CHECK(pthread_create(&mappers[i], NULL, mapper, (void *)i) == 0);
    for (size_t i = 0; i < TOUCHES; i++)
        touched[i * PAGE] = i % 100 + 1;
    for (int i = 0; i < MAPPERS; i++)
        CHECK(pthread_join(mappers[i], NULL) == 0);
    atomic_store(&is_over, 1);
    CHECK(pthread_join(discards, NULL) == 0);
    for (size_t i = 0; i < TOUCHES; i++)
        CHECK(touched[i * PAGE] == (char)(i % 100 + 1));
    return 0;
}
