/* Children of vfork execute programs, and scripts without a first line that names a shell, with more variables and
 * arguments than a small stack holds: each gets them all, and their parent's memory does not grow, also where each
 * child is a thread's that ends. */
#include "hazard.h"

enum { COUNT = 6000, CHILDREN = 60, KIB = 2048 };

static char *variables[COUNT + 1], *arguments[COUNT + 1];
extern char **environ;

/* Of private memory, in KiB. */
static long data(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmData: %ld", &kib);
    fclose(status);
    CHECK(kib >= 0);
    return kib;
}

static void make_script(char *path)
{
    static const char text[] = "test $# = 5999 && test $V5998 = x";
    int file = mkstemp(path);
    CHECK(file >= 0 && write(file, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
    CHECK(fchmod(file, 0700) == 0 && close(file) == 0);
}

static void run(char *path)
{
    char **own = environ;
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        environ = variables;
        execvp("/nonexistent", arguments);
        execvp(path, arguments);
        _exit(3);
    }
    environ = own;
    reap(child);
}

static void *run_from_thread(void *path)
{
    run(path);
    return NULL;
}

static void run_all(char **paths, int in_threads)
{
    long before = 0;
    for (int n = 0; n < CHILDREN; n++) {
        pthread_t thread;
        if (n == 4)
            before = data();
        if (in_threads)
            CHECK(pthread_create(&thread, NULL, run_from_thread, paths[n % 2]) == 0 && pthread_join(thread, NULL) == 0);
        else
            run(paths[n % 2]);
    }
    long more = data() - before;
    if (more > KIB)
        fprintf(stderr, "%ld KiB more after %d children\n", more, CHILDREN);
    CHECK(more <= KIB);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return argc == COUNT && getenv("V5998") ? 0 : 1;
    char script[] = "/tmp/selfpage-hazard-XXXXXX", text[32];
    make_script(script);
    for (int n = 0; n < COUNT; n++) {
        snprintf(text, sizeof text, "V%d=x", n);
        variables[n] = strdup(text);
        arguments[n] = n ? "x" : argv[0];
    }
    char *paths[] = { "/proc/self/exe", script };
    run_all(paths, 0);
    run_all(paths, 1);
    CHECK(unlink(script) == 0);
    puts("no memory is left");
    return 0;
}
