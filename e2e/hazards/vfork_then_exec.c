/* A vfork child runs in its parent's memory until exec: it may write there, and its
 * arguments may be paged out. */
#include "hazard.h"

int main(int argc, char **argv)
{
    if (argc > 1) {
        size_t n = 8 * MB;
        char *p = malloc(n);
        fill(p, n, 2);
        return holds(p, n, 2) ? atoi(argv[1]) : 1;
    }
    struct churn churn[2];
    size_t n = hazard_bytes() / 4;
    char *p = map_private(n);
    fill(p, n, 6);
    churn_start(churn, 2);
    volatile int *seen = malloc(sizeof *seen);
    for (int i = 0; i < 40; i++) {
        char **args = calloc(3, sizeof *args);
        args[0] = argv[0], args[1] = strdup("7");
        *seen = 0;
        pid_t child = vfork();
        CHECK(child >= 0);
        if (child == 0) {
            /* Reads and writes pages of the parent that are out. */
            if (*(volatile uint64_t *)(p + i * 16 * PAGE) == word_at(6, i * 16 * PAGE / 8))
                *seen = i + 1;
            if (i % 3 == 0)
                execv("/no/such/program", args);
            else
                execv("/proc/self/exe", args);
            _exit(3);
        }
        int status = end_of(child);
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == (i % 3 ? 7 : 3));
        CHECK(*seen == i + 1);
    }
    churn_stop(churn, 2);
    CHECK(holds(p, n, 6));
    return 0;
}
