/* A descriptor becomes direct long after open, by fcntl, or comes from another process:
 * the pager must notice both. */
#include "ring.h"
#include <sys/socket.h>
#include <sys/uio.h>

static void exchange(int fd, size_t n, uint64_t seed)
{
    char *from = map_private(n), *into = map_private(n);
    double end = now() + 1.5;
    for (int round = 0; now() < end || round < 2; round++) {
        fill(from, n, seed + round);
        for (size_t at = 0; at < n; at += 64 * 1024)
            CHECK(pwrite(fd, from + at, 64 * 1024, at) == 64 * 1024);
        fill(into, n, ~seed);
        for (size_t at = 0; at < n; at += 64 * 1024)
            CHECK(pread(fd, into + at, 64 * 1024, at) == 64 * 1024);
        CHECK(holds(into, n, seed + round));
    }
    munmap(from, n), munmap(into, n);
}

int main(int argc, char **argv)
{
    size_t n = hazard_bytes() / 8 / (64 * 1024) * (64 * 1024);
    if (argc > 1) {
        /* Inherited across exec. */
        struct churn churn[1];
        churn_start(churn, 1);
        exchange(atoi(argv[1]), n, 3);
        churn_stop(churn, 1);
        return 0;
    }
    int fd = direct_file(n);
    if (fd < 0)
        return 77;
    int flags = fcntl(fd, F_GETFL);
    CHECK(fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0);
    struct churn churn[2];
    churn_start(churn, 2);
    exchange(fd, n, 1);
    CHECK(fcntl(fd, F_SETFL, flags | O_DIRECT) == 0);
    exchange(fd, n, 2);
    churn_stop(churn, 2);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        execl("/proc/self/exe", argv[0], number, NULL);
        _exit(9);
    }
    reap(child);
    return 0;
}
