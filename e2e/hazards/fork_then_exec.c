/* Fork then exec, from a process that is mostly paged out, with arguments and
 * environment that are paged out too; the new program pages in its turn. An exec that
 * fails must leave the program as it was, also in a threaded program. */
#include "hazard.h"

static int child_main(int argc, char **argv)
{
    CHECK(argc == 4 && strcmp(argv[1], "child") == 0);
    CHECK(strlen(argv[2]) == 60000 && argv[2][59999] == 'z');
    const char *big = getenv("BIG");
    CHECK(big && strlen(big) == 60000);
    CHECK(paged() == atoi(argv[3]));
    size_t n = hazard_bytes() / 2;
    char *p = map_private(n);
    fill(p, n, 3);
    CHECK(holds(p, n, 3));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return child_main(argc, argv);
    int here = paged();
    size_t n = hazard_bytes() / 2;
    char *p = map_private(n), *text = malloc(60001), *big = malloc(60005), *path = strdup("/proc/self/exe");
    memset(text, 'z', 60000);
    text[60000] = 0;
    memcpy(big, "BIG=", 4);
    memset(big + 4, 'y', 60000);
    big[60004] = 0;
    char **args = calloc(5, sizeof *args), *flag = strdup(here ? "1" : "0");
    args[0] = argv[0], args[1] = strdup("child"), args[2] = text, args[3] = flag;
    fill(p, n, 8);
    push_out();
    putenv(big);
    for (int i = 0; i < 3; i++) {
        pid_t child = checked_fork();
        if (child == 0) {
            if (i == 1)
                CHECK(holds(p, n, 8));
            execv(path, args);
            _exit(9);
        }
        reap(child);
    }
    struct churn churn[2];
    churn_start(churn, 2);
    for (int i = 0; i < 50; i++) {
        CHECK(execv("/no/such/program", args) == -1 && errno == ENOENT);
        CHECK(execv("/etc/passwd", args) == -1 && errno == EACCES);
    }
    churn_stop(churn, 2);
    CHECK(holds(p, n, 8));
    /* And exec over it all, with other threads paging. */
    churn_start(churn, 2);
    nap(50);
    execv(path, args);
    return 9;
}
