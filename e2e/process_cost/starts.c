/* Starts a small program so many times, one after the other, and prints the microseconds that each
 * way takes, from the call to the end of the child.
 *
 *     starts COUNT [PROGRAM]
 *
 * Or a pool: forks WORKERS workers, each of which does its part of TASKS tasks of 0.2 ms and stays
 * until all are done, and prints the seconds.
 *
 *     starts pool WORKERS TASKS
 */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int ascending(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

enum way { FORK, VFORK_EXEC, FORK_EXEC, SPAWN, WAYS };

static const char *const NAMES[WAYS] = {"fork", "vfork+exec", "fork+exec", "posix_spawn"};

static pid_t start(enum way way, const char *program)
{
    char *arguments[] = {(char *)program, NULL};
    pid_t child = -1;
    switch (way) {
    case FORK:
        child = fork();
        if (child == 0)
            _exit(0);
        break;
    case VFORK_EXEC:
        child = vfork();
        if (child == 0) {
            execve(program, arguments, environ);
            _exit(127);
        }
        break;
    case FORK_EXEC:
        child = fork();
        if (child == 0) {
            execve(program, arguments, environ);
            _exit(127);
        }
        break;
    default:
        if (posix_spawn(&child, program, NULL, NULL, arguments, environ) != 0)
            child = -1;
    }
    return child;
}

static int starts(int count, const char *program)
{
    double *took = malloc(count * sizeof *took);
    for (enum way way = FORK; way < WAYS; way++) {
        for (int n = 0; n < count; n++) {
            double begun = now();
            pid_t child = start(way, program);
            int status;
            if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
                return perror(NAMES[way]), 1;
            took[n] = now() - begun;
        }
        qsort(took, count, sizeof *took, ascending);
        printf("%-12s %6.0f us (least %.0f, p90 %.0f)\n", NAMES[way], took[count / 2], took[0],
               took[count * 9 / 10]);
    }
    return 0;
}

static int pool(int workers, int tasks)
{
    double begun = now();
    int done[2], end[2];
    if (pipe(done) != 0 || pipe(end) != 0)
        return perror("pipe"), 1;
    for (int worker = 0; worker < workers; worker++) {
        pid_t child = fork();
        if (child < 0)
            return perror("fork"), 1;
        if (child > 0)
            continue;
        for (int task = worker; task < tasks; task += workers) {
            char *memory = malloc(64 << 10);
            memset(memory, task, 64 << 10);
            for (double since = now(); now() - since < 200;)
                memory[task % (64 << 10)]++;
            free(memory);
        }
        char byte = 0;
        close(end[1]);
        _exit(write(done[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 0);
    }
    char byte;
    for (int worker = 0; worker < workers; worker++)
        if (read(done[0], &byte, 1) != 1)
            return perror("read"), 1;
    close(end[1]);
    int status, failed = 0;
    while (wait(&status) > 0)
        failed += status != 0;
    printf("pool of %d    %6.2f s, %d failed\n", workers, (now() - begun) / 1e6, failed);
    return failed != 0;
}

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "pool") == 0)
        return pool(atoi(arguments[2]), atoi(arguments[3]));
    if (count < 2)
        return 2;
    return starts(atoi(arguments[1]), count > 2 ? arguments[2] : "/bin/true");
}
