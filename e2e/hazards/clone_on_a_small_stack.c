/* The child of clone() on a stack of a few hundred bytes in its caller's own, where what the child reads first lies below that
 * (as D's collector forks), and on one of a page on the heap between other memory. */
#include "hazard.h"

static char *pages;
static size_t bytes;

static int small(void *arg)
{
    return *(volatile int *)arg;
}

static int pages_are_there(void *arg)
{
    return holds(pages, bytes, 1) ? *(volatile int *)arg : 1;
}

/* Not inlined, so that the stack lies above the argument's frame. */
__attribute__((noinline)) static void clone_in(char *top, int (*entry)(void *), int answer)
{
    volatile int arg = answer;
    pid_t pid = clone(entry, top, SIGCHLD, (void *)&arg);
    CHECK(pid > 0);
    int status = end_of(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == answer);
}

int main(void)
{
    bytes = hazard_bytes();
    pages = malloc(bytes);
    fill(pages, bytes, 1);
    char in_caller[512] __attribute__((aligned(16)));
    clone_in(in_caller + sizeof in_caller, small, 7);
    char *heap = malloc(3 * PAGE);
    fill(heap, 3 * PAGE, 2);
    char *stack = (char *)(((uintptr_t)heap + PAGE) & ~(PAGE - 1)) + PAGE;
    char *below = stack - PAGE;
    for (int round = 0; round < 20; round++)
        clone_in(stack, pages_are_there, 9);
    CHECK(holds(heap, (below - heap) & ~7ul, 2));
    CHECK(holds(pages, bytes, 1));
    return 0;
}
