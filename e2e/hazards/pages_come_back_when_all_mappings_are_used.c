/* A program uses up all the mappings that the kernel lets it have (vm.max_map_count), and then reads for the first time
 * what it has written before. */
#include "hazard.h"

enum { MOST = 400000 };

int main(void)
{
    size_t bytes = hazard_bytes() / 4;
    char *p = map_private(bytes);
    fill(p, bytes, 1);
    char *pieces = mmap(NULL, MOST * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(pieces != MAP_FAILED);
    size_t made = 0;
    while (made < MOST / 2 && mprotect(pieces + made * 2 * PAGE, PAGE, PROT_READ) == 0)
        made++;
    if (made == MOST / 2)
        return 77;
    CHECK(errno == ENOMEM);
    for (int round = 1; round <= 3; round++) {
        CHECK(holds(p, bytes, round));
        fill(p, bytes, round + 1);
    }
    return 0;
}
