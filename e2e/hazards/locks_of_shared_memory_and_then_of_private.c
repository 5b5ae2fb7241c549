/* Shared memory is locked, then as much private memory as may be: what is not locked still comes and goes. A lock is its
 * mapping's: it goes on when another mapping of the same pages ends. */
#include "hazard.h"

#define STEP (16 * PAGE)

static char *map_shared(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void check_resident(char *at, size_t bytes)
{
    unsigned char there[bytes / PAGE];
    CHECK(mincore(at, bytes, there) == 0);
    for (size_t page = 0; page < bytes / PAGE; page++)
        CHECK(there[page] & 1);
}

static void lock_beside_other_mappings(void)
{
    size_t bytes = 4 * STEP;
    char *unmapped = map_shared(bytes), *unlocked = map_shared(bytes), *moved = map_shared(bytes);
    CHECK(mlock(unmapped, bytes) == 0 && mlock(unlocked, bytes) == 0 && mlock(moved, bytes) == 0);
    char *second = mremap(unmapped, 0, bytes, MREMAP_MAYMOVE);
    CHECK(second != MAP_FAILED && munmap(second, bytes) == 0);
    second = mremap(unlocked, 0, bytes, MREMAP_MAYMOVE);
    CHECK(second != MAP_FAILED && munlock(second, bytes) == 0);
    char *old = moved;
    moved = mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(moved != MAP_FAILED && munmap(old, bytes) == 0);
    push_out();
    check_resident(unmapped, bytes);
    check_resident(unlocked, bytes);
    check_resident(moved, bytes);
    CHECK(munlock(unmapped, bytes) == 0 && munlock(unlocked, bytes) == 0 && munlock(moved, bytes) == 0);
}

int main(void)
{
    lock_beside_other_mappings();
    size_t bytes = hazard_bytes(), half = bytes / 8, many = bytes / 4;
    char *shared = map_shared(half);
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
