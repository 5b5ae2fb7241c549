/* env -i, sudo and many daemons start children without an environment: such a child is
 * paged like any other, by execve, execvpe, posix_spawn, vfork, and the C library's own calls alike. */
#include "hazard.h"
#include <wordexp.h>

/* The shells of `system`, `popen` and `wordexp` are paged in the last process of its kind, which cleared its environment. */
static void check_shells(void)
{
    const char *look = "grep -q selfpage /proc/$$/maps && echo yes || echo no";
    char line[16] = "", words[128];
    clearenv();
    CHECK(setenv("PATH", "/usr/bin:/bin", 1) == 0 && setenv("KEPT", "kept", 1) == 0);
    CHECK(system("grep -q selfpage /proc/$$/maps") == (paged() ? 0 : 256));
    clearenv();
    CHECK(setenv("PATH", "/usr/bin:/bin", 1) == 0 && setenv("KEPT", "kept", 1) == 0);
    FILE *shell = popen(look, "r");
    CHECK(shell && fgets(line, sizeof line, shell) && pclose(shell) == 0);
    CHECK(strcmp(line, paged() ? "yes\n" : "no\n") == 0);
    clearenv();
    CHECK(setenv("PATH", "/usr/bin:/bin", 1) == 0 && setenv("KEPT", "kept", 1) == 0);
    wordexp_t expanded;
    snprintf(words, sizeof words, "$KEPT $(%s)", look);
    CHECK(wordexp(words, &expanded, 0) == 0 && expanded.we_wordc == 2);
    CHECK(strcmp(expanded.we_wordv[0], "kept") == 0);
    CHECK(strcmp(expanded.we_wordv[1], paged() ? "yes" : "no") == 0);
}

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
    /* Of two the loader takes the second. */
    char *two[128];
    size_t count = 0;
    for (char **entry = environ; *entry && count < 126; entry++)
        if (strncmp(*entry, "SELFPAGE_", 9) == 0 || strncmp(*entry, "LD_PRELOAD=", 11) == 0)
            two[count++] = *entry;
    two[count] = "LD_PRELOAD=";
    two[count + 1] = NULL;
    char *args[] = {argv[0], paged() ? "1" : "0", NULL};
    for (int i = 0; i < 7; i++) {
        pid_t child;
        if (i == 4)
            CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, args, none) == 0);
        else if (i == 5)
            child = vfork();
        else
            child = checked_fork();
        if (child == 0) {
            if (i == 0 || i == 5)
                execve("/proc/self/exe", args, none);
            if (i == 6)
                execve("/proc/self/exe", args, two);
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
    check_shells();
    return 0;
}
