/* Files and shared memory are mapped at addresses that the program prefers and has just unmapped, without
 * MAP_FIXED: a ring buffer is two mappings of one file, one behind the other. What is in use stays. */
#include "hazard.h"

enum { BYTES = 64 << 10 };

/* A free range of that many bytes. */
static char *range(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    fill(at, bytes, 1);
    CHECK(munmap(at, bytes) == 0);
    return at;
}

static char *prefer(char *at, int flags, int fd)
{
    char *p = mmap(at, BYTES, PROT_READ | PROT_WRITE, flags, fd, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static void a_ring(int fd)
{
    char *at = range(2 * BYTES);
    CHECK(prefer(at, MAP_SHARED, fd) == at);
    CHECK(prefer(at + BYTES, MAP_SHARED, fd) == at + BYTES);
    fill(at, BYTES, 2);
    CHECK(holds(at + BYTES, BYTES, 2));
    push_out();
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(holds(at + BYTES, BYTES, 2));
        fill(at + BYTES, BYTES, 3);
        _exit(0);
    }
    reap(child);
    CHECK(holds(at, BYTES, 3));
    CHECK(munmap(at, 2 * BYTES) == 0);
}

int main(void)
{
    int fd = memfd_create("hazard", 0);
    CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
    a_ring(fd);
    /* In a hole of a mapping, which stays around it. */
    char *around = map_private(8 * BYTES);
    fill(around, 8 * BYTES, 4);
    CHECK(munmap(around + 2 * BYTES, 4 * BYTES) == 0);
    char *shared = prefer(around + 2 * BYTES, MAP_SHARED | MAP_ANONYMOUS, -1);
    CHECK(shared == around + 2 * BYTES && all_zero(shared, BYTES));
    char *file = prefer(around + 3 * BYTES + 7, MAP_PRIVATE, fd);
    CHECK(file == around + 3 * BYTES && holds(file, BYTES, 3));
    /* Where something lies already, the mapping is elsewhere. */
    char *other = prefer(around + 5 * BYTES + PAGE, MAP_SHARED, fd);
    CHECK(other != around + 5 * BYTES + PAGE && holds(other, BYTES, 3));
    CHECK(munmap(other, BYTES) == 0);
    other = prefer(file, MAP_PRIVATE, fd);
    CHECK(other != file && munmap(other, BYTES) == 0);
    /* What cannot be mapped changes nothing. */
    CHECK(mmap(around + 4 * BYTES, BYTES, PROT_READ, MAP_SHARED, 999, 0) == MAP_FAILED && errno == EBADF);
    CHECK(mmap(around, BYTES, PROT_READ, ~0u, -1, 0) == MAP_FAILED && errno == EINVAL);
    fill(file, BYTES, 5);
    fill(shared, BYTES, 6);
    push_out();
    CHECK(holds(file, BYTES, 5) && holds(shared, BYTES, 6));
    for (size_t i = 0; i < 8 * BYTES / 8; i += 61)
        if (i < 2 * BYTES / 8 || i >= 6 * BYTES / 8)
            CHECK(((uint64_t *)around)[i] == word_at(4, i));
    CHECK(munmap(around, 8 * BYTES) == 0);
    /* A move that leaves the old place mapped has a preferred address, too. */
    char *from = map_private(BYTES), *to = range(BYTES);
    fill(from, BYTES, 7);
    int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    CHECK(mremap(from, BYTES, BYTES, flags, to) == to && holds(to, BYTES, 7) && all_zero(from, BYTES));
    CHECK(mremap(from, BYTES, BYTES, flags, to + 1) == MAP_FAILED && errno == EINVAL);
    return 0;
}
