/* Several threads fork at once while others page as fast as they can. Each child must
 * find every page as it was at the fork, page in and out itself, and end. */
#include "hazard.h"

static char *shared_pattern;
static size_t shared_bytes;
static atomic_ulong forks;

static void *forker(void *arg)
{
    uint64_t seed = (uintptr_t)arg;
    size_t n = 2 * MB;
    char *mine = map_private(n);
    double end = now() + 4;
    for (int i = 0; (now() < end || i < 4) && i < 200; i++) {
        fill(mine, n, seed + i);
        pid_t child = checked_fork();
        if (child == 0) {
            CHECK(holds(mine, n, seed + i));
            for (size_t at = (i % 16) * PAGE; at < shared_bytes; at += 16 * PAGE) {
                uint64_t *w = (uint64_t *)(shared_pattern + at);
                CHECK(*w == word_at(5, w - (uint64_t *)shared_pattern));
                *w = 0;
            }
            char *own = malloc(MB);
            fill(own, MB, i);
            CHECK(holds(own, MB, i));
            _exit(0);
        }
        CHECK(holds(mine, n, seed + i));
        reap(child);
        forks++;
    }
    return NULL;
}

int main(void)
{
    shared_bytes = hazard_bytes() / 2;
    shared_pattern = map_private(shared_bytes);
    fill(shared_pattern, shared_bytes, 5);
    struct churn churn[2];
    pthread_t t[3];
    churn_start(churn, 2);
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&t[i], NULL, forker, (void *)(1000 * (i + 1))) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    churn_stop(churn, 2);
    CHECK(holds(shared_pattern, shared_bytes, 5));
    CHECK(forks >= 12);
    return 0;
}
