/* A program that may write no large files (`ulimit -f`) pages as others do, and so do its children and what they execute. */
/* selfpage run --store disk */
#include "hazard.h"
#include <sys/resource.h>

static void check_memory(void)
{
    size_t n = hazard_bytes();
    char *p = map_private(n);
    fill(p, n, 3);
    CHECK(holds(p, n, 3));
    fill(p, n, 4);
    CHECK(holds(p, n, 4));
    CHECK(munmap(p, n) == 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        check_memory();
        return 0;
    }
    struct rlimit limit = {PAGE, PAGE};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    check_memory();
    pid_t child = checked_fork();
    if (child == 0) {
        check_memory();
        execl("/proc/self/exe", argv[0], "again", NULL);
        _exit(1);
    }
    CHECK(end_of(child) == 0);
    /* The limit holds for its own files. */
    char path[] = "/tmp/hazard-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0);
    CHECK(pwrite(fd, "x", 1, 2 * PAGE) == -1 && errno == EFBIG);
    return 0;
}
