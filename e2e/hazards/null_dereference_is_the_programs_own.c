/* A runtime that turns null dereferences into exceptions: SIGSEGV at address 0 with
 * siglongjmp out, thousands of times, with paging going on; and the default action
 * without a handler. */
#include "hazard.h"

static __thread sigjmp_buf back;
static void handler(int sig, siginfo_t *info, void *context)
{
    (void)context;
    CHECK(sig == SIGSEGV && info->si_addr < (void *)PAGE && info->si_code == SEGV_MAPERR);
    siglongjmp(back, 1);
}

static void *thrower(void *arg)
{
    uint64_t seed = (uintptr_t)arg;
    size_t n = hazard_bytes() / 8;
    char *p = map_private(n);
    fill(p, n, seed);
    volatile unsigned caught = 0;
    for (volatile int i = 0; i < 3000; i++) {
        if (sigsetjmp(back, 1)) {
            caught++;
            continue;
        }
        size_t page = mix(i) % (n / PAGE);
        CHECK(*(volatile uint64_t *)(p + page * PAGE) == word_at(seed, page * 512));
        *(volatile int *)(uintptr_t)(i % 100) = 1;
    }
    CHECK(caught == 3000);
    CHECK(holds(p, n, seed));
    return NULL;
}

static int dies_of(int expected, void (*how)(void))
{
    pid_t child = checked_fork();
    if (child == 0) {
        prctl(PR_SET_DUMPABLE, 0);
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        how();
        _exit(0);
    }
    int status = end_of(child);
    return WIFSIGNALED(status) && WTERMSIG(status) == expected;
}
static void null_write(void) { *(volatile int *)0 = 1; }
static void raise_bus(void) { raise(SIGBUS); nap(1000); }
static void raise_segv(void) { raise(SIGSEGV); nap(1000); }
static void kernel_address(void) { *(volatile char *)0xffff800000000000ul; }
static void ignored(void)
{
    /* An ignored SIGSEGV still kills on a real fault. */
    signal(SIGSEGV, SIG_IGN);
    *(volatile int *)0 = 1;
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    struct churn churn[1];
    churn_start(churn, 1);
    pthread_t t[3];
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&t[i], NULL, thrower, (void *)(i + 1)) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    churn_stop(churn, 1);
    CHECK(dies_of(SIGSEGV, null_write));
    CHECK(dies_of(SIGSEGV, raise_segv));
    CHECK(dies_of(SIGBUS, raise_bus));
    CHECK(dies_of(SIGSEGV, kernel_address));
    CHECK(dies_of(SIGSEGV, ignored));
    return 0;
}
