/* A tracer stops one thread at each of its system calls, as strace does, while that discards pages, and reads what another
 * thread writes to a file: pages beside the discarded ones, some of them in the store. */
#include "hazard.h"
#include <sys/ptrace.h>

enum { PAGES = 4096, WRITTEN = 60, FIRST = 64, DISCARDED = 64, WRITES = 300 };

static char *memory;

static void *discard(void *unused)
{
    char *first = memory + FIRST * PAGE;
    for (;;) {
        madvise(first, DISCARDED * PAGE, MADV_DONTNEED);
        for (size_t page = 0; page < DISCARDED; page++)
            first[page * PAGE] = 1;
    }
    return unused;
}

static void traced(void)
{
    memory = map_private(PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++)
        memset(memory + page * PAGE, (int)(page % 251), 16);
    int null = open("/dev/null", O_WRONLY);
    pthread_t thread;
    CHECK(null >= 0 && ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
    raise(SIGSTOP);
    CHECK(pthread_create(&thread, NULL, discard, NULL) == 0);
    for (size_t n = 0; n < WRITES; n++) {
        CHECK(write(null, memory + n % WRITTEN * PAGE, 16) == 16);
        if (n % 20 == 0)
            for (size_t page = 256; page < PAGES; page++)
                memory[page * PAGE]++;
    }
    _exit(0);
}

/* Reads what is written as a thread enters the call; the other stops pass by. */
static void look(pid_t thread)
{
    struct __ptrace_syscall_info info;
    CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) > 0);
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY || info.entry.nr != SYS_write)
        return;
    unsigned char read[16];
    struct iovec to = {read, sizeof read}, from = {(void *)info.entry.args[1], sizeof read};
    CHECK(process_vm_readv(thread, &to, 1, &from, 1, 0) == sizeof read);
    CHECK(read[0] < WRITTEN && read[0] == read[15]);
}

int main(void)
{
    /* By its default: a read that waits for ever can be killed alone. */
    alarm(100);
    pid_t child = checked_fork();
    if (child == 0)
        traced();
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    long options = PTRACE_O_TRACECLONE | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL;
    CHECK(ptrace(PTRACE_SETOPTIONS, child, NULL, options) == 0);
    CHECK(ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0);
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        CHECK(thread > 0);
        if (thread == child && !WIFSTOPPED(status))
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (!WIFSTOPPED(status))
            continue;
        int signal = WSTOPSIG(status);
        if (signal == (SIGTRAP | 0x80))
            look(thread);
        int passed = signal == SIGTRAP || signal == SIGSTOP || signal == (SIGTRAP | 0x80) ? 0 : signal;
        ptrace(PTRACE_SYSCALL, thread, NULL, passed);
    }
}
