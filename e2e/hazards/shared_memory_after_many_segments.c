/* A program maps, uses and unmaps thousands of segments of shared memory. One that it maps then leaves the frames
 * as any other when they are wanted: by the pages that the kernel still has of it, if the program is paged. */
#include "hazard.h"

#define SEGMENTS 3000
#define BYTES (6 * MB)

static size_t residents(void *start)
{
    static unsigned char there[BYTES / PAGE];
    size_t count = 0;
    CHECK(mincore(start, BYTES, there) == 0);
    for (size_t page = 0; page < BYTES / PAGE; page++)
        count += there[page] & 1;
    return count;
}

static char *map_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

int main(void)
{
    for (int n = 0; n < SEGMENTS; n++) {
        char *p = map_shared(128 * 1024);
        p[0] = 1;
        CHECK(munmap(p, 128 * 1024) == 0);
    }
    char *p = map_shared(BYTES);
    fill(p, BYTES, 9);
    push_out();
    /* On a busy machine its pager takes a while. */
    for (int n = 0; n < 50 && paged() && residents(p) >= BYTES / PAGE / 2; n++)
        push_out();
    CHECK(!paged() || residents(p) < BYTES / PAGE / 2);
    CHECK(holds(p, BYTES, 9));
    return 0;
}
