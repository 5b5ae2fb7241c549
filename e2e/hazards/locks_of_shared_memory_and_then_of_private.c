/* Shared memory is locked, then as much private memory as may be: what is not locked still comes and goes. */
#include "hazard.h"

#define STEP (16 * PAGE)

int main(void)
{
    size_t bytes = hazard_bytes(), half = bytes / 8, many = bytes / 4;
    char *shared = mmap(NULL, half, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    fill(shared, half, 1);
    for (size_t at = 0; at < half && mlock(shared + at, STEP) == 0; at += STEP)
        ;
    char *locked = map_private(many);
    fill(locked, many, 2);
    for (size_t at = 0; at < many && mlock(locked + at, STEP) == 0; at += STEP)
        ;
    char *moving = map_private(bytes);
    for (int round = 0; round < 2; round++) {
        fill(moving, bytes, 3 + round);
        CHECK(holds(moving, bytes, 3 + round));
        CHECK(holds(shared, half, 1) && holds(locked, many, 2));
    }
    return 0;
}
