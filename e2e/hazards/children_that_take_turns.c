/* Many children of which one at a time works, over and over on memory of its own: a pool of
 * workers. Together they have far more than the frames, each has less. */
#include "hazard.h"

#define CHILDREN 40
#define ROUNDS 3
#define PASSES 10

static void work(char *p, size_t n, uint64_t *seed)
{
    for (int pass = 0; pass < PASSES; pass++) {
        CHECK(holds(p, n, *seed));
        fill(p, n, ++*seed);
    }
}

static void child(int in, int out, uint64_t seed)
{
    size_t n = hazard_bytes() / 64;
    char *p = map_private(n), turn;
    fill(p, n, seed);
    CHECK(write(out, "", 1) == 1);
    while (read(in, &turn, 1) == 1) {
        work(p, n, &seed);
        CHECK(write(out, "", 1) == 1);
    }
    CHECK(holds(p, n, seed));
    _exit(0);
}

int main(void)
{
    alarm(100);
    int to[CHILDREN][2], from[CHILDREN][2];
    pid_t children[CHILDREN];
    char done;
    for (int i = 0; i < CHILDREN; i++) {
        CHECK(pipe(to[i]) == 0 && pipe(from[i]) == 0);
        children[i] = checked_fork();
        if (children[i] == 0) {
            for (int j = 0; j <= i; j++)
                close(to[j][1]);
            child(to[i][0], from[i][1], i * 1000);
        }
        CHECK(read(from[i][0], &done, 1) == 1);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < CHILDREN; i++) {
            CHECK(write(to[i][1], "", 1) == 1);
            CHECK(read(from[i][0], &done, 1) == 1);
        }
    for (int i = 0; i < CHILDREN; i++) {
        close(to[i][1]);
        reap(children[i]);
    }
    return 0;
}
