/* A thread that has forked can be cancelled as before, and so can threads of the child and of its child. */
#include "hazard.h"
#include <sys/syscall.h>

static int cancel_state(void)
{
    int state;
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0);
    return state;
}

static void fork_twice(void *by)
{
    pid_t child = by ? (pid_t)syscall(SYS_fork) : checked_fork();
    CHECK(child >= 0);
    CHECK(cancel_state() == PTHREAD_CANCEL_ENABLE);
    if (child == 0) {
        pid_t grandchild = checked_fork();
        CHECK(cancel_state() == PTHREAD_CANCEL_ENABLE);
        if (grandchild == 0)
            _exit(0);
        _exit(WEXITSTATUS(end_of(grandchild)));
    }
    CHECK(end_of(child) == 0);
}

static void *forks_and_waits(void *by)
{
    fork_twice(by);
    while (pause())
        ;
    return by;
}

static void *forks_without_cancellation(void *by)
{
    int state;
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1);
    pid_t child = fork();
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0);
    CHECK(state == PTHREAD_CANCEL_DISABLE);
    if (child == 0)
        _exit(0);
    CHECK(end_of(child) == 0);
    return by;
}

int main(void)
{
    for (int round = 0; round < 20; round++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, forks_and_waits, round % 2 ? &round : NULL) == 0);
        usleep(1000 * round);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        while (waitpid(-1, NULL, 0) > 0)
            ;
        CHECK(pthread_create(&thread, NULL, forks_without_cancellation, NULL) == 0);
        CHECK(pthread_join(thread, &result) == 0);
    }
    return 0;
}
