/* A program forks until a fork is refused. With as many children as there can be it still discards memory by an
 * instruction of its own, and executes another program. */
#include "hazard.h"

enum { MOST = 40, MEMORY = 32 << 20 };

int main(int argc, char **argv)
{
    if (argc > 1)
        return 0;
    int children = 0;
    for (pid_t child; children < MOST && (child = fork()) >= 0; children++) {
        if (child == 0) {
            CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
            sleep(60);
            _exit(0);
        }
    }
    CHECK(children == MOST || (children > 0 && errno == EAGAIN));
    char *memory = map_private(MEMORY);
    fill(memory, MEMORY, 1);
    CHECK(bare_madvise(memory, MEMORY, MADV_DONTNEED) == 0);
    CHECK(all_zero(memory, MEMORY));
    execl("/proc/self/exe", argv[0], "again", NULL);
    CHECK(!"another image");
}
