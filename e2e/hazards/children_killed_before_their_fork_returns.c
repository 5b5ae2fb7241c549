/* A child that is killed as soon as it is there has been forked: its parent has its number and its end. */
#include "hazard.h"

static volatile int stop;

/* Kills each child of the main thread that it sees. */
static void *killer(void *unused)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    while (!stop) {
        FILE *children = fopen(path, "r");
        int child;
        CHECK(children);
        while (fscanf(children, "%d", &child) == 1)
            kill(child, SIGKILL);
        fclose(children);
    }
    return unused;
}

int main(void)
{
    size_t n = 64 * PAGE;
    char *p = map_private(n);
    fill(p, n, 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, killer, NULL) == 0);
    for (int round = 0; round < 200; round++) {
        pid_t child = checked_fork();
        if (child == 0) {
            CHECK(holds(p, n, 1));
            pause();
            _exit(1);
        }
        int status = end_of(child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(holds(p, n, 1));
    return 0;
}
