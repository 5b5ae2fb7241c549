/* A process group that loses its last parent in the session is orphaned: the kernel sends SIGHUP and SIGCONT to the stopped
 * ones, and the terminal's stop signals stop none of them. */
#include "hazard.h"

static int to_test, from_orphan;
static pid_t parent;

static void report(int signal)
{
    char name = signal == SIGHUP ? 'h' : 'c';
    CHECK(write(to_test, &name, 1) == 1);
}

/* Runs `orphan` in a group of its own, and ends its parent once `is_ready` says so. */
static void make_orphan(void (*orphan)(void), void (*await)(pid_t))
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    from_orphan = ends[0], to_test = ends[1];
    pid_t forked = checked_fork();
    if (forked == 0) {
        parent = getpid();
        pid_t child = checked_fork();
        if (child == 0) {
            setpgid(0, 0);
            orphan();
            _exit(0);
        }
        setpgid(child, child);
        await(child);
        _exit(0);
    }
    close(to_test);
    reap(forked);
}

static void stops(void)
{
    CHECK(signal(SIGHUP, report) != SIG_ERR && signal(SIGCONT, report) != SIG_ERR);
    raise(SIGSTOP);
    report(0);
}

static void await_stop(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
}

static void outlives_its_parent(void)
{
    while (getppid() == parent)
        nap(1);
    raise(SIGTSTP);
    raise(SIGTTIN);
    raise(SIGTTOU);
    report(0);
}

static void await_nothing(pid_t child)
{
    (void)child;
}

static void expect(size_t count)
{
    for (size_t n = 0; n < count; n++) {
        char name;
        CHECK(read(from_orphan, &name, 1) == 1);
    }
    char none;
    CHECK(read(from_orphan, &none, 1) == 0);
    close(from_orphan);
}

int main(void)
{
    alarm(60);
    make_orphan(stops, await_stop);
    expect(3);
    make_orphan(outlives_its_parent, await_nothing);
    expect(1);
    return 0;
}
