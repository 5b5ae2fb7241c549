/* Worker threads often block all signals, SIGBUS and SIGSEGV included: their faults
 * must resolve none the less. */
#include "hazard.h"

static void *worker(void *arg)
{
    uint64_t seed = (uintptr_t)arg;
    size_t n = hazard_bytes() / 4;
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
    char *p = map_private(n), *q = malloc(n / 4);
    for (int round = 0; round < 2; round++) {
        fill(p, n, seed + round);
        fill(q, n / 4, seed * 3 + round);
        CHECK(holds(p, n, seed + round));
        CHECK(holds(q, n / 4, seed * 3 + round));
    }
    /* Pending signals must not have been eaten either. */
    CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
    CHECK(holds(p, n, seed + 1));
    sigset_t pending;
    CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1));
    /* What the program blocked is what it reads back. */
    sigset_t mask;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0);
    CHECK(sigismember(&mask, SIGTERM) && sigismember(&mask, SIGUSR2));
    free(q);
    return NULL;
}

int main(void)
{
    pthread_t t[4];
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&t[i], NULL, worker, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    sigset_t all;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    push_out();
    return 0;
}
