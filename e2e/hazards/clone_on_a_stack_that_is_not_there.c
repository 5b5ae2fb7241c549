/* A child that copies memory, on a stack that nothing is mapped at or that is read-only:
 * the caller dies of SIGSEGV, as the C library writes there first. On a good stack, even one
 * that was paged out, it runs. */
#include "hazard.h"

#define STACK (64 * 1024ul)

static int checks(void *arg)
{
    _exit(holds(arg, MB, 3) ? 0 : 1);
}

/* The exit status of a process that clones with this stack. */
static int fate(char *stack, void *arg)
{
    pid_t child = checked_fork();
    if (child == 0) {
        alarm(60);
        pid_t grandchild = clone(checks, stack + STACK, SIGCHLD, arg);
        CHECK(grandchild > 0);
        reap(grandchild);
        _exit(0);
    }
    int status = end_of(child);
    return status;
}

int main(void)
{
    char *data = map_private(MB), *stack = map_private(4 * STACK);
    fill(data, MB, 3);
    fill(stack, STACK, 4);
    push_out();
    CHECK(fate(stack, data) == 0);
    CHECK(munmap(stack + STACK, STACK) == 0);
    int status = fate(stack + STACK, data);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(mprotect(stack + 2 * STACK, STACK, PROT_READ) == 0);
    status = fate(stack + 2 * STACK, data);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    return 0;
}
