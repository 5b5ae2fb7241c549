/* The pager shows neither as threads nor as children: calls that need a program of one thread
 * work, and a program that waits for all its children comes to an end, with __WALL, as the first
 * process of a PID namespace, and as a subreaper too. */
#define _GNU_SOURCE
#include "hazard.h"
#include <dirent.h>

static int threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    CHECK(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* More memory than there are frames. */
static void page(void)
{
    size_t n = hazard_bytes() / 2;
    char *p = map_private(n);
    fill(p, n, 5);
    CHECK(holds(p, n, 5));
    munmap(p, n);
}

static int reap_all(int flags)
{
    for (int count = 0;; count++) {
        pid_t pid = waitpid(-1, NULL, flags);
        if (pid < 0) {
            CHECK(errno == ECHILD);
            return count;
        }
    }
}

static void in_child(void (*work)(void))
{
    fflush(NULL);
    pid_t child = checked_fork();
    if (child == 0) {
        work();
        exit(0);
    }
    reap(child);
}

static void in_namespaces(void)
{
    page();
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) < 0) {
        printf("no namespaces: %d\n", errno);
        return;
    }
    pid_t first = checked_fork();
    if (first == 0) {
        CHECK(getpid() == 1);
        page();
        for (int i = 0; i < 2; i++) {
            pid_t child = checked_fork();
            if (child == 0) {
                page();
                _exit(0);
            }
        }
        CHECK(reap_all(0) >= 2);
        _exit(0);
    }
    reap(first);
    puts("the first process of a namespace ends");
}

static void as_subreaper(void)
{
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    pid_t child = checked_fork();
    if (child == 0) {
        page();
        if (fork() == 0)
            page();
        _exit(0);
    }
    CHECK(reap_all(0) >= 2);
    int is = 0;
    CHECK(prctl(PR_GET_CHILD_SUBREAPER, &is) == 0);
    printf("a subreaper ends, and is one: %d\n", is);
}

int main(void)
{
    page();
    printf("%d thread\n", threads());
    printf("%d children\n", reap_all(__WALL));
    in_child(in_namespaces);
    in_child(as_subreaper);
    printf("%d thread\n", threads());
    return 0;
}
