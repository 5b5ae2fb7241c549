/* A daemon drops its privileges (user 65534), then goes on paging, forks and execs. Without
 * privileges at its start it only does the rest. */
/* selfpage run --share-store */
#include "hazard.h"
#include <grp.h>

int main(int argc, char **argv)
{
    size_t n = hazard_bytes() / 2;
    if (argc > 1) {
        char *p = map_private(n);
        fill(p, n, 2);
        push_out();
        CHECK(holds(p, n, 2));
        CHECK(paged() == atoi(argv[1]));
        return 0;
    }
    int here = paged();
    char *p = map_private(n);
    fill(p, n, 1);
    if (getuid() == 0) {
        CHECK(setgroups(0, NULL) == 0);
        CHECK(setresgid(65534, 65534, 65534) == 0);
        CHECK(setresuid(65534, 65534, 65534) == 0);
        CHECK(setuid(0) == -1);
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    push_out();
    CHECK(holds(p, n, 1));
    struct churn churn[2];
    churn_start(churn, 2);
    for (int i = 0; i < 5; i++) {
        pid_t child = checked_fork();
        if (child == 0) {
            CHECK(holds(p, n, 1));
            fill(p, n, 3);
            CHECK(holds(p, n, 3));
            _exit(0);
        }
        reap(child);
    }
    pid_t child = checked_fork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], here ? "1" : "0", NULL);
        _exit(9);
    }
    reap(child);
    churn_stop(churn, 2);
    CHECK(holds(p, n, 1));
    return 0;
}
