/* A process is killed while it forks. Its child has the shared memory that it had, and the contents stay for all others. */
#include "hazard.h"
#include <sys/prctl.h>

#define PAGES 6144
#define ROUNDS 80

static volatile unsigned long *shared;

static unsigned long wrong(void)
{
    unsigned long count = 0;
    for (unsigned long n = 0; n < PAGES; n++)
        count += shared[n * PAGE / sizeof *shared] != n + 1;
    return count;
}

/* Forks a child that writes how many pages are wrong. */
static void fork_and_wait(int pipe_end)
{
    pid_t child = fork();
    if (child == 0) {
        unsigned long count = wrong();
        _exit(write(pipe_end, &count, sizeof count) != sizeof count);
    }
    for (;;)
        pause();
}

int main(void)
{
    size_t n = (size_t)PAGES * PAGE;
    shared = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    for (unsigned long page = 0; page < PAGES; page++)
        shared[page * PAGE / sizeof *shared] = page + 1;
    CHECK(wrong() == 0);
    /* Also the children of those that are killed are waited for. */
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        int ends[2];
        CHECK(pipe(ends) == 0);
        pid_t parent = checked_fork();
        if (parent == 0) {
            close(ends[0]);
            fork_and_wait(ends[1]);
        }
        close(ends[1]);
        usleep(round * 100);
        CHECK(kill(parent, SIGKILL) == 0);
        unsigned long count = 0;
        ssize_t got = read(ends[0], &count, sizeof count);
        CHECK(got == 0 || got == sizeof count);
        CHECK(count == 0);
        CHECK(wrong() == 0);
        close(ends[0]);
        while (waitpid(-1, NULL, 0) > 0)
            ;
        CHECK(errno == ECHILD);
    }
    return 0;
}
