/* A process that forbids to be traced and dumped as its first step, or gives up root, stays so:
 * whatever sets up its memory beside it must not undo that. */
#include "hazard.h"

static void in_children(void (*step)(void), int dumpable)
{
    for (int n = 0; n < 150; n++) {
        pid_t child = checked_fork();
        if (child == 0) {
            step();
            usleep(10000);
            _exit(prctl(PR_GET_DUMPABLE) == dumpable ? 0 : 1);
        }
        reap(child);
    }
}

static void forbid(void)
{
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
}

static void give_up_root(void)
{
    CHECK(setgid(1000) == 0 && setuid(1000) == 0);
}

static void nothing(void)
{
    CHECK(prctl(PR_GET_DUMPABLE) == 1);
}

/* What a process has that gives up root: 0, or 2 where programs such as systemd-coredump are installed. */
static int dumpable_without_root(void)
{
    int dumpable = 0;
    FILE *file = fopen("/proc/sys/fs/suid_dumpable", "r");

    CHECK(file && fscanf(file, "%d", &dumpable) == 1);
    fclose(file);
    return dumpable;
}

int main(void)
{
    in_children(nothing, 1);
    in_children(forbid, 0);
    if (getuid() == 0)
        in_children(give_up_root, dumpable_without_root());
    return 0;
}
