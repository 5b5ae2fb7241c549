/* process_madvise may give up one's own memory, by whatever descriptor it names the process:
 * it is as if madvise had been called, also where no descriptor is free, or /proc
 * shows other numbers. */
#include "hazard.h"

#define PIDFD_OF_THIS_PROCESS -10001

static ssize_t advise(int process, struct iovec *parts, size_t count, int advice)
{
    return syscall(SYS_process_madvise, process, parts, count, advice, 0);
}

/* The calling process discards all of some memory, of which most has left. */
static void discards(int own)
{
    size_t n = hazard_bytes();
    char *p = map_private(n);
    fill(p, n, 3);
    struct iovec all = {p, n};
    ssize_t done = advise(own, &all, 1, MADV_DONTNEED);
    CHECK(done == -1 ? errno == EINVAL : done == (ssize_t)n && all_zero(p, n));
    CHECK(munmap(p, n) == 0);
}

static void with_no_free_descriptor(void)
{
    pid_t child = fork();
    if (child == 0) {
        int own = syscall(SYS_pidfd_open, getpid(), 0);
        struct rlimit none = {own + 1, own + 1};
        for (int fd = 0; fd < own; fd++)
            if (fcntl(fd, F_GETFD) < 0)
                CHECK(dup2(own, fd) == fd);
        CHECK(own >= 0 && setrlimit(RLIMIT_NOFILE, &none) == 0);
        discards(own);
        _exit(0);
    }
    reap(child);
}

/* Where such a namespace may be made: in /proc it has another number. */
static void in_a_namespace_of_processes(void)
{
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWPID) != 0)
            _exit(0);
        pid_t first = fork();
        if (first == 0) {
            discards(syscall(SYS_pidfd_open, getpid(), 0));
            _exit(0);
        }
        reap(first);
        _exit(0);
    }
    reap(child);
}

int main(void)
{
    with_no_free_descriptor();
    in_a_namespace_of_processes();
    size_t n = 16 * PAGE;
    char *p = map_private(n);
    int own = syscall(SYS_pidfd_open, getpid(), 0);
    CHECK(own >= 0);
    struct iovec parts[2] = {{p, 4 * PAGE}, {p + 8 * PAGE, 4 * PAGE}};
    for (int resident = 0; resident < 2; resident++)
        for (int way = 0; way < 2; way++) {
            fill(p, n, 1);
            if (!resident)
                push_out();
            ssize_t done = advise(way ? PIDFD_OF_THIS_PROCESS : own, parts, 2, MADV_DONTNEED);
            if (done < 0) {
                CHECK(errno == EINVAL || errno == EBADF);
                continue;
            }
            CHECK(done == (ssize_t)(8 * PAGE));
            CHECK(all_zero(p, 4 * PAGE) && all_zero(p + 8 * PAGE, 4 * PAGE));
            fill(p, 4 * PAGE, 1);
            fill(p + 8 * PAGE, 4 * PAGE, 2);
            CHECK(holds(p, 8 * PAGE, 1) && holds(p + 8 * PAGE, 4 * PAGE, 2));
        }
    CHECK(advise(-1, parts, 2, MADV_COLD) == -1 && errno == EBADF);
    CHECK(advise(own, parts, 2, -1) == -1 && errno == EINVAL);
    CHECK(advise(own, parts, 2, MADV_COLD) == (ssize_t)(8 * PAGE));
    CHECK(advise(own, (struct iovec *)8, 2, MADV_COLD) == -1 && errno == EFAULT);
    /* All parts are checked before the first is taken. */
    struct iovec bad[3] = {{p, 4 * PAGE}, {p, (size_t)-1}, {p, 1ul << 62}};
    fill(p, n, 1);
    CHECK(advise(own, bad, 2, MADV_DONTNEED) == -1 && errno == EINVAL);
    bad[1] = bad[2];
    CHECK(advise(own, bad, 2, MADV_DONTNEED) == -1 && (errno == EFAULT || errno == EINVAL));
    CHECK(holds(p, n, 1));
    struct iovec wrong = {p + 1, PAGE};
    CHECK(advise(own, &wrong, 1, MADV_COLD) == -1 && errno == EINVAL);
    return 0;
}
