/* Children are killed at every moment in which they begin an image. What pages for them is then below this process, which adopts
 * orphans as a container's first process does, and whose own pages stay what they were. */
#include "hazard.h"

#define CHILDREN 150

int main(int argc, char **argv)
{
    if (argc > 1)
        return 0;
    size_t bytes = hazard_bytes();
    char *kept = map_private(bytes);
    fill(kept, bytes, 3);
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = vfork();
        CHECK(child >= 0);
        if (child == 0) {
            execl("/proc/self/exe", argv[0], "image", NULL);
            _exit(9);
        }
        struct timespec moment = {0, n % 50 * 40000};
        nanosleep(&moment, NULL);
        kill(child, SIGKILL);
        int status = end_of(child);
        CHECK(status == SIGKILL || status == 0);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (n % 10 == 0)
            CHECK(holds(kept, bytes, 3));
    }
    CHECK(holds(kept, bytes, 3));
    return 0;
}
