/* DONTNEED gives zeros, wherever the page was; FREE gives old or zero contents until the
 * next write and keeps that write; WILLNEED, COLD, PAGEOUT, SEQUENTIAL, RANDOM, HUGEPAGE
 * change no contents; DONTFORK and WIPEONFORK hold in the child; mlock of a little works.
 * COLLAPSE is granted where the kernel has huge pages. DONTDUMP keeps memory out of core dumps, where it moves, too, until it is unmapped. */
#include "hazard.h"
#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Whether the kernel leaves the page out of core dumps. */
static int is_left_out(const char *page)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps != NULL);
    char line[512];
    int here = 0, found = -1;
    while (fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            here = start <= (uintptr_t)page && (uintptr_t)page < end;
        if (here && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, " dd") != NULL;
    }
    fclose(maps);
    CHECK(found >= 0);
    return found;
}

static void keys_are_not_dumped(void)
{
    char *keys = map_private(4 * PAGE);
    fill(keys, 4 * PAGE, 5);
    CHECK(madvise(keys + PAGE, 2 * PAGE, MADV_DONTDUMP) == 0);
    CHECK(!is_left_out(keys) && is_left_out(keys + PAGE) && is_left_out(keys + 2 * PAGE));
    CHECK(!is_left_out(keys + 3 * PAGE));
    push_out();
    CHECK(holds(keys, 4 * PAGE, 5));
    char *place = map_private(MB);
    char *moved = mremap(keys + PAGE, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    CHECK(moved == place && is_left_out(place) && !is_left_out(place + 2 * PAGE));
    char *again = mmap(keys, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(again == keys && !is_left_out(keys + PAGE));
    CHECK(madvise(place, 2 * PAGE, MADV_DODUMP) == 0 && !is_left_out(place));
}

static void huge_pages_are_granted(void)
{
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0)
        return;
    char *p = aligned_alloc(2 * MB, 4 * MB);
    CHECK(p != NULL);
    fill(p, 4 * MB, 6);
    /* The kernel may be short of them. */
    CHECK(madvise(p, 4 * MB, MADV_COLLAPSE) == 0 || errno == EAGAIN || errno == ENOMEM || errno == EBUSY);
    CHECK(holds(p, 4 * MB, 6));
    free(p);
}

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
    pid_t child = checked_fork();
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
    keys_are_not_dumped();
    huge_pages_are_granted();
    churn_stop(churn, 1);
    return 0;
}
