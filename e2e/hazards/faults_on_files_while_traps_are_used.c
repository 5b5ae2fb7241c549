/* Faults on a file, in several threads, forks and an exec, by a program that uses SIGTRAP
 * itself: its handler takes what it raises and its own break points and nothing else, it
 * waits for signals, it blocks all of them; it sets handlers by every call there is. What it
 * reads is what it wrote. */
#include "hazard.h"

static atomic_int raised, stops, others;

static void trapped(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    if (info->si_code == SI_TKILL || info->si_code == SI_USER)
        raised++;
    else if (info->si_code == SI_KERNEL || info->si_code == TRAP_BRKPT)
        stops++;
    else
        others++;
}

static atomic_int plain;

static void counted(int signal)
{
    (void)signal;
    plain++;
}

static size_t pages;
static int file;

/* Touches each page of the file twice: a fault to read, a fault to write. */
static void *touch(void *arg)
{
    uint64_t own = (uint64_t)(uintptr_t)arg;
    char *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(p != MAP_FAILED && madvise(p, pages * PAGE, MADV_RANDOM) == 0);
    for (size_t i = 0; i < pages; i++) {
        volatile uint64_t *w = (volatile uint64_t *)(p + i * PAGE);
        CHECK(*w == mix(i));
        *w += own;
    }
    for (size_t i = 0; i < pages; i++)
        CHECK(*(volatile uint64_t *)(p + i * PAGE) == mix(i) + own);
    CHECK(munmap(p, pages * PAGE) == 0);
    return NULL;
}

static void in_threads(void)
{
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, touch, (void *)(i + 1)) == 0);
    touch(NULL);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv)
{
    pages = hazard_bytes() / 16 / PAGE;
    FILE *made = tmpfile();
    CHECK(made);
    file = fileno(made);
    for (size_t i = 0; i < pages; i++) {
        uint64_t word = mix(i);
        CHECK(pwrite(file, &word, sizeof word, i * PAGE) == sizeof word);
    }
    CHECK(ftruncate(file, pages * PAGE) == 0);
    if (argc > 1) {
        in_threads();
        return 0;
    }
    touch(NULL);

    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO}, before;
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGTRAP, &action, &before) == 0 && before.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGTRAP, NULL, &before) == 0 && before.sa_sigaction == trapped);
    CHECK(raise(SIGTRAP) == 0);
    __asm__ volatile("int3");
    in_threads();
    CHECK(raise(SIGTRAP) == 0);
    CHECK(raised == 2 && stops == 1 && others == 0);

    CHECK(sigset(SIGTRAP, counted) != SIG_ERR);
    touch((void *)3);
    CHECK(raise(SIGTRAP) == 0 && plain == 1);
    CHECK(sysv_signal(SIGTRAP, counted) == counted);
    touch((void *)4);
    CHECK(raise(SIGTRAP) == 0 && plain == 2);
    CHECK(sigaction(SIGTRAP, NULL, &before) == 0 && before.sa_handler == SIG_DFL);

    /* No signal is pending for a thread that blocks and waits for all signals. */
    sigset_t all, old;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &old) == 0);
    touch((void *)5);
    struct timespec none = {0, 0};
    CHECK(sigtimedwait(&all, NULL, &none) == -1 && errno == EAGAIN);

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        touch((void *)7);
        execl("/proc/self/exe", argv[0], "again", (char *)NULL);
        _exit(9);
    }
    reap(child);
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);

    /* And the default action is what it was. */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(signal(SIGTRAP, SIG_DFL) != SIG_ERR);
        touch((void *)9);
        raise(SIGTRAP);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP);
    CHECK(raised == 2 && stops == 1 && others == 0);
    puts("as written");
    return 0;
}
