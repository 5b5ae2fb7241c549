/* A size that is wrong, a negative one say, gets NULL from malloc: not memory beside the frames, of which the
 * program then takes all that the machine has. */
#include "hazard.h"

int main(void)
{
    /* Where it is 1 the kernel grants all. */
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "r");
    CHECK(file);
    int mode = -1;
    CHECK(fscanf(file, "%d", &mode) == 1 && fclose(file) == 0);
    if (mode == 1)
        return 77;
    for (int bits = 46; bits < 64; bits++) {
        errno = 0;
        CHECK(malloc(1ul << bits) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(calloc(1ul << bits, 1) == NULL && errno == ENOMEM);
        CHECK(mmap(NULL, 1ul << bits, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    }
    /* What a program commits of a reservation is another matter; memory is there afterwards. */
    char *p = malloc(hazard_bytes());
    CHECK(p);
    fill(p, hazard_bytes() / 8 * 8, 1);
    CHECK(holds(p, hazard_bytes() / 8 * 8, 1));
    CHECK(realloc(p, 1ul << 46) == NULL && errno == ENOMEM);
    CHECK(holds(p, hazard_bytes() / 8 * 8, 1));
    return 0;
}
