/* A crash reporter's trace goes through the handler to the frames that were interrupted, and
 * an exception thrown from a handler is caught by them (built with -fnon-call-exceptions). */
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            _exit(1); \
        } \
    } while (0)

enum { DEPTH = 12 };

static volatile int frames;
static char *nowhere;

static void trace(int)
{
    void *at[64];
    frames = backtrace(at, 64);
}

struct crash {
    void *where;
};

static void thrown(int, siginfo_t *info, void *)
{
    throw crash{info->si_addr};
}

__attribute__((noinline)) static int deep(int n, int how)
{
    int below = 0;
    if (n > 0)
        below = deep(n - 1, how);
    else if (how == 0)
        raise(SIGUSR1);
    else
        *(volatile char *)nowhere = 1;
    asm volatile("" ::: "memory");
    return below + 1;
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | flags;
    CHECK(sigaction(signal, &action, nullptr) == 0);
}

int main()
{
    nowhere = static_cast<char *>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(nowhere != MAP_FAILED);
    void *first[4];
    CHECK(backtrace(first, 4) > 0); /* Loads what it needs. */
    CHECK(signal(SIGUSR1, trace) != SIG_ERR);
    CHECK(deep(DEPTH, 0) == DEPTH + 1);
    CHECK(frames >= DEPTH + 4); /* The handler's, raise's, ours, main's. */
    static char other[64 << 10];
    stack_t stack = {};
    stack.ss_sp = other;
    stack.ss_size = sizeof other;
    CHECK(sigaltstack(&stack, nullptr) == 0);
    const int stacks[] = {0, SA_ONSTACK};
    for (int on : stacks) {
        handle(SIGSEGV, thrown, on | SA_NODEFER);
        for (int round = 0; round < 3; round++) {
            void *where = nullptr;
            try {
                deep(DEPTH, 1);
            } catch (const crash &it) {
                where = it.where;
            }
            CHECK(where == nowhere);
        }
    }
    printf("%d frames more than ours\n", frames - DEPTH);
    return 0;
}
