/* Shared by all hazard programs: a check that ends the process with the place
 * that failed, memory filled with a pattern that tells each word apart, and churn:
 * threads that keep more memory moving than the frames hold.
 *
 * Each program checks itself and exits 0; any other end is a failure. Each is run
 * without the pager first, so that a failure under it is the pager's.
 * HAZARD_MB in the environment says how much memory to touch. */
#ifndef HAZARD_H
#define HAZARD_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define MB (1ul << 20)

/* Ends the process at once, without atexit handlers, stdio or the heap: those may be
 * what failed. */
__attribute__((unused, noreturn)) static void fail_at(const char *file, int line, const char *what)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s:%d: [%d] %s (errno %d)\n", file, line, (int)getpid(), what, errno);
    if (write(2, text, n) < 0)
        _exit(2);
    _exit(1);
}
#define CHECK(what) do { if (!(what)) fail_at(__FILE__, __LINE__, #what); } while (0)

__attribute__((unused)) static size_t hazard_bytes(void)
{
    const char *mb = getenv("HAZARD_MB");
    size_t n = mb ? strtoul(mb, NULL, 10) : 0;
    return (n ? n : 96) * MB;
}

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Half of each page is noise and half is not, as in real memory. */
static inline uint64_t word_at(uint64_t seed, size_t i)
{
    return (i & 1) ? seed + (i >> 9) : mix(seed ^ (i * 0x2545f4914f6cdd1dull));
}

__attribute__((unused)) static void fill(void *start, size_t bytes, uint64_t seed)
{
    volatile uint64_t *w = start;
    for (size_t i = 0; i < bytes / 8; i++)
        w[i] = word_at(seed, i);
}

__attribute__((unused)) static int holds(const void *start, size_t bytes, uint64_t seed)
{
    const volatile uint64_t *w = start;
    for (size_t i = 0; i < bytes / 8; i++)
        if (w[i] != word_at(seed, i)) {
            fprintf(stderr, "[%d] word %zu of %p is %016lx, not %016lx\n", (int)getpid(), i, start,
                    (unsigned long)w[i], (unsigned long)word_at(seed, i));
            return 0;
        }
    return 1;
}

__attribute__((unused)) static int all_zero(const void *start, size_t bytes)
{
    const volatile uint64_t *w = start;
    for (size_t i = 0; i < bytes / 8; i++)
        if (w[i])
            return 0;
    return 1;
}

/* madvise by an instruction of the program's own: no function of the C library's makes the call. */
__attribute__((unused)) static long bare_madvise(void *addr, size_t len, long advice)
{
    long answer;
    register long tail asm("r10") = 0;
    asm volatile("syscall"
                 : "=a"(answer)
                 : "a"(SYS_madvise), "D"(addr), "S"(len), "d"(advice), "r"(tail)
                 : "rcx", "r11", "memory");
    return answer;
}

__attribute__((unused)) static void *map_private(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* Pushes everything else out of the frames by touching the hazard's whole size. */
__attribute__((unused)) static void push_out(void)
{
    static uint64_t seed = 77;
    size_t n = hazard_bytes();
    char *p = map_private(n);
    for (size_t i = 0; i < n; i += PAGE)
        *(volatile uint64_t *)(p + i) = seed + i;
    for (size_t i = 0; i < n; i += PAGE)
        CHECK(*(volatile uint64_t *)(p + i) == seed + i);
    seed++;
    CHECK(munmap(p, n) == 0);
}

__attribute__((unused)) static void nap(long milliseconds)
{
    struct timespec t = {milliseconds / 1000, (milliseconds % 1000) * 1000000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

__attribute__((unused)) static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Churn: each thread goes round its share of the hazard's size, checks each page as it
 * left it and writes it anew. */
struct churn {
    pthread_t thread;
    atomic_int stop;
    size_t bytes;
    unsigned long rounds;
};

__attribute__((unused)) static void *churn_main(void *arg)
{
    struct churn *c = arg;
    size_t pages = c->bytes / PAGE;
    char *p = map_private(c->bytes);
    uint64_t round = 0;
    while (!c->stop) {
        for (size_t i = 0; i < pages && !c->stop; i++) {
            volatile uint64_t *w = (volatile uint64_t *)(p + (i * 7919 % pages) * PAGE);
            if (round)
                CHECK(w[0] == mix(round - 1 + i) && w[511] == ~w[0]);
            w[0] = mix(round + i);
            w[511] = ~w[0];
        }
        if (!c->stop)
            round++;
    }
    c->rounds = round;
    munmap(p, c->bytes);
    return NULL;
}

__attribute__((unused)) static void churn_start(struct churn *c, int threads)
{
    for (int i = 0; i < threads; i++) {
        c[i].stop = 0;
        /* Odd, so that the stride visits every page once a round. */
        c[i].bytes = (hazard_bytes() / threads / PAGE | 1) * PAGE;
        if (c[i].bytes / PAGE % 7919 == 0)
            c[i].bytes += 2 * PAGE;
        CHECK(pthread_create(&c[i].thread, NULL, churn_main, &c[i]) == 0);
    }
}

__attribute__((unused)) static void churn_stop(struct churn *c, int threads)
{
    for (int i = 0; i < threads; i++)
        c[i].stop = 1;
    for (int i = 0; i < threads; i++)
        CHECK(pthread_join(c[i].thread, NULL) == 0);
}

/* A child, where the kernel makes one. */
__attribute__((unused)) static pid_t checked_fork(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    return child;
}

/* Waits for a child: its status. */
__attribute__((unused)) static int end_of(pid_t child)
{
    int status;
    pid_t got;
    do
        got = waitpid(child, &status, 0);
    while (got < 0 && errno == EINTR);
    CHECK(got == child);
    return status;
}

/* Waits for a child and insists that it exited with 0. */
__attribute__((unused)) static void reap(pid_t child)
{
    int status = end_of(child);
    if (WIFSIGNALED(status))
        fprintf(stderr, "child %d died of signal %d\n", (int)child, WTERMSIG(status));
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}

/* Returns true if this process has the pager's library loaded. */
__attribute__((unused)) static int paged(void)
{
    char line[1024];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, "selfpage_preload") != NULL;
    fclose(maps);
    return found;
}
#endif
