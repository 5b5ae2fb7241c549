/* selfpage run --frames 16M --store ram:64M */
/* A process that has freed its large blocks takes nothing of what another needs. */
#include "hazard.h"

#define LARGE (40 * MB)

/* Bytes that do not compress. */
static void scramble(uint64_t *words, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n / 8; i++)
        words[i] = seed = seed * 6364136223846793005u + 1442695040888963407u;
}

static void use_and_free(size_t block)
{
    int blocks = LARGE / block;
    char **held = malloc(blocks * sizeof *held);
    for (int i = 0; i < blocks; i++) {
        CHECK(held[i] = malloc(block));
        scramble((uint64_t *)held[i], block, i);
    }
    for (int i = 0; i < blocks; i++) {
        uint64_t first = i * 6364136223846793005u + 1442695040888963407u;
        CHECK(*(uint64_t *)held[i] == first);
        free(held[i]);
    }
    free(held);
}

int main(void)
{
    size_t sizes[] = {LARGE, 8 * MB, 64 << 10};
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        int done[2];
        CHECK(pipe(done) == 0);
        children[i] = checked_fork();
        if (children[i] == 0) {
            use_and_free(sizes[i]);
            CHECK(write(done[1], "", 1) == 1);
            for (;;)
                pause();
        }
        close(done[1]);
        char byte;
        CHECK(read(done[0], &byte, 1) == 1);
        close(done[0]);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(kill(children[i], SIGKILL) == 0);
        end_of(children[i]);
    }
    return 0;
}
