/* Locked pages, HAZARD_LOCKED_MB of them, stay as they are while others come and go, for
 * HAZARD_SECONDS. */
#include "hazard.h"

int main(void)
{
    const char *mb = getenv("HAZARD_LOCKED_MB");
    const size_t bytes = mb ? strtoul(mb, NULL, 10) * MB : hazard_bytes() / 10 / PAGE * PAGE;
    uint64_t *locked = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(locked != MAP_FAILED);
    CHECK(mlock(locked, bytes) == 0);
    for (size_t i = 0; i < bytes / 8; i += PAGE / 8)
        locked[i] = mix(i);
    size_t words = hazard_bytes() / 8;
    uint64_t *paged = malloc(words * 8);
    CHECK(paged);
    const char *seconds = getenv("HAZARD_SECONDS");
    time_t end = time(NULL) + (seconds ? atoi(seconds) : 0);
    uint64_t round = 0;
    do {
        for (size_t i = 0; i < words; i += PAGE / 8)
            paged[i] = mix(i + round);
        for (size_t i = 0; i < words; i += PAGE / 8)
            CHECK(paged[i] == mix(i + round));
        for (size_t i = 0; i < bytes / 8; i += PAGE / 8)
            CHECK(locked[i] == mix(i));
        round++;
    } while (time(NULL) < end);
    return 0;
}
