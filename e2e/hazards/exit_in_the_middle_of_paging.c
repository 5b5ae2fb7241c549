/* A process that ends while its other threads page: by exit, _exit, a signal, abort, and
 * by main leaving first. The parent sees the true status, at once, every time. */
#include "hazard.h"

static void *last_thread(void *arg)
{
    (void)arg;
    nap(30);
    exit(44);
}

int main(void)
{
    for (int i = 0; i < 15; i++) {
        pid_t child = checked_fork();
        if (child == 0) {
            static struct churn churn[3];
            prctl(PR_SET_DUMPABLE, 0);
            churn_start(churn, 3);
            nap(10 + mix(i) % 60);
            switch (i % 5) {
            case 0: exit(40);
            case 1: _exit(41);
            case 2: kill(getpid(), SIGTERM); nap(1000); break;
            case 3: abort();
            case 4: {
                pthread_t t;
                CHECK(pthread_create(&t, NULL, last_thread, NULL) == 0);
                pthread_exit(NULL);
            }
            }
            _exit(9);
        }
        int status = end_of(child);
        switch (i % 5) {
        case 0: CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 40); break;
        case 1: CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 41); break;
        case 2: CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM); break;
        case 3: CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT); break;
        case 4: CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 44); break;
        }
    }
    /* And this process itself, in mid-paging. */
    static struct churn churn[2];
    churn_start(churn, 2);
    nap(50);
    exit(0);
}
