/* Several processes lock as much as each may: all of them can still touch other memory. */
#include "hazard.h"

enum { PROCESSES = 4 };

/* Locks piece by piece until that fails. */
static size_t lock_all(char *p, size_t n)
{
    size_t locked = 0;
    while (locked < n && mlock(p + locked, 16 * PAGE) == 0)
        locked += 16 * PAGE;
    CHECK(locked == n || errno == ENOMEM || errno == EPERM);
    return locked;
}

int main(void)
{
    size_t n = hazard_bytes() / 2;
    int go[2], ready[2];
    CHECK(pipe(go) == 0 && pipe(ready) == 0);
    pid_t child[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        child[i] = checked_fork();
        if (child[i] == 0) {
            char *p = map_private(n), *q = map_private(n / 4), word = 1;
            size_t locked = lock_all(p, n);
            fill(p, locked, i);
            CHECK(write(ready[1], &word, 1) == 1);
            CHECK(read(go[0], &word, 1) == 1);
            for (int round = 0; round < 2; round++) {
                fill(q, n / 4, i + round + 7);
                CHECK(holds(q, n / 4, i + round + 7));
            }
            CHECK(holds(p, locked, i));
            _exit(0);
        }
    }
    char words[PROCESSES] = {0};
    for (int i = 0; i < PROCESSES; i++)
        CHECK(read(ready[0], words, 1) == 1);
    CHECK(write(go[1], words, PROCESSES) == PROCESSES);
    for (int i = 0; i < PROCESSES; i++)
        reap(child[i]);
    return 0;
}
