/* A shared mapping placed over paged memory belongs to the kernel, in a fork's child too: a
 * page of it that no process has touched yet comes from the shared file, not from the pager,
 * and a system call that writes to it does not wait. */
#include "hazard.h"

/* Fault on pages of the shared file that are in no page table and not in the page cache. */
static void touch_in_child(char *shared, size_t bytes)
{
    pid_t child = checked_fork();
    if (child == 0) {
        alarm(60);
        shared[bytes / 2] = 1;
        CHECK(pread(open("/proc/self/stat", O_RDONLY), shared + bytes / 4, 64, 0) > 0);
        CHECK(all_zero(shared + bytes - PAGE, PAGE));
        _exit(0);
    }
    reap(child);
    CHECK(shared[bytes / 2] == 1 && shared[bytes / 4] != 0);
}

int main(void)
{
    size_t n = 4 * MB, hole = 1 * MB;
    char *p = map_private(n);
    fill(p, n, 1);
    int fd = memfd_create("shared", 0);
    CHECK(fd >= 0 && ftruncate(fd, hole) == 0);
    CHECK(mmap(p + MB, hole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p + MB);
    touch_in_child(p + MB, hole);
    /* Anonymous shared memory; one page past a boundary, so that it ends inside a unit. */
    size_t odd = hole + PAGE;
    char *q = p + 2 * MB + 3 * PAGE;
    CHECK(mmap(q, odd, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == q);
    touch_in_child(q, odd);
    /* What lies around them is paged as before, on both sides of a fork. */
    push_out();
    pid_t child = checked_fork();
    if (child == 0) {
        push_out();
        CHECK(holds(p, MB, 1));
        for (size_t i = (q + odd - p) / 8; i < n / 8; i += 61)
            CHECK(((uint64_t *)p)[i] == word_at(1, i));
        _exit(0);
    }
    reap(child);
    CHECK(holds(p, MB, 1));
    /* And once the shared mapping is gone, its place is private memory again. */
    CHECK(munmap(p + MB, hole) == 0);
    CHECK(mmap(p + MB, hole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + MB);
    CHECK(all_zero(p + MB, hole));
    fill(p + MB, hole, 2);
    push_out();
    child = checked_fork();
    if (child == 0) {
        CHECK(holds(p + MB, hole, 2));
        _exit(0);
    }
    reap(child);
    return 0;
}
