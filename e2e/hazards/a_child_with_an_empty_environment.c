/* env -i, sudo and many daemons start children without an environment: such a child is
 * paged like any other, by execve, execvpe, posix_spawn and vfork alike. */
#include "hazard.h"
#include <spawn.h>

int main(int argc, char **argv)
{
    size_t n = 64 * MB;
    if (argc > 1) {
        CHECK(paged() == atoi(argv[1]));
        CHECK(getenv("HAZARD_MB") == NULL && getenv("PATH") == NULL);
        char *p = malloc(n);
        fill(p, n, 1);
        CHECK(holds(p, n, 1));
        return 0;
    }
    char *none[] = {NULL};
    char *one[] = {"LD_PRELOAD=", NULL};
    char *args[] = {argv[0], paged() ? "1" : "0", NULL};
    for (int i = 0; i < 6; i++) {
        pid_t child;
        if (i == 4)
            CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, args, none) == 0);
        else if (i == 5)
            child = vfork();
        else
            child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (i == 0 || i == 5)
                execve("/proc/self/exe", args, none);
            if (i == 1)
                execvpe("/proc/self/exe", args, one);
            if (i == 2)
                clearenv(), execv("/proc/self/exe", args);
            if (i == 3) {
                int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
                fexecve(self, args, none);
            }
            _exit(9);
        }
        reap(child);
    }
    return 0;
}
