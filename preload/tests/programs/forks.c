/* Every way to fork, from one thread and from many, with what a fork does to memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "[%d] %d: %s (%d)\n", getpid(), __LINE__, #what, errno); _exit(1); } } while (0)

static char *kept, *wiped, *gone;
enum { SIZE = 1 << 20 };

static int in_child(void)
{
    /* The heap works, the pages are there, and marks are honoured. */
    char *fresh = malloc(100000);
    memset(fresh, 1, 100000);
    free(fresh);
    CHECK(kept[0] == 7 && kept[SIZE - 1] == 7);
    kept[0] = 8;
    CHECK(wiped[0] == 0 && wiped[SIZE - 1] == 0);
    CHECK(madvise(gone, SIZE, MADV_NORMAL) == -1 && errno == ENOMEM);
    FILE *file = fopen("/dev/null", "w");
    CHECK(file && fprintf(file, "%d", 1) == 1 && fclose(file) == 0);
    /* And a grandchild. */
    pid_t pid = fork();
    if (pid == 0)
        _exit(kept[0] == 8 ? 0 : 1);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}

static int entry(void *arg)
{
    CHECK(arg == (void *)5);
    return in_child();
}

static void reap(pid_t pid)
{
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(kept[0] == 7 && wiped[0] == 7 && gone[0] == 7);
}

static void each_way(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    for (int way = 0; way < 6; way++) {
        pid_t pid;
        switch (way) {
        case 0: pid = fork(); break;
        case 1: pid = _Fork(); break;
        case 2: pid = syscall(SYS_fork); break;
        case 3: pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); break;
        case 4: {
            struct clone_args args = {.exit_signal = SIGCHLD};
            pid = syscall(SYS_clone3, &args, sizeof args);
            break;
        }
        case 5: pid = clone(entry, stack + sizeof stack, SIGCHLD, (void *)5); break;
        }
        if (pid == 0)
            _exit(in_child());
        reap(pid);
    }
    CHECK(syscall(SYS_clone, SIGCHLD | CLONE_THREAD, 0, 0, 0, 0) == -1 && errno == EINVAL);
}

static volatile int stop;
static void *churn(void *arg)
{
    for (unsigned i = 0; !stop; i++) {
        void *p[50];
        for (int k = 0; k < 50; k++)
            p[k] = malloc((i * 131 + k * 977) % 60000);
        for (int k = 0; k < 50; k++)
            free(p[k]);
        void *m = mmap(NULL, 100000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(m, 100000);
    }
    return arg;
}
static void *forker(void *arg)
{
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(in_child());
        reap(pid);
    }
    return arg;
}

static int prepared, in_parent, in_child_handler;
static void prepare(void) { free(malloc(100)); prepared++; }
static void parent(void) { free(malloc(100)); in_parent++; }
static void child(void) { free(malloc(100)); in_child_handler++; }

int main(void)
{
    char **all[] = {&kept, &wiped, &gone};
    for (int i = 0; i < 3; i++) {
        *all[i] = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(*all[i], 7, SIZE);
    }
    CHECK(madvise(wiped, SIZE, MADV_WIPEONFORK) == 0 && madvise(gone, SIZE, MADV_DONTFORK) == 0);
    each_way();
    pthread_atfork(prepare, parent, child);
    pid_t pid = fork();
    if (pid == 0)
        _exit(prepared == 1 && in_child_handler == 1 && in_parent == 0 ? in_child() : 1);
    reap(pid);
    CHECK(prepared == 1 && in_parent == 1 && in_child_handler == 0);
    pthread_t threads[5];
    for (int i = 0; i < 5; i++)
        CHECK(pthread_create(&threads[i], NULL, i < 2 ? churn : forker, NULL) == 0);
    for (int i = 2; i < 5; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    stop = 1;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    pid = vfork();
    if (pid == 0)
        _exit(0);
    reap(pid);
    return 0;
}
