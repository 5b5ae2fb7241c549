/* Memory that was there before any library was loaded: .bss, .data and what they hold. */
#include "hazard.h"

static char array[256 * MB];
static uint64_t initialised[MB / 8] = {1, 2, 3};

int main(void)
{
    size_t n = hazard_bytes() * 2;
    if (n > sizeof array)
        n = sizeof array;
    CHECK(initialised[0] == 1 && initialised[2] == 3 && initialised[3] == 0);
    fill(array, n, 1);
    fill(initialised, sizeof initialised, 2);
    CHECK(all_zero(array + n, sizeof array - n > 8 * MB ? 8 * MB : sizeof array - n));
    for (int i = 0; i < 2; i++) {
        CHECK(holds(array, n, 1));
        CHECK(holds(initialised, sizeof initialised, 2));
    }
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(holds(array, n, 1));
        fill(array, n, 3);
        CHECK(holds(array, n, 3));
        CHECK(holds(initialised, sizeof initialised, 2));
        _exit(0);
    }
    reap(child);
    CHECK(holds(array, n, 1));
    return 0;
}
