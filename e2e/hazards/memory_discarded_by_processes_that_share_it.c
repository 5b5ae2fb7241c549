/* A child of vfork, and a process that clone made with CLONE_VM, discard memory of their parent by madvise of an
 * instruction of their own: it reads as zeros afterwards, resident or not. */
#include "hazard.h"

static char *memory;
static size_t bytes;
static char stack[64 << 10];

static int discards(void *unused)
{
    (void)unused;
    return bare_madvise(memory, bytes, MADV_DONTNEED) != 0;
}

int main(void)
{
    bytes = hazard_bytes();
    memory = map_private(bytes);
    fill(memory, bytes, 1);
    pid_t child = vfork();
    if (child == 0)
        _exit(discards(NULL));
    reap(child);
    CHECK(all_zero(memory, bytes));

    fill(memory, bytes, 2);
    child = clone(discards, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
    CHECK(child > 0);
    reap(child);
    CHECK(all_zero(memory, bytes));
    return 0;
}
