/* Memory is mapped at addresses of the program's choosing, unmapped, and mapped again in
 * other cuts: larger than before, across what were two mappings and the gap between them,
 * over a part that is still in use. Runtimes that reserve by hints do all of these. */
#include "hazard.h"

/* Addresses that nothing else of the process takes. */
#define BASE ((char *)0x300000000ul)

static char *map_at(char *at, size_t bytes)
{
    char *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(p == at);
    CHECK(all_zero(p, bytes));
    return p;
}

static void use(char *p, size_t bytes, uint64_t seed)
{
    fill(p, bytes, seed);
    push_out();
    CHECK(holds(p, bytes, seed));
}

int main(void)
{
    alarm(200);
    /* A larger mapping around an old one. */
    use(map_at(BASE + MB, MB), MB, 1);
    CHECK(munmap(BASE + MB, MB) == 0);
    use(map_at(BASE, 4 * MB), 4 * MB, 2);
    /* The middle of it goes and comes back. */
    CHECK(munmap(BASE + MB, 2 * MB) == 0);
    use(map_at(BASE + MB, 2 * MB), 2 * MB, 3);
    CHECK(holds(BASE, MB, 2));
    CHECK(munmap(BASE, 4 * MB) == 0);
    /* Two mappings with a gap, then one over both. */
    use(map_at(BASE, MB), MB, 4);
    use(map_at(BASE + 3 * MB, MB), MB, 5);
    CHECK(munmap(BASE, MB) == 0 && munmap(BASE + 3 * MB, MB) == 0);
    use(map_at(BASE, 4 * MB), 4 * MB, 6);
    CHECK(munmap(BASE, 4 * MB) == 0);
    /* The end of one in use, and what lies behind it; small gaps are as good as large ones. */
    use(map_at(BASE, 2 * MB), 2 * MB, 7);
    use(map_at(BASE + 4 * MB + PAGE, MB), MB, 8);
    CHECK(munmap(BASE + MB, MB) == 0);
    CHECK(munmap(BASE + 4 * MB + PAGE, MB / 2) == 0);
    use(map_at(BASE + MB, 3 * MB + MB / 2), 3 * MB + MB / 2, 9);
    CHECK(holds(BASE, MB, 7));
    for (size_t i = (MB / 2) / 8; i < MB / 8; i += 61)
        CHECK(((uint64_t *)(BASE + 4 * MB + PAGE))[i] == word_at(8, i));
    /* A child of a fork has all of it, and goes on with it. */
    push_out();
    pid_t child = checked_fork();
    if (child == 0) {
        alarm(200);
        CHECK(holds(BASE + MB, 3 * MB + MB / 2, 9));
        CHECK(munmap(BASE, 6 * MB) == 0);
        use(map_at(BASE + PAGE, 3 * MB), 3 * MB, 10);
        _exit(0);
    }
    reap(child);
    /* Many, at ever other addresses. */
    for (int i = 0; i < 200; i++) {
        char *p = map_at(BASE + 64 * MB + i * 17 * PAGE, 32 * PAGE);
        fill(p, 4 * PAGE, i);
        CHECK(holds(p, 4 * PAGE, i));
        CHECK(munmap(p, 32 * PAGE) == 0);
    }
    CHECK(holds(BASE + MB, 3 * MB + MB / 2, 9));
    return 0;
}
