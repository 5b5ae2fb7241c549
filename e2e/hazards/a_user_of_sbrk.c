/* An allocator of the program's own over sbrk, as old programs have, growing and
 * shrinking; memory that comes back is zero. */
#include "hazard.h"

static void *waits(void *arg)
{
    for (;;)
        pause();
    return arg;
}

/* Nothing is mapped above the break, whatever asks. */
static void nothing_is_above(void)
{
    char *above = (char *)(((uintptr_t)sbrk(0) + 64 * MB) & ~(PAGE - 1));
    unsigned char there[1];
    CHECK(msync(above, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
    CHECK(mincore(above, PAGE, there) == -1 && errno == ENOMEM);
    CHECK(madvise(above, PAGE, MADV_NORMAL) == -1 && errno == ENOMEM);
    CHECK(mprotect(above, PAGE, PROT_READ) == -1 && errno == ENOMEM);
    CHECK(mlock(above, PAGE) == -1 && errno == ENOMEM);
    CHECK(mremap(above, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    CHECK(mmap(above, PAGE, prot, flags, -1, 0) == above);
    above[0] = 1;
    CHECK(munmap(above, PAGE) == 0 && msync(above, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
}

/* What is unmapped below the break stays so until the break has been below it. */
static void holes_below_the_break_are_filled_again(void)
{
    char *start = sbrk(16 * PAGE);
    CHECK(start != (void *)-1);
    char *page = (char *)(((uintptr_t)start + PAGE) & ~(PAGE - 1));
    memset(page, 1, 4 * PAGE);
    CHECK(munmap(page, PAGE) == 0 && msync(page, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
    CHECK(page[PAGE] == 1);
    CHECK(brk(start) == 0 && sbrk(16 * PAGE) == start);
    CHECK(all_zero(page, 4 * PAGE));
    memset(page, 1, PAGE);
    CHECK(brk(start) == 0);
}

int main(void)
{
    pthread_t beside;
    CHECK(pthread_create(&beside, NULL, waits, NULL) == 0);
    nothing_is_above();
    holes_below_the_break_are_filled_again();
    size_t n = hazard_bytes();
    char *start = sbrk(0);
    CHECK(start != (void *)-1);
    /* A fork while addresses are kept where there is no memory any more. */
    CHECK(sbrk(PAGE) == start && sbrk(-(intptr_t)PAGE) == start + PAGE && sbrk(0) == start);
    CHECK(setvbuf(stdin, start, _IOFBF, PAGE) == 0);
    pid_t early = checked_fork();
    if (early == 0)
        _exit(sbrk(0) == start ? 0 : 1);
    reap(early);
    CHECK(setvbuf(stdin, NULL, _IONBF, 0) == 0);
    char *p = sbrk(0);
    size_t got = 0;
    for (int i = 0; got < n; i++) {
        size_t piece = 1000 + mix(i) % 300000;
        char *at = sbrk(piece);
        CHECK(at != (void *)-1);
        CHECK(at == p + got);
        got += piece;
    }
    size_t lead = -(uintptr_t)p & 7;
    fill(p + lead, n - 8, 1);
    CHECK(holds(p + lead, n - 8, 1));
    void *other = malloc(1000); /* Must not take what is ours. */
    memset(other, 0xff, 1000);
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(holds(p + lead, n - 8, 1));
        CHECK(sbrk(4 * MB) != (void *)-1);
        _exit(0);
    }
    reap(child);
    if (sbrk(0) == p + got) {
        /* Rights end with the memory. */
        char *lost = (char *)((uintptr_t)(p + got / 4 * 3) & ~(PAGE - 1));
        CHECK(mprotect(lost, 2 * PAGE, PROT_NONE) == 0);
        CHECK(brk(p + got / 2) == 0);
        CHECK(sbrk(0) == p + got / 2);
        CHECK(brk(p + got) == 0);
        lost[0] = lost[PAGE] = 0;
        size_t cut = (uintptr_t)(p + got / 2 + PAGE) & ~(PAGE - 1);
        CHECK(all_zero((char *)cut, (p + got - (char *)cut) & ~7ul));
        CHECK(holds(p + lead, got / 2 - 16, 1));
    }
    /* The break does not grow over a mapping. */
    char *page = (char *)(((uintptr_t)sbrk(0) + 64 * PAGE) & ~(PAGE - 1));
    CHECK(mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
    *page = 9;
    char *last = sbrk(0);
    errno = 0;
    CHECK(sbrk(128 * PAGE) == (void *)-1 && errno == ENOMEM && sbrk(0) == last);
    CHECK(sbrk(8 * PAGE) == last && *page == 9);
    return 0;
}
