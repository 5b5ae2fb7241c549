/* The parent of a vfork child is killed: the child reads what was last written there, or gets a
 * SIGBUS, and never zeros in the place of a page that is out. */
#include "hazard.h"

static int outlive(size_t n)
{
    int out[2], up[2];
    CHECK(pipe(out) == 0 && pipe(up) == 0);
    pid_t parent = checked_fork();
    if (parent == 0) {
        char *p = map_private(n);
        fill(p, n, 6);
        pid_t self = getpid();
        pid_t child = vfork();
        CHECK(child >= 0);
        if (child == 0) {
            char word = 'B';
            CHECK(write(up[1], &word, 1) == 1);
            while (getppid() == self)
                usleep(1000);
            /* The pager is about to notice it. */
            usleep(100000);
            for (size_t i = 0; i < n / 8; i++)
                if (((volatile uint64_t *)p)[i] != word_at(6, i)) {
                    word = 'W';
                    CHECK(write(out[1], &word, 1) == 1);
                    _exit(1);
                }
            word = 'R';
            CHECK(write(out[1], &word, 1) == 1);
            _exit(0);
        }
        _exit(3);
    }
    char word = 0;
    close(out[1]);
    CHECK(read(up[0], &word, 1) == 1 && word == 'B');
    CHECK(kill(parent, SIGKILL) == 0);
    CHECK(waitpid(parent, NULL, 0) == parent);
    word = 0;
    ssize_t got = read(out[0], &word, 1);
    CHECK(got == 0 || (got == 1 && word == 'R'));
    close(out[0]), close(up[0]), close(up[1]);
    return got == 1;
}

int main(void)
{
    for (int i = 0; i < 3; i++)
        outlive(hazard_bytes() / 4);
    return 0;
}
