/* A program that may not read the processor's counter forks. */
#include "hazard.h"

int main(void)
{
    size_t bytes = hazard_bytes();
    char *p = map_private(bytes);
    fill(p, bytes, 1);
    push_out();
    CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(holds(p, bytes, 1));
        fill(p, bytes, 2);
        CHECK(holds(p, bytes, 2));
        _exit(3);
    }
    int status = end_of(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    CHECK(holds(p, bytes, 1));
    return 0;
}
