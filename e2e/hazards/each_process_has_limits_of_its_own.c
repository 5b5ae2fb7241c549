/* A process that has set a limit on address space, or on data, reads it as before while children of vfork set others
 * and threads read it, and what it executes then reads the same. */
#include "hazard.h"

enum { CHILDREN = 40 };

extern char **environ;

static const int RESOURCES[] = { RLIMIT_AS, RLIMIT_DATA };
static const struct rlimit OWN = { 12ul << 30, 100ul << 30 }, OTHER = { 8ul << 30, 9ul << 30 };
static atomic_int stop;

static int reads(int resource, const struct rlimit *limit)
{
    struct rlimit seen;
    CHECK(getrlimit(resource, &seen) == 0);
    return seen.rlim_cur == limit->rlim_cur && seen.rlim_max == limit->rlim_max;
}

static void *asks(void *resource)
{
    while (!stop)
        CHECK(reads(*(const int *)resource, &OWN));
    return NULL;
}

static void execute(char *which, const char *limit)
{
    execl("/proc/self/exe", "limits", which, limit, NULL);
    _exit(3);
}

int main(int count, char **given)
{
    char which[] = "0";
    if (count > 2)
        return reads(RESOURCES[given[1][0] - '0'], strcmp(given[2], "own") ? &OTHER : &OWN) ? 0 : 1;
    for (int n = 0; n < 2; n++) {
        which[0] = '0' + n;
        CHECK(setrlimit(RESOURCES[n], &OWN) == 0 && reads(RESOURCES[n], &OWN));
        pid_t child = vfork();
        if (child == 0) {
            if (setrlimit(RESOURCES[n], &OTHER) == 0)
                execute(which, "other");
            _exit(4);
        }
        reap(child);
        CHECK(reads(RESOURCES[n], &OWN));
        child = fork();
        if (child == 0)
            execute(which, "own");
        reap(child);
        pthread_t thread;
        stop = 0;
        CHECK(pthread_create(&thread, NULL, asks, (void *)&RESOURCES[n]) == 0);
        for (int i = 0; i < CHILDREN; i++) {
            char *arguments[] = { "limits", which, "own", NULL };
            CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
            reap(child);
        }
        stop = 1;
        CHECK(pthread_join(thread, NULL) == 0);
    }
    puts("each has its own");
    return 0;
}
