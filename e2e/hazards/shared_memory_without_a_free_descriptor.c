/* A program without a free descriptor makes shared memory, discards it, maps it a second time, extends it, rearranges it,
 * locks it, and forks. */
#include "hazard.h"

static size_t bytes;

static char *filled(uint64_t seed)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    fill(p, bytes, seed);
    return p;
}

static void discard(void)
{
    char *p = filled(1);
    CHECK(madvise(p, bytes / 2, MADV_REMOVE) == 0);
    CHECK(all_zero(p, bytes / 2));
    for (size_t i = bytes / 16; i < bytes / 8; i += 61)
        CHECK(((uint64_t *)p)[i] == word_at(1, i));
    CHECK(munmap(p, bytes) == 0);
}

static void map_again(void)
{
    char *p = filled(2);
    char *second = mremap(p, 0, bytes, MREMAP_MAYMOVE);
    CHECK(second != MAP_FAILED);
    CHECK(holds(second, bytes, 2) && holds(p, bytes, 2));
    CHECK(munmap(p, bytes) == 0 && holds(second, bytes, 2));
    CHECK(munmap(second, bytes) == 0);
}

/* A mapping of the first half extends to the whole. */
static void extend(void)
{
    char *p = filled(3);
    CHECK(munmap(p + bytes / 2, bytes / 2) == 0);
    char *whole = mremap(p, bytes / 2, bytes, MREMAP_MAYMOVE);
    CHECK(whole != MAP_FAILED);
    CHECK(holds(whole, bytes, 3));
    CHECK(munmap(whole, bytes) == 0);
}

/* Other pages of the same memory. */
static void rearrange(void)
{
    char *p = filled(4);
    CHECK(remap_file_pages(p, bytes / 2, 0, bytes / 2 / PAGE, 0) == 0);
    CHECK(memcmp(p, p + bytes / 2, bytes / 2) == 0);
    CHECK(munmap(p, bytes) == 0);
}

/* A child changes what its parent reads, and locks some of it. */
static void fork_and_lock(void)
{
    char *p = filled(5);
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(holds(p, bytes, 5));
        CHECK(mlock(p, 16 * PAGE) == 0);
        fill(p, bytes, 6);
        CHECK(munlock(p, 16 * PAGE) == 0);
        _exit(0);
    }
    reap(child);
    CHECK(holds(p, bytes, 6));
    CHECK(munmap(p, bytes) == 0);
}

int main(void)
{
    alarm(100);
    bytes = hazard_bytes();
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(dup(1) == -1);
    discard();
    map_again();
    extend();
    rearrange();
    fork_and_lock();
    return 0;
}
