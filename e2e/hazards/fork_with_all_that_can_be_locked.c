/* A process locks as much memory as it is allowed to, and forks. The child has what its parent
 * has, or the fork fails with EAGAIN or ENOMEM; once enough is unlocked it works. */
#include "hazard.h"

static int forked(char *p, size_t n)
{
    pid_t child = fork();
    if (child < 0) {
        CHECK(errno == EAGAIN || errno == ENOMEM);
        return 0;
    }
    if (child == 0)
        _exit(holds(p, n, 5) ? 0 : 1);
    reap(child);
    return 1;
}

static void *beside(void *stop)
{
    while (!*(atomic_int *)stop)
        free(malloc(100000)), nap(1);
    return NULL;
}

int main(void)
{
    alarm(100);
    size_t n = hazard_bytes() / 2, locked = 0;
    char *p = map_private(n);
    fill(p, n, 5);
    atomic_int stop = 0;
    pthread_t other;
    CHECK(pthread_create(&other, NULL, beside, &stop) == 0);
    while (locked < n && mlock(p + locked, PAGE) == 0)
        locked += PAGE;
    for (int i = 0; i < 3; i++)
        forked(p, n);
    CHECK(munlock(p, locked) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(forked(p, n));
    stop = 1;
    CHECK(pthread_join(other, NULL) == 0);
    return 0;
}
