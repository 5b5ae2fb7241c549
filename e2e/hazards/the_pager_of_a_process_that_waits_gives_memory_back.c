/* A process that pages nothing has at most 512 KiB of memory of its pager, and so has the child of
 * a fork. One that has paged, in order and at random, gives most of what its pager took for that
 * back once it waits. */
#include "hazard.h"

/* KiB: without a fault; after faults, of the process, of each thread that reads faults, and of the
 * tables. */
enum { NOTHING_PAGED = 512, WAITING = 768, READER = 192, TABLES_OF_1_MIB = 2 };

/* KiB of anonymous memory that are the pager's own in this process: what is left out of core dumps
 * and is neither registered nor named, and the library's data. */
static long pager_kib(void)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[4096], name[4096] = "", flags[512];
    long anonymous = 0, all = 0, kib;
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
            name[0] = 0;
            sscanf(line, "%*s %*s %*s %*s %*s %4095s", name);
        } else if (sscanf(line, "Anonymous: %ld", &kib) == 1) {
            anonymous = kib;
        } else if (sscanf(line, "VmFlags: %511[^\n]", flags) == 1) {
            int own = !name[0] && strstr(flags, "dd") && !strstr(flags, "um");
            if (own || strstr(name, "libselfpage_preload.so"))
                all += anonymous;
        }
    }
    fclose(file);
    return all;
}

/* Waits, and pages nothing, until the pager has at most so much. */
static void await_at_most(long most)
{
    long kib = pager_kib();
    for (int tenths = 0; kib > most && tenths < 600; tenths++) {
        usleep(100000);
        kib = pager_kib();
    }
    if (kib > most)
        fprintf(stderr, "%ld KiB of the pager's own, where %ld are expected\n", kib, most);
    CHECK(kib <= most);
}

int main(void)
{
    await_at_most(NOTHING_PAGED);
    pid_t child = fork();
    if (child == 0) {
        await_at_most(NOTHING_PAGED);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    size_t n = hazard_bytes();
    char *p = map_private(n);
    fill(p, n, 1);
    CHECK(holds(p, n, 1));
    for (size_t at = 0; at < n / PAGE; at++)
        (void)*(volatile char *)(p + mix(at) % (n / PAGE) * PAGE);
    long readers = sysconf(_SC_NPROCESSORS_ONLN);
    long waiting = WAITING + READER * (readers < 8 ? readers : 8) + TABLES_OF_1_MIB * (n / MB);
    await_at_most(waiting);
    CHECK(holds(p, n, 1));
    /* The child has its parent's tables, and none of its buffers. */
    child = fork();
    if (child == 0) {
        CHECK(holds(p, n, 1));
        await_at_most(waiting);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
