/* The kernel stores the number of a clone's child in shared memory (CLONE_CHILD_SETTID): it changes that word, and nothing beside it. */
#include "hazard.h"
#include <sched.h>
#include <sys/syscall.h>

enum { ROUNDS = 24 };
static int *volatile word;

static int waits(void *unused)
{
    (void)unused;
    while (*(volatile int *)word != (int)syscall(SYS_gettid))
        usleep(1000);
    return 0;
}

static pid_t start(int round, int flags, char *stack, size_t size)
{
    if (round % 3 == 0)
        return clone(waits, stack + size, flags, NULL, NULL, NULL, word);
    pid_t child;
    if (round % 3 == 1) {
        child = syscall(SYS_clone, flags, NULL, NULL, word, NULL);
    } else {
        uint64_t arguments[11] = {flags & ~0xff, 0, (uintptr_t)word, 0, flags & 0xff};
        child = syscall(SYS_clone3, arguments, sizeof arguments);
    }
    if (child == 0)
        _exit(waits(NULL));
    return child;
}

int main(void)
{
    alarm(100);
    size_t all = hazard_bytes(), pages = all / PAGE;
    char *shared = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *stack = malloc(64 << 10);
    CHECK(shared != MAP_FAILED && stack);
    fill(shared, all, 1);
    for (int round = 0; round < ROUNDS; round++) {
        size_t page = (round + 1) * (pages / (ROUNDS + 1));
        uint64_t *at = (uint64_t *)(shared + page * PAGE);
        word = (int *)at;
        pid_t child = start(round, SIGCHLD | CLONE_CHILD_SETTID, stack, 64 << 10);
        CHECK(child > 0);
        reap(child);
        CHECK(*word == child);
        for (size_t n = 1; n < PAGE / 8; n++)
            CHECK(at[n] == word_at(1, page * PAGE / 8 + n));
    }
    return 0;
}
