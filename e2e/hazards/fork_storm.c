/* A tree of processes that is born and dies all the time: what a build does. With an
 * argument it goes on until it is killed. */
#include "hazard.h"

static void life(int depth, uint64_t seed)
{
    size_t n = 1 * MB;
    char *p = map_private(n);
    fill(p, n, seed);
    pid_t child[3] = {0};
    int children = depth > 0 ? 3 : 0;
    for (int i = 0; i < children; i++) {
        child[i] = checked_fork();
        if (child[i] == 0) {
            CHECK(holds(p, n, seed));
            fill(p, n, ~seed);
            life(depth - 1, seed * 3 + i);
            CHECK(holds(p, n, ~seed));
            _exit(0);
        }
    }
    CHECK(holds(p, n, seed));
    for (int i = 0; i < children; i++) {
        int status = end_of(child[i]);
        /* Under the kill tests a child may have been killed: that is no failure. */
        CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
              (getenv("KILLS") && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    }
    CHECK(holds(p, n, seed));
    munmap(p, n);
}

int main(int argc, char **argv)
{
    (void)argv;
    size_t n = hazard_bytes() / 4;
    char *p = map_private(n);
    fill(p, n, 9);
    for (int round = 0; round < 2 || argc > 1; round++)
        life(2, round);
    CHECK(holds(p, n, 9));
    return 0;
}
