/* A child forks twice, makes a session of its own, closes everything and works on after
 * its parents are gone. */
#include "hazard.h"

int main(void)
{
    size_t n = hazard_bytes() / 2;
    char *p = map_private(n);
    fill(p, n, 1);
    int fd[2];
    CHECK(pipe(fd) == 0);
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(setsid() > 0);
        pid_t second = checked_fork();
        if (second)
            _exit(0);
        CHECK(dup2(fd[1], 3) == 3);
        CHECK(syscall(SYS_close_range, 4u, ~0u, 0u) == 0);
        CHECK(chdir("/") == 0);
        umask(0);
        nap(100); /* Its parent is gone by now. */
        CHECK(holds(p, n, 1));
        fill(p, n, 2);
        push_out();
        CHECK(holds(p, n, 2));
        pid_t third = checked_fork();
        if (third == 0) {
            CHECK(holds(p, n, 2));
            _exit(0);
        }
        reap(third);
        CHECK(write(3, "done", 4) == 4);
        _exit(0);
    }
    close(fd[1]);
    reap(child);
    char answer[8] = "";
    CHECK(read(fd[0], answer, sizeof answer) == 4 && memcmp(answer, "done", 4) == 0);
    CHECK(holds(p, n, 1));
    return 0;
}
