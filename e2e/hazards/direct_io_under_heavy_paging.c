/* O_DIRECT reads land in pages by their physical place: if the pager takes a page away
 * while a transfer is in flight, the data is lost. Several threads write from and read
 * into paged memory while others page as fast as they can; every byte is checked. */
#include "ring.h"

enum { BLOCK = 16 * 4096 };

static void *transfers(void *arg)
{
    uint64_t seed = (uintptr_t)arg;
    size_t n = hazard_bytes() / 8 / BLOCK * BLOCK, blocks = n / BLOCK;
    int fd = direct_file(n);
    if (fd < 0) {
        fprintf(stderr, "no O_DIRECT on this file system\n");
        exit(77);
    }
    char *from = map_private(n), *into = map_private(n);
    char *aligned;
    CHECK(posix_memalign((void **)&aligned, PAGE, BLOCK) == 0);
    double end = now() + 3;
    for (int round = 0; now() < end || round < 2; round++) {
        fill(from, n, seed + round);
        for (size_t b = 0; b < blocks; b++)
            CHECK(pwrite(fd, from + b * BLOCK, BLOCK, b * BLOCK) == BLOCK);
        /* Dirty the target first so that it is out, and differs, when the device writes. */
        fill(into, n, ~seed);
        for (size_t k = 0; k < blocks; k++) {
            size_t b = k * 7 % blocks;
            if (blocks % 7 == 0)
                b = k;
            CHECK(pread(fd, into + b * BLOCK, BLOCK, b * BLOCK) == BLOCK);
            if (k % 8 == 0) {
                CHECK(pread(fd, aligned, BLOCK, b * BLOCK) == BLOCK);
                CHECK(memcmp(aligned, into + b * BLOCK, BLOCK) == 0);
            }
        }
        CHECK(holds(into, n, seed + round));
    }
    close(fd);
    return NULL;
}

int main(void)
{
    struct churn churn[2];
    pthread_t t[3];
    churn_start(churn, 2);
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&t[i], NULL, transfers, (void *)((i + 1) << 20)) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    churn_stop(churn, 2);
    return 0;
}
