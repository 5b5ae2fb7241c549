/* A mapping over memory that was paged, was a file's and is free now goes on behind it for as long as addresses are left: where not all of
 * it can be paged, all of it works. */
#include "hazard.h"
#include <sys/resource.h>

static const size_t mib = 1ul << 20;

enum { FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

static char *map_at(char *at, size_t len)
{
    return mmap(at, len, PROT_READ | PROT_WRITE, FLAGS | MAP_FIXED, -1, 0);
}

int main(void)
{
    alarm(60);
    size_t half = mib / 2, step = 2 * mib;
    char *first = (char *)(1ul << 40), *second = first + half, *behind = second + half;
    struct rlimit limit = {3ul << 40, 3ul << 40};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    CHECK(map_at(first, 2 * half) == first);
    memset(first, 1, 2 * half);
    int fd = memfd_create("file", 0);
    CHECK(fd >= 0 && ftruncate(fd, half) == 0);
    CHECK(mmap(second, half, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == second);
    second[0] = 5;
    size_t least = 0, most = 8ul << 40;
    while (most - least > step) {
        size_t middle = least + (most - least) / 2 / PAGE * PAGE;
        if (map_at(behind, middle) == MAP_FAILED) {
            most = middle;
        } else {
            least = middle;
            CHECK(munmap(behind, middle) == 0);
        }
    }
    CHECK(least > 2 * step && munmap(second, half) == 0);
    for (size_t len = least - 2 * step; len > step; len /= 2) {
        char *all = map_at(second, half + len);
        CHECK(all == second || (all == MAP_FAILED && errno == ENOMEM));
        if (all == MAP_FAILED)
            continue;
        all[PAGE] = 1;
        all[half + PAGE] = 2;
        all[half + len - 1] = 3;
        CHECK(all[PAGE] == 1 && all[half + PAGE] == 2 && all[half + len - 1] == 3 && all[2 * PAGE] == 0);
        CHECK(first[half - 1] == 1);
        CHECK(munmap(second, half + len) == 0);
    }
    return 0;
}
