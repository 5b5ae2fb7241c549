/* Shared memory that is reserved by the terabyte, of which a page here and there is used, discarded
 * and unmapped, as databases and language runtimes reserve it. */
#include "hazard.h"

#define GB (1ul << 30)

static char *share(size_t len)
{
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

int main(void)
{
    char *small = share(MB);
    small[0] = 1;
    for (size_t len = 64 * GB; len <= 32 * 1024 * GB; len *= 8) {
        char *large = share(len);
        large[0] = 1;
        large[len / 2] = 2;
        large[len - 1] = 3;
        CHECK(madvise(large + len / 4, len / 2, MADV_REMOVE) == 0);
        CHECK(large[0] == 1 && large[len / 2] == 0 && large[len - 1] == 3);
        pid_t child = fork();
        if (child == 0)
            _exit(large[0] == 1 && large[len - 1] == 3 ? 0 : 1);
        int status = 0;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        CHECK(munmap(large, len) == 0);
        small[MB / 2] = 4;
    }
    CHECK(small[0] == 1 && small[MB / 2] == 4);
    return 0;
}
