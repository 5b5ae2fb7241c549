/* What language runtimes do: reserve 100 GB without commitment, touch it sparsely, or
 * reserve with PROT_NONE and commit piece by piece. */
#include "hazard.h"

/* In sum they are more than the addresses of a process. */
static void lengths_that_grow(void)
{
    const size_t step = 3ul << 30, most = 333 * step;
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (size_t len = step; len < most; len += step) {
        char *p = mmap(NULL, len, prot, flags, -1, 0);
        CHECK(p != MAP_FAILED);
        CHECK(munmap(p, len) == 0);
    }
    char *p = mmap(NULL, step, prot, flags, -1, 0);
    CHECK(p != MAP_FAILED);
    for (size_t len = step; len < most; len += step) {
        *(uint64_t *)(p + len - PAGE) = mix(len);
        p = mremap(p, len, len + step, MREMAP_MAYMOVE);
        CHECK(p != MAP_FAILED);
    }
    for (size_t len = step; len < most; len += step)
        CHECK(*(uint64_t *)(p + len - PAGE) == mix(len));
    CHECK(munmap(p, most) == 0);
}

int main(void)
{
    size_t huge = 100ul << 30;
    char *p = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    size_t touches = hazard_bytes() / PAGE, step = huge / touches / PAGE * PAGE;
    for (size_t i = 0; i < touches; i++)
        *(volatile uint64_t *)(p + i * step) = mix(i);
    for (size_t i = 0; i < touches; i++)
        CHECK(*(volatile uint64_t *)(p + i * step) == mix(i));
    /* Fork with it, then give it back. */
    pid_t child = checked_fork();
    if (child == 0) {
        for (size_t i = 0; i < touches; i += 5)
            CHECK(*(volatile uint64_t *)(p + i * step) == mix(i));
        _exit(0);
    }
    reap(child);
    CHECK(madvise(p, huge / 2, MADV_DONTNEED) == 0);
    CHECK(*(volatile uint64_t *)p == 0 && *(volatile uint64_t *)(p + (touches - 1) * step) == mix(touches - 1));
    CHECK(munmap(p, huge) == 0);

    char *q = mmap(NULL, huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(q != MAP_FAILED);
    size_t n = hazard_bytes(), piece = 64 * 1024;
    for (size_t at = 0; at < n; at += piece) {
        CHECK(mprotect(q + at * 3, piece, PROT_READ | PROT_WRITE) == 0);
        fill(q + at * 3, piece, at);
    }
    for (size_t at = 0; at < n; at += piece) {
        CHECK(holds(q + at * 3, piece, at));
        if (at / piece % 2) {
            /* Decommit as Go and the JVM do: map PROT_NONE over it, commit again: zero. */
            CHECK(mmap(q + at * 3, piece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == q + at * 3);
            CHECK(mprotect(q + at * 3, piece, PROT_READ | PROT_WRITE) == 0);
            CHECK(all_zero(q + at * 3, piece));
        }
    }
    CHECK(munmap(q, huge) == 0);
    lengths_that_grow();
    return 0;
}
