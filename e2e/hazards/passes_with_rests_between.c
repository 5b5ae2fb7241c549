/* A program that pages, rests, and pages again: what its pager gave up meanwhile is there again. HAZARD_RESTS in
 * the environment is how often. */
#include "hazard.h"

int main(void)
{
    const char *wanted = getenv("HAZARD_RESTS");
    int rests = wanted ? atoi(wanted) : 1;
    size_t pages = hazard_bytes() / PAGE;
    uint64_t *words = aligned_alloc(PAGE, pages * PAGE);
    CHECK(words);
    for (size_t i = 0; i < pages * PAGE / 8; i++)
        words[i] = mix(i);
    for (int pass = 0; pass <= rests; pass++) {
        for (size_t page = 0; page < pages; page++) {
            uint64_t *first = words + page * PAGE / 8;
            CHECK(*first == mix(page * PAGE / 8) + (uint64_t)pass);
            CHECK(first[1] == mix(page * PAGE / 8 + 1));
            *first += 1;
        }
        struct timespec rest = {.tv_sec = 2};
        if (pass < rests)
            nanosleep(&rest, NULL);
    }
    return 0;
}
