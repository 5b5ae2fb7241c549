/* What `signal` and its kin set, as sigaction(2) then shows it. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE
#include "hazard.h"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

extern sighandler_t bsd_signal(int, sighandler_t);

static void ignore(int unused) { (void)unused; }

static void show(const char *how)
{
    struct sigaction action;
    CHECK(sigaction(SIGUSR1, NULL, &action) == 0);
    unsigned flags = action.sa_flags & (SA_RESTART | SA_NODEFER | SA_RESETHAND | SA_SIGINFO | SA_ONSTACK);
    printf("%s: flags %x, mask", how, flags);
    for (int n = 1; n < 65; n++)
        if (sigismember(&action.sa_mask, n) == 1)
            printf(" %d", n);
    puts("");
}

/* A program hands what sigaction shows to the system call itself. */
static void restores_by_number(int number)
{
    struct { sighandler_t handler; unsigned long flags; void (*restorer)(void); unsigned long mask; } action = {0};
    struct sigaction shown, set = { .sa_handler = ignore };
    CHECK(sigaction(number, &set, NULL) == 0 && sigaction(number, NULL, &shown) == 0);
    action.handler = shown.sa_handler;
    action.flags = (unsigned)shown.sa_flags;
    action.restorer = shown.sa_restorer;
    CHECK(action.restorer != NULL);
    CHECK(syscall(SYS_rt_sigaction, number, &action, NULL, 8) == 0);
    CHECK(raise(number) == 0);
    CHECK(sigaction(number, &shown, NULL) == 0 && raise(number) == 0);
    CHECK(signal(number, SIG_DFL) == ignore);
}

int main(void)
{
    restores_by_number(SIGUSR1);
    restores_by_number(SIGBUS);
    signal(SIGUSR1, ignore);
    show("signal");
    sysv_signal(SIGUSR1, ignore);
    show("sysv_signal");
    signal(SIGUSR1, SIG_IGN);
    show("signal(SIG_IGN)");
    CHECK(siginterrupt(SIGUSR1, 1) == 0);
    show("siginterrupt");
    signal(SIGUSR1, ignore);
    show("signal after siginterrupt");
    CHECK(siginterrupt(SIGUSR1, 0) == 0);
    show("siginterrupt(0)");
    signal(SIGUSR1, ignore);
    show("signal again");
    CHECK(siginterrupt(0, 1) == -1 && siginterrupt(100, 1) == -1);
    CHECK(signal(100, ignore) == SIG_ERR && signal(SIGKILL, ignore) == SIG_ERR);
    /* Blocks for any type, from each of the allocator's functions. */
    for (size_t bytes = 0; bytes < 64; bytes++) {
        void *blocks[] = { malloc(bytes), calloc(1, bytes), calloc(bytes, 1), realloc(malloc(100), bytes + 1) };
        for (size_t n = 0; n < 4; n++) {
            CHECK(blocks[n] != NULL && (uintptr_t)blocks[n] % 16 == 0);
            free(blocks[n]);
        }
    }
    puts("aligned");
    return 0;
}
