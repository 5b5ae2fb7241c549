/* A debugger that was started with its program reads and writes memory of it that is paged out: word by word by
 * ptrace, and through /proc/PID/mem. */
#include "hazard.h"
#include <sys/ptrace.h>

enum { SIZE = 4 << 20, STEP = 5 * 4096 };

static long word(size_t at)
{
    return mix(at);
}

static void check_by_ptrace(pid_t child, char *p)
{
    for (size_t at = 0; at < SIZE; at += STEP) {
        errno = 0;
        CHECK(ptrace(PTRACE_PEEKDATA, child, p + at, NULL) == word(at) && errno == 0);
        CHECK(syscall(SYS_ptrace, PTRACE_PEEKTEXT, child, p + at, &(long){0}) == 0);
        CHECK(ptrace(PTRACE_POKEDATA, child, p + at + 8, at) == 0);
    }
    /* From one page into the next. */
    long expected;
    char bytes[8];
    struct iovec to = {bytes, 8}, from = {p + STEP - 4, 8};
    CHECK(process_vm_readv(child, &to, 1, &from, 1, 0) == 8);
    memcpy(&expected, bytes, 8);
    CHECK(ptrace(PTRACE_PEEKDATA, child, p + STEP - 4, NULL) == expected);
    errno = 0;
    CHECK(ptrace(PTRACE_PEEKDATA, child, NULL, NULL) == -1 && errno == EIO);
}

/* As _FORTIFY_SOURCE has it. */
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);

static void check_by_file(pid_t child, char *p)
{
    char name[64];
    long value;
    snprintf(name, sizeof name, "/proc/%d/mem", (int)child);
    int memory = open(name, O_RDWR | O_CLOEXEC);
    CHECK(memory >= 0);
    for (size_t at = 0; at < SIZE; at += STEP) {
        off_t where = (off_t)(uintptr_t)(p + at);
        ssize_t got = at / STEP % 2 ? pread(memory, &value, 8, where) : __pread_chk(memory, &value, 8, where, 8);
        CHECK(got == 8 && value == word(at));
        value = at + 1;
        CHECK(pwrite(memory, &value, 8, (off_t)(uintptr_t)(p + at + 16)) == 8);
    }
    CHECK(pread(memory, &value, 8, 0) == -1 && errno == EIO);
    /* All of it at once. */
    static char all[SIZE];
    CHECK(pread(memory, all, SIZE, (off_t)(uintptr_t)p) == SIZE);
    for (size_t at = 0; at < SIZE; at += STEP)
        CHECK(*(long *)(all + at) == word(at) && *(size_t *)(all + at + 16) == at + 1);
    CHECK(pwrite(memory, all, SIZE, (off_t)(uintptr_t)p) == SIZE);
    CHECK(close(memory) == 0);
}

int main(void)
{
    char *p = map_private(SIZE);
    for (size_t at = 0; at < SIZE; at += STEP)
        *(long *)(p + at) = word(at);
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
        for (int check = 0; check < 2; check++) {
            push_out();
            raise(SIGSTOP);
        }
        for (size_t at = 0; at < SIZE; at += STEP) {
            CHECK(*(long *)(p + at) == word(at));
            CHECK(*(size_t *)(p + at + 8) == at && *(size_t *)(p + at + 16) == at + 1);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    check_by_ptrace(child, p);
    CHECK(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    check_by_file(child, p);
    CHECK(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
    reap(child);
    return 0;
}
