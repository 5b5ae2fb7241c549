/* Programs close every descriptor they do not know (close_range, the classic loop), put
 * their own over any number by dup2, and run out of them. Pages stay. */
#include "hazard.h"

static void pages_are_there(char *p, size_t n, uint64_t seed)
{
    push_out();
    CHECK(holds(p, n, seed));
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(holds(p, n, seed));
        fill(p, n, ~seed);
        push_out();
        CHECK(holds(p, n, ~seed));
        _exit(0);
    }
    reap(child);
    CHECK(holds(p, n, seed));
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        /* A program started after all that. */
        push_out();
        return 0;
    }
    size_t n = hazard_bytes() / 4;
    char *p = map_private(n);
    fill(p, n, 1);
    CHECK(syscall(SYS_close_range, 3u, ~0u, 0u) == 0);
    pages_are_there(p, n, 1);
    CHECK(syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */) == 0);
    pages_are_there(p, n, 1);
    closefrom(3);
    for (int fd = 3; fd < 2048; fd++)
        close(fd);
    pages_are_there(p, n, 1);
    int null = open("/dev/null", O_RDWR);
    for (int fd = null + 1; fd < 1000; fd++)
        CHECK(dup2(null, fd) == fd);
    pages_are_there(p, n, 1);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 1000;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(dup(null) == -1 && errno == EMFILE);
    pages_are_there(p, n, 1);
    /* What the program reads from its own descriptors is its own. */
    CHECK(close(500) == 0 && dup(null) == 500);
    for (int fd = 3; fd < 1000; fd++)
        close(fd);
    struct churn churn[2];
    churn_start(churn, 2);
    for (int i = 0; i < 300; i++) {
        CHECK(syscall(SYS_close_range, 3u, ~0u, 0u) == 0);
        nap(2);
    }
    churn_stop(churn, 2);
    pid_t child = checked_fork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], "child", NULL);
        _exit(9);
    }
    reap(child);
    return 0;
}
