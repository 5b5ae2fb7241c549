/* mlock counts as the kernel counts: a page is locked or not, after any number of mlock calls,
 * and one munlock unlocks it. Ranges may be locked in part. Memory that is locked and unlocked
 * again and again takes no frames from the rest. */
#include "hazard.h"

int main(void)
{
    size_t n = 64 * PAGE;
    char *p = map_private(n);
    fill(p, n, 1);
    for (int i = 0; i < 20; i++)
        CHECK(mlock(p, PAGE) == 0);
    CHECK(madvise(p, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    CHECK(msync(p, PAGE, MS_INVALIDATE | MS_SYNC) == -1 && errno == EBUSY);
    CHECK(munlock(p, PAGE) == 0);
    CHECK(msync(p, PAGE, MS_INVALIDATE | MS_SYNC) == 0);
    CHECK(madvise(p, PAGE, MADV_DONTNEED) == 0 && all_zero(p, PAGE));
    fill(p, n, 2);
    /* Over a range of which some is locked. */
    CHECK(mlock(p + 8 * PAGE, 8 * PAGE) == 0);
    for (int i = 0; i < 20; i++)
        CHECK(mlock(p, 32 * PAGE) == 0);
    CHECK(munlock(p + 4 * PAGE, 8 * PAGE) == 0);
    CHECK(mlock2(p + 2 * PAGE, 16 * PAGE, MLOCK_ONFAULT) == 0);
    CHECK(madvise(p + 4 * PAGE, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    CHECK(munlock(p, n) == 0);
    CHECK(madvise(p + 4 * PAGE, PAGE, MADV_FREE) == 0);
    /* Locked, shrunk, moved, and locked by mmap. */
    CHECK(mlock(p + 32 * PAGE, 32 * PAGE) == 0 && mlock(p + 32 * PAGE, 32 * PAGE) == 0);
    char *q = mremap(p + 32 * PAGE, 32 * PAGE, 40 * PAGE, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED && mlock(q, 40 * PAGE) == 0 && munmap(q, 40 * PAGE) == 0);
    q = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
    CHECK(q != MAP_FAILED && mlock(q, 4 * PAGE) == 0 && munlock(q, 4 * PAGE) == 0);
    CHECK(munmap(q, 4 * PAGE) == 0);
    /* Where nothing can be read, the range is locked and the call fails. */
    CHECK(mprotect(p + PAGE, PAGE, PROT_NONE) == 0);
    CHECK(mlock(p, 3 * PAGE) == -1 && errno == ENOMEM);
    CHECK(mlock(p, PAGE) == 0 && mprotect(p, PAGE, PROT_NONE) == 0);
    CHECK(mlock(p, PAGE) == -1 && errno == ENOMEM);
    CHECK(mprotect(p, PAGE, PROT_READ) == 0 && mlock(p, PAGE) == 0);
    CHECK(madvise(p + PAGE, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    CHECK(mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(munlock(p, 3 * PAGE) == 0);
    /* A hole ends it: what lies behind is not locked. There the pager has no record of its own, where mremap moves to. */
    char *hole = mmap(NULL, 66 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(hole != MAP_FAILED && munmap(hole, 66 * PAGE) == 0);
    q = map_private(64 * PAGE);
    if (q + 64 * PAGE <= hole || q >= hole + 66 * PAGE) {
        q = mremap(q, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, hole + PAGE);
        CHECK(q == hole + PAGE);
        for (int on_fault = 0; on_fault < 2; on_fault++) {
            fill(q, PAGE, 4);
            CHECK(mlock2(hole, 2 * PAGE, on_fault ? MLOCK_ONFAULT : 0) == -1 && errno == ENOMEM);
            CHECK(madvise(q, PAGE, MADV_DONTNEED) == 0 && all_zero(q, PAGE));
        }
    }
    CHECK(munmap(q, 64 * PAGE) == 0);
    /* One unlock for two locks, all over a memory that does not fit into the frames. */
    size_t all = hazard_bytes() / 2;
    char *many = map_private(all);
    fill(many, all, 3);
    for (size_t at = 0; at < all; at += PAGE)
        CHECK(mlock(many + at, PAGE) == 0 && mlock(many + at, PAGE) == 0 && munlock(many + at, PAGE) == 0);
    CHECK(holds(many, all, 3));
    push_out();
    /* A fork's child has nothing locked. */
    CHECK(mlock(p, 4 * PAGE) == 0);
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(madvise(p, PAGE, MADV_DONTNEED) == 0 && mlock(p, PAGE) == 0 && munlock(p, PAGE) == 0);
        _exit(0);
    }
    reap(child);
    CHECK(madvise(p, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    CHECK(munlockall() == 0 && madvise(p, PAGE, MADV_DONTNEED) == 0);
    /* RLIMIT_MEMLOCK, for a process without CAP_IPC_LOCK. */
    child = checked_fork();
    if (child == 0) {
        struct rlimit limit = {4 * PAGE, 4 * PAGE};
        CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
        if (geteuid() == 0)
            CHECK(setgid(65534) == 0 && setuid(65534) == 0);
        CHECK(mlock(p, 4 * PAGE) == 0 && mlock(p, 4 * PAGE) == 0);
        CHECK(mlock(p, 5 * PAGE) == -1 && errno == ENOMEM);
        CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0) == MAP_FAILED && errno == EAGAIN);
        CHECK(munlock(p, PAGE) == 0 && mlock(p + 4 * PAGE, PAGE) == 0);
        limit.rlim_cur = 0;
        CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
        CHECK(mlock(p, PAGE) == -1 && errno == EPERM);
        CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0) == MAP_FAILED && errno == EPERM);
        _exit(0);
    }
    reap(child);
    return 0;
}
