/* A timer a thousand times a second, handlers that touch paged memory on an alternate
 * stack in paged memory, system calls that get EINTR exactly when they should. */
#include "hazard.h"
#include <sys/time.h>

static char *p;
static size_t n;
static atomic_ulong ticks;

static void tick(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)info, (void)context;
    int saved = errno;
    size_t page = mix(ticks++) % (n / PAGE);
    volatile uint64_t *w = (volatile uint64_t *)(p + page * PAGE);
    CHECK(w[0] == word_at(1, page * 512));
    w[511] = ticks;
    errno = saved;
}

int main(void)
{
    n = hazard_bytes() / 2;
    p = map_private(n);
    fill(p, n, 1);
    char *space = map_private(MB);
    stack_t stack = {.ss_sp = space, .ss_size = MB};
    CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct churn churn[1];
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    CHECK(pthread_sigmask(SIG_BLOCK, &alarm_only, NULL) == 0);
    churn_start(churn, 1);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL) == 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    double end = now() + 2.5;
    while (now() < end) {
        for (size_t at = 0; at < n; at += PAGE)
            CHECK(*(volatile uint64_t *)(p + at) == word_at(1, at / 8));
    }
    /* Without SA_RESTART a sleeping read is interrupted. */
    action.sa_flags &= ~SA_RESTART;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    int fd[2];
    char c;
    CHECK(pipe(fd) == 0);
    CHECK(read(fd[0], &c, 1) == -1 && errno == EINTR);
    struct itimerval never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    churn_stop(churn, 1);
    CHECK(ticks > 0);
    return 0;
}
