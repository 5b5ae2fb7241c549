/* Programs make the first process of a PID namespace by a clone of their own, as container runtimes do: it has its
 * parent's memory, and executes others. */
#include "hazard.h"

static char *kept;
static size_t bytes;
static int namespaces = CLONE_NEWPID;

static void first_process(void)
{
    CHECK(getpid() == 1);
    CHECK(holds(kept, bytes, 1));
    /* The library's threads look at the program once a second. */
    nap(1300);
    push_out();
    CHECK(holds(kept, bytes, 1));
    pid_t child = checked_fork();
    if (child == 0)
        _exit(holds(kept, bytes, 1) ? 0 : 1);
    reap(child);
    execl("/bin/sh", "sh", "-c", "exit 11", NULL);
}

static int entry(void *unused)
{
    (void)unused;
    first_process();
    return 1;
}

static pid_t by_system_call(void)
{
    pid_t child = syscall(SYS_clone, SIGCHLD | namespaces, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(entry(NULL));
    return child;
}

/* The other public name of `clone`. */
int __clone(int (*)(void *), void *, int, void *, ...);

static pid_t by_clone(void)
{
    return clone(entry, malloc(256 << 10) + (256 << 10), SIGCHLD | namespaces, NULL);
}

static pid_t by_its_other_name(void)
{
    return __clone(entry, malloc(256 << 10) + (256 << 10), SIGCHLD | namespaces, NULL);
}

static void check(pid_t (*make)(void))
{
    push_out();
    pid_t child = make();
    CHECK(child > 0);
    int status = end_of(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 11);
}

int main(void)
{
    alarm(60);
    bytes = hazard_bytes() / 4;
    kept = map_private(bytes);
    fill(kept, bytes, 1);
    /* Users' namespaces may be off; root needs none. */
    pid_t probe = syscall(SYS_clone, SIGCHLD | namespaces, NULL, NULL, NULL, NULL);
    if (probe < 0) {
        namespaces |= CLONE_NEWUSER;
        probe = syscall(SYS_clone, SIGCHLD | namespaces, NULL, NULL, NULL, NULL);
    }
    if (probe == 0)
        _exit(0);
    if (probe < 0) {
        fprintf(stderr, "no namespace of processes here: %s\n", strerror(errno));
        return 77;
    }
    CHECK(waitpid(probe, NULL, 0) == probe);
    check(by_system_call);
    check(by_clone);
    check(by_its_other_name);
    return 0;
}
