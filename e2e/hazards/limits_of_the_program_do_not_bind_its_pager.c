/* A process lowers the limits on what it writes, opens, locks and computes, and what it forks and
 * executes then pages: the pager of such a child works by limits of its own, and the child's are as
 * it set them. */
#include "hazard.h"

static void lower(int resource, rlim_t to)
{
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = to < limit.rlim_max ? to : limit.rlim_max;
    CHECK(setrlimit(resource, &limit) == 0);
}

static const struct { int resource; rlim_t to; } LOWERED[] = {
    { RLIMIT_FSIZE, 0 }, { RLIMIT_NOFILE, 3 }, { RLIMIT_MEMLOCK, 0 },
};

static void page(void)
{
    size_t bytes = hazard_bytes();
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (size_t at = 0; at < bytes / 8; at++)
        memory[at] = mix(at);
    for (size_t at = 0; at < bytes / 8; at += 512)
        CHECK(memory[at] == mix(at));
    for (size_t n = 0; n < sizeof LOWERED / sizeof *LOWERED; n++) {
        struct rlimit limit;
        CHECK(getrlimit(LOWERED[n].resource, &limit) == 0);
        CHECK(limit.rlim_cur == LOWERED[n].to);
    }
    _exit(0);
}

static void ends_well(pid_t child)
{
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **arguments)
{
    if (count > 1)
        page();
    pid_t child = fork();
    if (child == 0) {
        for (size_t n = 0; n < sizeof LOWERED / sizeof *LOWERED; n++)
            lower(LOWERED[n].resource, LOWERED[n].to);
        ends_well(fork() ?: (page(), 0));
        child = fork();
        if (child == 0) {
            /* The loader needs a descriptor: the limit is on the next number. */
            close(2);
            execl("/proc/self/exe", arguments[0], "page", (char *)NULL);
            _exit(3);
        }
        ends_well(child);
        _exit(0);
    }
    ends_well(child);
    puts("paged");
    return 0;
}
