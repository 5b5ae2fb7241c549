/* A handler that interrupts mmap or munmap jumps out of it: the thread can be cancelled as before. */
#include "hazard.h"

static sigjmp_buf out;
static _Atomic int jumps;
static volatile sig_atomic_t in_call;
static pthread_t mapper;

static void on_signal(int signal)
{
    (void)signal;
    if (in_call) {
        in_call = 0;
        siglongjmp(out, 1);
    }
}

static void *map_and_unmap(void *unused)
{
    for (;;) {
        if (sigsetjmp(out, 1))
            jumps++;
        int state;
        CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0 && state == PTHREAD_CANCEL_ENABLE);
        pthread_testcancel();
        in_call = 1;
        char *p = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(p, 16 * PAGE);
        in_call = 0;
    }
    return unused;
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(pthread_create(&mapper, NULL, map_and_unmap, NULL) == 0);
    for (int tries = 0; jumps < 50 && tries < 20000; tries++) {
        CHECK(pthread_kill(mapper, SIGUSR1) == 0);
        nap(1);
    }
    CHECK(jumps >= 50 && pthread_cancel(mapper) == 0);
    void *result;
    CHECK(pthread_join(mapper, &result) == 0 && result == PTHREAD_CANCELED);
    puts("cancelled");
    return 0;
}
