/* The end of a file mapping gives SIGBUS: what databases handle themselves. The
 * program's handler gets it, with the true address, and paging goes on. sigaction,
 * signal and sigprocmask show what the program set, not what the pager did. */
#include "hazard.h"

static __thread sigjmp_buf back;
static void *volatile at;
static void handler(int sig, siginfo_t *info, void *context)
{
    (void)context;
    CHECK(sig == SIGBUS && info->si_code == BUS_ADRERR);
    at = info->si_addr;
    siglongjmp(back, 1);
}

int main(void)
{
    struct sigaction was, action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGBUS, NULL, &was) == 0 && was.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGBUS, &action, &was) == 0 && was.sa_handler == SIG_DFL);
    FILE *file = tmpfile();
    size_t n = MB;
    CHECK(file && ftruncate(fileno(file), n) == 0);
    char *shared = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    char *private = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    CHECK(shared != MAP_FAILED && private != MAP_FAILED);
    fill(shared, n, 1);
    size_t m = hazard_bytes() / 2;
    char *p = map_private(m);
    fill(p, m, 2);
    CHECK(ftruncate(fileno(file), n / 2) == 0);
    volatile int caught = 0;
    for (volatile int i = 0; i < 1000; i++) {
        char *bad = (i % 2 ? shared : private) + n / 2 + (size_t)(i % 100) * PAGE + 3;
        if (sigsetjmp(back, 1)) {
            CHECK(at == bad);
            caught++;
            continue;
        }
        size_t page = mix(i) % (m / PAGE);
        CHECK(*(volatile uint64_t *)(p + page * PAGE) == word_at(2, page * 512));
        (void)*(volatile char *)bad;
        CHECK(!"reached");
    }
    CHECK(caught == 1000);
    CHECK(sigaction(SIGBUS, NULL, &was) == 0 && was.sa_sigaction == handler && (was.sa_flags & SA_SIGINFO));
    CHECK(holds(p, m, 2));
    /* One whose handler is set by signal(), with SIGBUS in its mask of blocked signals. */
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    CHECK(sigprocmask(SIG_BLOCK, &bus, NULL) == 0);
    push_out();
    CHECK(holds(p, m, 2));
    sigset_t mask;
    CHECK(sigprocmask(SIG_UNBLOCK, &bus, &mask) == 0 && sigismember(&mask, SIGBUS));
    CHECK(signal(SIGBUS, SIG_IGN) != SIG_ERR);
    push_out();
    CHECK(holds(p, m, 2));
    return 0;
}
