/* Children lock inherited shared memory and end without an munlock: in time all of it is evicted again, or there would be no frames left. */
#include "hazard.h"

enum { ROUNDS = 5 };

static char *share(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

int main(void)
{
    alarm(200);
    size_t each = hazard_bytes() / 16, all = hazard_bytes();
    char *other = share(all), *locked[ROUNDS];
    for (int n = 0; n < ROUNDS; n++) {
        locked[n] = share(each);
        fill(locked[n], each, n + 1);
        int ready[2], go[2];
        char byte = 0;
        CHECK(pipe(ready) == 0 && pipe(go) == 0);
        pid_t child = checked_fork();
        if (child == 0) {
            byte = mlock(locked[n], each) == 0;
            CHECK(write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
            _exit(0);
        }
        CHECK(read(ready[0], &byte, 1) == 1);
        if (!byte)
            return 77;
        /* Its units are passed over meanwhile. */
        fill(other, all, n);
        CHECK(write(go[1], &byte, 1) == 1);
        reap(child);
        for (int end = 0; end < 2; end++)
            close(ready[end]), close(go[end]);
        fill(other, all, n + ROUNDS);
        CHECK(holds(other, all, n + ROUNDS));
    }
    for (int n = 0; n < ROUNDS; n++)
        CHECK(holds(locked[n], each, n + 1));
    return 0;
}
