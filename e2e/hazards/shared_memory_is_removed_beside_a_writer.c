/* One process ends the contents of shared memory, another writes each page as soon as it reads zero there: no such
 * write is lost, whether the page was in memory or not. */
#include "hazard.h"

enum { PAGES = 256, ROUNDS = 60 };

struct turns {
    volatile uint64_t begun, ended;
    char pad[PAGE - 16];
};

static volatile uint64_t *word(char *at, size_t page)
{
    return (volatile uint64_t *)(at + page * PAGE);
}

static void write_what_reads_zero(struct turns *turns, char *at)
{
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        while (turns->begun < round)
            sched_yield();
        for (size_t page = 0; page < PAGES; page++) {
            while (*word(at, page) != 0)
                sched_yield();
            *word(at, page) = ~round;
        }
        turns->ended = round;
    }
    _exit(0);
}

int main(void)
{
    alarm(120);
    size_t bytes = PAGES * PAGE;
    int access = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_ANONYMOUS;
    struct turns *turns = mmap(NULL, sizeof *turns, access, flags, -1, 0);
    char *at = mmap(NULL, bytes, access, flags, -1, 0);
    CHECK(turns != MAP_FAILED && at != MAP_FAILED);
    pid_t writer = checked_fork();
    if (writer == 0)
        write_what_reads_zero(turns, at);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (size_t page = 0; page < PAGES; page++)
            *word(at, page) = round;
        if (round % 3 == 0)
            push_out();
        turns->begun = round;
        CHECK(madvise(at, bytes, MADV_REMOVE) == 0);
        while (turns->ended < round)
            sched_yield();
        for (size_t page = 0; page < PAGES; page++)
            CHECK(*word(at, page) == ~round);
    }
    reap(writer);
    return 0;
}
