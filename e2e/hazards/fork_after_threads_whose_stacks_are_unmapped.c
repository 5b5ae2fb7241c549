/* Threads end in every way a thread can, and the program unmaps their stacks: a fork must
 * not look for anything there. */
#include "hazard.h"

#define STACK (256 * 1024ul)

static void *returns(void *arg) { return arg; }

static void *leaves_by_system_call(void *arg)
{
    (void)arg;
    syscall(SYS_exit, 0);
    return NULL;
}

/* A thread on a stack that is gone when this returns. */
static void come_and_go(void *(*how)(void *))
{
    pthread_attr_t attributes;
    pthread_t thread;
    char *stack = map_private(STACK);
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, stack, STACK) == 0);
    CHECK(pthread_create(&thread, &attributes, how, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pthread_attr_destroy(&attributes) == 0);
    CHECK(munmap(stack, STACK) == 0);
}

static atomic_int stop;

static void *many(void *arg)
{
    (void)arg;
    while (!stop)
        come_and_go(returns);
    return NULL;
}

static void *waits(void *arg)
{
    (void)arg;
    while (!stop)
        nap(5);
    return NULL;
}

static void fork_once(void)
{
    pid_t child = checked_fork();
    if (child == 0)
        _exit(0);
    reap(child);
}

int main(void)
{
    alarm(100);
    come_and_go(leaves_by_system_call);
    fork_once();
    pthread_t live[24], makers[2];
    for (int i = 0; i < 24; i++)
        CHECK(pthread_create(&live[i], NULL, waits, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&makers[i], NULL, many, NULL) == 0);
    for (int i = 0; i < 60; i++)
        fork_once();
    stop = 1;
    for (int i = 0; i < 24; i++)
        CHECK(pthread_join(live[i], NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(makers[i], NULL) == 0);
    return 0;
}
