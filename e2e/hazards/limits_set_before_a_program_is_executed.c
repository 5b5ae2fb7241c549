/* A limit on address space, or on data, that a process sets before it executes another program: that
 * one loads a library, starts threads and uses memory below it, reads the limit as it was set, and
 * cannot raise the hard one. A limit that the child of a vfork sets is not its parent's. */
#include "hazard.h"

extern char **environ;

static void *nothing(void *unused) { return unused; }

static const struct { int resource; rlim_t soft, hard; } SET[] = {
    { RLIMIT_AS, 256 * MB, 256 * MB }, { RLIMIT_AS, 400 * MB, RLIM_INFINITY },
    { RLIMIT_AS, 900 * MB, 950 * MB }, { RLIMIT_DATA, 48 * MB, 48 * MB },
    { RLIMIT_DATA, 60 * MB, RLIM_INFINITY }, { RLIMIT_DATA, 200 * MB, 220 * MB },
};

static void reads_as_set(int n)
{
    struct rlimit seen;
    CHECK(getrlimit(SET[n].resource, &seen) == 0);
    CHECK(seen.rlim_cur == SET[n].soft && seen.rlim_max == SET[n].hard);
}

static void works_below_the_limit(int n)
{
    reads_as_set(n);
    CHECK(dlopen("libresolv.so.2", RTLD_NOW) != NULL);
    pthread_t threads[2];
    for (int t = 0; t < 2; t++)
        CHECK(pthread_create(&threads[t], NULL, nothing, NULL) == 0);
    for (int t = 0; t < 2; t++)
        CHECK(pthread_join(threads[t], NULL) == 0);
    char *block = malloc(16 * MB);
    CHECK(block != NULL);
    memset(block, n, 16 * MB);
    /* More than what the pager adds to the limit. */
    errno = 0;
    CHECK(mmap(NULL, 16ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
          == MAP_FAILED && errno == ENOMEM);
    if (SET[n].hard == RLIM_INFINITY)
        return;
    /* Only with a privilege is a hard limit raised. */
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    struct rlimit higher = { SET[n].soft, SET[n].hard + PAGE };
    errno = 0;
    CHECK(setrlimit(SET[n].resource, &higher) == -1 && errno == EPERM);
    reads_as_set(n);
}

static char *arguments(const char *how, int n, char *text, char **to)
{
    text[0] = '0' + n;
    text[1] = 0;
    to[0] = "limits";
    to[1] = (char *)how;
    to[2] = text;
    to[3] = NULL;
    return "/proc/self/exe";
}

static void execute(const char *how, int n, char **environment)
{
    char text[2], *to[4];
    execve(arguments(how, n, text, to), to, environment);
    _exit(3);
}

/* By exec, by exec with an empty environment, by posix_spawn, and by a shell. */
static void begin(int n)
{
    char text[2], *to[4], *none[] = { NULL }, self[PATH_MAX] = { 0 }, command[PATH_MAX + 32];
    pid_t child = fork();
    if (child == 0)
        execute("works", n, environ);
    reap(child);
    child = fork();
    if (child == 0)
        execute("works", n, none);
    reap(child);
    const char *path = arguments("works", n, text, to);
    CHECK(posix_spawn(&child, path, NULL, NULL, to, environ) == 0);
    reap(child);
    CHECK(readlink(path, self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "exec '%s' works %d", self, n);
    CHECK(system(command) == 0);
}

static void limit(int n)
{
    struct rlimit limit = { SET[n].soft, SET[n].hard };
    CHECK(setrlimit(SET[n].resource, &limit) == 0);
}

/* The child has its parent's memory. */
static void limits_of_a_vfork(int n)
{
    struct rlimit before, after;
    CHECK(getrlimit(SET[n].resource, &before) == 0);
    pid_t child = vfork();
    if (child == 0) {
        limit(n);
        execute("works", n, environ);
    }
    reap(child);
    CHECK(getrlimit(SET[n].resource, &after) == 0);
    CHECK(after.rlim_cur == before.rlim_cur && after.rlim_max == before.rlim_max);
    child = fork();
    if (child == 0)
        execute("unlimited", n, environ);
    reap(child);
}

int main(int count, char **given)
{
    int n = count > 2 ? given[2][0] - '0' : 0;
    if (count > 2 && strcmp(given[1], "works") == 0) {
        works_below_the_limit(n);
        return 0;
    }
    if (count > 2 && strcmp(given[1], "again") == 0) {
        reads_as_set(n);
        begin(n);
        return 0;
    }
    if (count > 2) {
        struct rlimit seen;
        CHECK(getrlimit(SET[n].resource, &seen) == 0 && seen.rlim_cur > SET[n].soft);
        return 0;
    }
    for (n = 0; n < (int)(sizeof SET / sizeof *SET); n++) {
        limits_of_a_vfork(n);
        pid_t child = fork();
        if (child == 0) {
            limit(n);
            begin(n);
            execute("again", n, environ);
        }
        reap(child);
    }
    puts("limits hold");
    return 0;
}
