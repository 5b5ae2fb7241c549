/* A thread maps a file over a part of its private memory and has the kernel move it away; the addresses that come free
 * then may be given to another thread, which maps the same file and reads it. */
#include "hazard.h"

enum { ROUNDS = 15000 };
static const size_t bytes = MB;
static int file;
static atomic_int is_over;

static void check(const char *at)
{
    for (size_t offset = 0; offset < bytes; offset += 85 * PAGE)
        CHECK(*(volatile uint64_t *)(at + offset) == word_at(1, offset / 8));
}

static char *map_file(void *where)
{
    char *at = mmap(where, bytes, PROT_READ, MAP_PRIVATE | (where ? MAP_FIXED : 0), file, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void *others(void *unused)
{
    while (!atomic_load(&is_over)) {
        char *at = map_file(NULL);
        for (int again = 0; again < 4000; again++)
            check(at);
        CHECK(munmap(at, bytes) == 0);
    }
    return unused;
}

int main(void)
{
    char name[] = "/tmp/hazard-XXXXXX";
    file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    char *contents = map_private(2 * bytes);
    fill(contents, 2 * bytes, 1);
    CHECK(write(file, contents, 2 * bytes) == (ssize_t)(2 * bytes));
    /* The gaps that the kernel would fill first. */
    for (int gap = 0; gap < 40; gap++)
        map_file(NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, others, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        size_t around = 16 * bytes;
        char *memory = map_private(4 * around);
        char *at = map_file(memory + around);
        char *moved = mremap(at, bytes, 2 * bytes, MREMAP_MAYMOVE);
        CHECK(moved != MAP_FAILED);
        check(moved);
        CHECK(munmap(moved, 2 * bytes) == 0);
        CHECK(munmap(memory, around) == 0);
        CHECK(munmap(memory + around + bytes, 3 * around - bytes) == 0);
    }
    atomic_store(&is_over, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}
