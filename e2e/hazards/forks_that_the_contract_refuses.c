/* A program forks until its contract has no room for another process. What is refused then has no child: `wait`
 * finds none, `daemon` and `forkpty` fail, and the other threads go on while it waits for room. A fork that the
 * kernel refuses gives the room back, also where no descriptor is free. */
#include "hazard.h"
#include <pty.h>
#include <sys/time.h>

enum { CHILDREN = 400, FAILURES = 200, STEPS = 10 };

static pid_t children[CHILDREN];
static int live;

/* Children that end with the pipe's writing end. Natively there is room for all. */
static void fill_contract(const int ends[2])
{
    for (; live < CHILDREN; live++) {
        pid_t child = fork();
        if (child < 0) {
            CHECK(errno == EAGAIN && paged());
            return;
        }
        if (child == 0) {
            char byte;
            close(ends[1]);
            read(ends[0], &byte, 1);
            _exit(0);
        }
        children[live] = child;
    }
}

static atomic_ulong steps;
static atomic_int stop;

static void *maps_and_unmaps(void *arg)
{
    for (; !stop; steps++)
        munmap(map_private(PAGE), PAGE);
    return arg;
}

/* Another thread maps and unmaps memory meanwhile. */
static void fork_beside_a_thread(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, maps_and_unmaps, NULL) == 0);
    while (steps == 0)
        nap(1);
    unsigned long before = steps;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(child > 0 || (errno == EAGAIN && steps - before >= STEPS));
    if (child > 0)
        reap(child);
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

static void on_alarm(int signal)
{
    (void)signal;
}

/* Signals interrupt it. */
static void fork_under_signals(void)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(child > 0 || errno == EAGAIN);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    if (child > 0)
        reap(child);
}

static void terminal(void)
{
    int controller;
    pid_t child = forkpty(&controller, NULL, NULL, NULL);
    if (child == 0)
        _exit(0);
    CHECK(child > 0 || errno == EAGAIN);
    if (child > 0) {
        reap(child);
        close(controller);
    }
}

/* This process calls `daemon`, which ends it, or fails: then it says so. */
static void becomes_a_daemon(int begin, int result)
{
    char byte;
    alarm(100);
    CHECK(read(begin, &byte, 1) == 1);
    int failed = daemon(0, 1) != 0;
    CHECK(!failed || errno == EAGAIN);
    CHECK(write(result, failed ? "f" : "d", 1) == 1);
    _exit(0);
}

/* No child is left that no fork has returned. */
static void only_known_children(void)
{
    int status;
    nap(50);
    CHECK(waitpid(-1, &status, WNOHANG) == 0);
}

/* The kernel refuses each fork of a user who may have no process, here without a free descriptor. */
static void kernel_refuses(void)
{
    struct rlimit processes, descriptors, none;
    CHECK(geteuid() != 0 || setresuid(65533, 65533, 0) == 0);
    CHECK(getrlimit(RLIMIT_NPROC, &processes) == 0 && getrlimit(RLIMIT_NOFILE, &descriptors) == 0);
    none = descriptors;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    none = processes;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    for (int n = 0; n < FAILURES; n++)
        CHECK(fork() == -1 && errno == EAGAIN);
    CHECK(setrlimit(RLIMIT_NPROC, &processes) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &descriptors) == 0);
    pid_t child = checked_fork();
    if (child == 0)
        _exit(0);
    reap(child);
}

int main(void)
{
    int ends[2], begin[2], result[2];
    char outcome;
    alarm(100);
    CHECK(pipe(ends) == 0 && pipe(begin) == 0 && pipe(result) == 0);
    pid_t starter = checked_fork();
    if (starter == 0) {
        close(ends[1]);
        becomes_a_daemon(begin[0], result[1]);
    }
    fill_contract(ends);
    fork_beside_a_thread();
    fork_under_signals();
    only_known_children();
    terminal();
    CHECK(write(begin[1], "b", 1) == 1);
    reap(starter);
    CHECK(read(result[0], &outcome, 1) == 1);
    only_known_children();
    close(ends[1]);
    for (int n = 0; n < live; n++)
        reap(children[n]);
    kernel_refuses();
    return 0;
}
