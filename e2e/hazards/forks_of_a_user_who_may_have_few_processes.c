/* A user who may have few processes forks until that fails: a child is there and has its parent's
 * memory, or the fork fails with EAGAIN; and where some have ended, forks work again. */
#include "hazard.h"
#include <grp.h>

enum { CHILDREN = 12, USER = 61234 };

static pid_t start(const char *kept, int from)
{
    errno = 0;
    pid_t child = fork();
    if (child == 0) {
        char byte;
        CHECK(read(from, &byte, 1) == 0);
        _exit(holds(kept, 4 * MB, 5) ? 0 : 1);
    }
    CHECK(child > 0 || errno == EAGAIN);
    return child;
}

static void ends_well(pid_t child)
{
    reap(child);
}

int main(void)
{
    if (geteuid() != 0) {
        fputs("it takes another user's number, for which it must be root\n", stderr);
        return 77;
    }
    char *kept = map_private(4 * MB);
    fill(kept, 4 * MB, 5);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NPROC, &limit) == 0);
    limit.rlim_cur = 8;
    CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0);
    CHECK(setgroups(0, NULL) == 0 && setgid(USER) == 0 && setuid(USER) == 0);
    for (int round = 0; round < 3; round++) {
        int wait[2], count = 0;
        pid_t child[CHILDREN];
        CHECK(pipe(wait) == 0);
        push_out();
        while (count < CHILDREN && (child[count] = start(kept, wait[0])) > 0) {
            /* Only this process keeps the pipe open: its end ends them. */
            count++;
        }
        CHECK(count > 0 && count < CHILDREN);
        CHECK(waitpid(-1, NULL, WNOHANG) == 0);
        close(wait[0]);
        for (int n = 0; n < count; n++)
            CHECK(kill(child[n], SIGKILL) == 0);
        for (int n = 0; n < count; n++) {
            CHECK(end_of(child[n]) == SIGKILL);
        }
        close(wait[1]);
        pid_t one = checked_fork();
        if (one == 0)
            _exit(holds(kept, 4 * MB, 5) ? 0 : 1);
        ends_well(one);
    }
    puts("forked");
    return 0;
}
