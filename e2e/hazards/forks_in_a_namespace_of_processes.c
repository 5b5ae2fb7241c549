/* Forks for some seconds in a namespace where processes have other numbers, and began at other times, as in a container that was
 * restored: each child is there, has its parent's memory, and ends well. */
#include "hazard.h"
#include <sys/mount.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { SECONDS = 2 };

/* Where there are such namespaces, and this process may make one. */
static void begin_later(void)
{
    int offsets = unshare(CLONE_NEWTIME) == 0 ? open("/proc/self/timens_offsets", O_WRONLY) : -1;
    if (offsets >= 0) {
        CHECK(write(offsets, "boottime 1 0\n", 13) == 13);
        close(offsets);
    }
}

static void forks_for_a_while(void)
{
    size_t bytes = 64 * PAGE;
    char *kept = map_private(bytes);
    fill(kept, bytes, 6);
    struct timespec begun, now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &begun) == 0);
    do {
        pid_t child = fork();
        CHECK(child > 0 || child == 0);
        if (child == 0)
            _exit(holds(kept, bytes, 6) ? 0 : 1);
        reap(child);
        CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    } while (now.tv_sec - begun.tv_sec < SECONDS);
}

int main(void)
{
    /* Users' namespaces may be off; root needs none. */
    int flags = CLONE_NEWPID | CLONE_NEWNS;
    if (unshare(flags) != 0 && unshare(flags | CLONE_NEWUSER) != 0) {
        fprintf(stderr, "no namespace of processes here: %s\n", strerror(errno));
        return 77;
    }
    begin_later();
    pid_t first = checked_fork();
    if (first == 0) {
        CHECK(getpid() == 1);
        CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
        CHECK(mount("proc", "/proc", "proc", 0, NULL) == 0);
        forks_for_a_while();
        _exit(0);
    }
    reap(first);
    return 0;
}
