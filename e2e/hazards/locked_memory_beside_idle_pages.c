/* One process locks much and sleeps, another one has pages that it does not use. A third one locks
 * memory: it gets the idle pages' frames, and soon. */
#include "hazard.h"

static size_t lock(size_t want)
{
    char *memory = map_private(want);
    size_t locked = 0;
    while (locked < want && mlock(memory + locked, 16 * PAGE) == 0)
        locked += 16 * PAGE;
    return locked;
}

int main(void)
{
    size_t frames = hazard_bytes() / 4;
    int ready[2];
    char byte = 0;
    CHECK(pipe(ready) == 0);
    pid_t locks = fork();
    if (locks == 0) {
        lock(frames / 8 * 3);
        CHECK(write(ready[1], &byte, 1) == 1);
        for (;;)
            pause();
    }
    CHECK(locks > 0 && read(ready[0], &byte, 1) == 1);
    nap(300);
    pid_t idle = fork();
    if (idle == 0) {
        fill(map_private(frames / 2), frames / 2, 1);
        CHECK(write(ready[1], &byte, 1) == 1);
        for (;;)
            pause();
    }
    CHECK(idle > 0 && read(ready[0], &byte, 1) == 1);
    /* With what the first one has, three quarters of the frames. */
    CHECK(lock(frames / 8 * 3) == frames / 8 * 3);
    CHECK(kill(locks, SIGKILL) == 0 && kill(idle, SIGKILL) == 0);
    while (wait(NULL) > 0)
        ;
    puts("locked");
    return 0;
}
