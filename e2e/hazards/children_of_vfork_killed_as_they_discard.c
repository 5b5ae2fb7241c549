/* A process that shares its parent's memory (clone with CLONE_VM and CLONE_VFORK) is killed while it discards pages: the
 * parent uses that memory as before. */
#include "hazard.h"

enum { PAGES = 1024, DISCARDED = 512, ROUNDS = 120 };

struct turns {
    volatile int child, round, ended;
};

static char *memory;
static struct turns *turns;
static volatile int round_number;

static int discard(void *unused)
{
    (void)unused;
    turns->child = getpid();
    turns->round = round_number;
    for (uint64_t at = mix(round_number);; at = mix(at)) {
        char *first = memory + at % (PAGES - DISCARDED) * PAGE;
        madvise(first, DISCARDED * PAGE, MADV_DONTNEED);
        for (size_t page = 0; page < DISCARDED; page++)
            first[page * PAGE] = 1;
    }
    return 0;
}

static void kill_children(void)
{
    int seen = 0;
    while (!turns->ended) {
        usleep(100);
        if (turns->round == seen)
            continue;
        int child = turns->child;
        seen = turns->round;
        usleep(200 + mix(seen) % 3000);
        kill(child, SIGKILL);
    }
    _exit(0);
}

int main(void)
{
    turns = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(turns != MAP_FAILED);
    memory = map_private(PAGES * PAGE);
    pid_t killer = checked_fork();
    if (killer == 0)
        kill_children();
    char stack[256 << 10] __attribute__((aligned(16)));
    for (round_number = 1; round_number <= ROUNDS; round_number++) {
        pid_t child = clone(discard, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
        CHECK(child > 0 && waitpid(child, NULL, 0) == child);
        /* By SIGALRM, where an access does not return. */
        alarm(20);
        for (size_t page = 0; page < PAGES; page++)
            memory[page * PAGE]++;
        alarm(0);
    }
    turns->ended = 1;
    /* Not by `exit`, which frees memory, as the child did when it was killed. */
    _exit(waitpid(killer, NULL, 0) == killer ? 0 : 1);
}
