/* A program has as many mappings as the kernel allows (vm.max_map_count): mmap, munmap and mremap fail with ENOMEM or
 * have their effect. A guard stays a guard, constant data stays constant, and what an munmap that
 * failed was to free is as it was, also where the program chose its address. */
#include "hazard.h"

enum { PIECES = 64, LAST = 400, FRESH = 500 };
static sigjmp_buf fault;

static void on_fault(int signal) { siglongjmp(fault, signal); }

static int reads(volatile char *at)
{
    if (sigsetjmp(fault, 1))
        return 0;
    (void)*at;
    return 1;
}

static int writes(volatile char *at)
{
    if (sigsetjmp(fault, 1))
        return 0;
    *at = 1;
    return 1;
}

static char *map(size_t len, int prot)
{
    char *at = mmap(NULL, len, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED || errno == ENOMEM);
    return at == MAP_FAILED ? NULL : at;
}

static size_t limit(void)
{
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    size_t most = 0;
    CHECK(file && fscanf(file, "%zu", &most) == 1);
    fclose(file);
    return most;
}

int main(void)
{
    size_t most = limit();
    if (most > 300000)
        return 77;
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    char *guards[PIECES], *constants[PIECES];
    for (int n = 0; n < PIECES; n++) {
        guards[n] = map(3 * PAGE, PROT_NONE);
        constants[n] = map(3 * PAGE, PROT_READ | PROT_WRITE);
        memset(constants[n], n + 1, 3 * PAGE);
        CHECK(mprotect(constants[n], 3 * PAGE, PROT_READ) == 0);
    }
    char *chosen = (char *)(1ul << 40);
    CHECK(mmap(chosen, PIECES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == chosen);
    fill(chosen, PIECES * PAGE, 1);
    char **all = mmap(NULL, (most + PIECES) * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    size_t count = 0;
    while (count < most + PIECES && (all[count] = map(PAGE, count % 2 ? PROT_READ : PROT_NONE)))
        count++;
    CHECK(count > LAST && count < most + PIECES);
    for (size_t n = count - LAST; n < count; n++)
        CHECK(n % 2 ? reads(all[n]) && !writes(all[n]) : !reads(all[n]));

    int unmapped[PIECES], moved = 0;
    for (int n = 0; n < PIECES; n++) {
        unmapped[n] = munmap(guards[n] + PAGE, PAGE) == 0;
        CHECK(unmapped[n] || errno == ENOMEM);
        CHECK(!reads(guards[n]) && !reads(guards[n] + 2 * PAGE));
        CHECK(unmapped[n] || !reads(guards[n] + PAGE));
        char *to = mremap(constants[n] + PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
        CHECK(to != MAP_FAILED || errno == ENOMEM);
        if (to == MAP_FAILED)
            to = constants[n] + PAGE;
        else
            moved++;
        CHECK(to[0] == n + 1 && to[PAGE - 1] == n + 1 && !writes(to));
        CHECK(constants[n][0] == n + 1 && !writes(constants[n]));
        CHECK(constants[n][2 * PAGE] == n + 1 && !writes(constants[n] + 2 * PAGE));
    }
    for (int n = 1; n < PIECES; n += 2)
        if (munmap(chosen + n * PAGE, PAGE) == 0)
            CHECK(!reads(chosen + n * PAGE));
        else
            CHECK(errno == ENOMEM && *(uint64_t *)(chosen + n * PAGE) == word_at(1, n * PAGE / 8));
    /* Memory that can be had can be used. */
    for (int n = 0; n < FRESH; n++) {
        char *at = map(PAGE, PROT_READ | PROT_WRITE);
        CHECK(!at || (reads(at) && *at == 0 && writes(at)));
    }
    /* With mappings left all of it succeeds. */
    for (size_t n = 0; n < count; n++)
        CHECK(munmap(all[n], PAGE) == 0 || errno == ENOMEM);
    for (int n = 0; n < PIECES; n++) {
        CHECK(munmap(guards[n], 3 * PAGE) == 0);
        char *at = map(PAGE, PROT_NONE);
        CHECK(at && !reads(at));
    }
    return 0;
}
