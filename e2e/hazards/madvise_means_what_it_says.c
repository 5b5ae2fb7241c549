/* DONTNEED gives zeros, wherever the page was; FREE gives old or zero contents until the
 * next write and keeps that write; WILLNEED, COLD, PAGEOUT, SEQUENTIAL, RANDOM, HUGEPAGE
 * change no contents; DONTFORK and WIPEONFORK hold in the child; mlock of a little works. */
#include "hazard.h"
#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

int main(void)
{
    struct churn churn[1];
    churn_start(churn, 1);
    size_t n = hazard_bytes() / 4;
    char *p = map_private(n);
    for (int round = 0; round < 4; round++) {
        fill(p, n, round);
        if (round % 2)
            push_out();
        CHECK(madvise(p + 3 * PAGE, n / 2, MADV_DONTNEED) == 0);
        CHECK(all_zero(p + 3 * PAGE, n / 2));
        CHECK(holds(p, 3 * PAGE, round));
        fill(p, n, round);

        CHECK(madvise(p, n, MADV_FREE) == 0);
        for (size_t at = 0; at < n; at += 2 * PAGE)
            *(volatile uint64_t *)(p + at) = mix(at);
        push_out();
        for (size_t at = 0; at < n; at += PAGE) {
            volatile uint64_t *w = (volatile uint64_t *)(p + at);
            if (at / PAGE % 2 == 0)
                CHECK(w[0] == mix(at));
            for (int k = 1; k < 512; k += 51)
                CHECK(w[k] == 0 || w[k] == word_at(round, at / 8 + k));
        }
        fill(p, n, round);
        static const int hints[] = {MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT, MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL,
                                    MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_DONTDUMP};
        for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
            size_t bytes = hints[i] >= MADV_POPULATE_READ && hints[i] <= MADV_POPULATE_WRITE ? MB : n;
            int done = madvise(p, bytes, hints[i]);
            CHECK(done == 0 || errno == EINVAL);
            CHECK(holds(p, n, round));
        }
    }
    char *secret = map_private(MB), *kept = map_private(MB), *absent = map_private(MB);
    fill(secret, MB, 1), fill(kept, MB, 2), fill(absent, MB, 3);
    CHECK(madvise(secret, MB, MADV_WIPEONFORK) == 0);
    CHECK(madvise(absent, MB, MADV_DONTFORK) == 0);
    push_out();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(all_zero(secret, MB));
        CHECK(holds(kept, MB, 2));
        int fd[2];
        CHECK(pipe(fd) == 0);
        CHECK(write(fd[1], absent, 1) == -1 && errno == EFAULT);
        _exit(0);
    }
    reap(child);
    CHECK(holds(secret, MB, 1) && holds(kept, MB, 2) && holds(absent, MB, 3));

    char *locked = map_private(64 * 1024);
    fill(locked, 64 * 1024, 4);
    CHECK(mlock(locked, 64 * 1024) == 0);
    push_out();
    CHECK(holds(locked, 64 * 1024, 4));
    unsigned char there[16];
    CHECK(mincore(locked, 64 * 1024, there) == 0);
    CHECK(munlock(locked, 64 * 1024) == 0);
    push_out();
    CHECK(holds(locked, 64 * 1024, 4));
    churn_stop(churn, 1);
    return 0;
}
