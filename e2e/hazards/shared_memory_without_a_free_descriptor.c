/* A program without a free descriptor discards shared memory, maps it a second time and extends it: each call does what it
 * says, or fails and changes nothing. */
#include "hazard.h"
#include <sys/resource.h>

static struct rlimit before;
static size_t bytes;

static char *filled(uint64_t seed)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    fill(p, bytes, seed);
    return p;
}

/* From now on no descriptor is free, or as many as before. */
static void leave_descriptors(int some)
{
    struct rlimit limit = before;
    if (!some)
        limit.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK((dup(1) >= 0) == some);
}

/* Natively none of these calls fails. */
static int fails_for_descriptors(int failed, int expected)
{
    CHECK(!failed || (errno == expected && paged()));
    return failed;
}

static void discard(void)
{
    char *p = filled(1);
    leave_descriptors(0);
    int answer = madvise(p, bytes / 2, MADV_REMOVE), error = errno;
    leave_descriptors(1);
    errno = error;
    if (fails_for_descriptors(answer != 0, EAGAIN)) {
        CHECK(holds(p, bytes, 1));
        CHECK(madvise(p, bytes / 2, MADV_REMOVE) == 0);
    }
    CHECK(all_zero(p, bytes / 2));
    for (size_t i = bytes / 16; i < bytes / 8; i += 61)
        CHECK(((uint64_t *)p)[i] == word_at(1, i));
    CHECK(munmap(p, bytes) == 0);
}

static void map_again(void)
{
    char *p = filled(2);
    leave_descriptors(0);
    char *second = mremap(p, 0, bytes, MREMAP_MAYMOVE);
    int error = errno;
    leave_descriptors(1);
    errno = error;
    if (fails_for_descriptors(second == MAP_FAILED, ENOMEM)) {
        second = mremap(p, 0, bytes, MREMAP_MAYMOVE);
        CHECK(second != MAP_FAILED);
    }
    CHECK(holds(second, bytes, 2) && holds(p, bytes, 2));
    CHECK(munmap(p, bytes) == 0 && holds(second, bytes, 2));
    CHECK(munmap(second, bytes) == 0);
}

/* A mapping of the first half extends to the whole. */
static void extend(void)
{
    char *p = filled(3);
    CHECK(munmap(p + bytes / 2, bytes / 2) == 0);
    leave_descriptors(0);
    char *whole = mremap(p, bytes / 2, bytes, MREMAP_MAYMOVE);
    int error = errno;
    leave_descriptors(1);
    errno = error;
    if (fails_for_descriptors(whole == MAP_FAILED, ENOMEM)) {
        CHECK(holds(p, bytes / 2, 3));
        whole = mremap(p, bytes / 2, bytes, MREMAP_MAYMOVE);
        CHECK(whole != MAP_FAILED);
    }
    CHECK(holds(whole, bytes, 3));
    CHECK(munmap(whole, bytes) == 0);
}

/* Other pages of the same memory. */
static void rearrange(void)
{
    char *p = filled(4);
    leave_descriptors(0);
    int answer = remap_file_pages(p, bytes / 2, 0, bytes / 2 / PAGE, 0), error = errno;
    leave_descriptors(1);
    errno = error;
    if (fails_for_descriptors(answer != 0, ENOMEM)) {
        CHECK(holds(p, bytes, 4));
        CHECK(remap_file_pages(p, bytes / 2, 0, bytes / 2 / PAGE, 0) == 0);
    }
    CHECK(memcmp(p, p + bytes / 2, bytes / 2) == 0);
    CHECK(munmap(p, bytes) == 0);
}

int main(void)
{
    alarm(100);
    bytes = hazard_bytes();
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    discard();
    map_again();
    extend();
    rearrange();
    return 0;
}
