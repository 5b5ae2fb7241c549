/* Fork without exec: each side goes on with its own copy, pages in and out, and sees
 * none of the other's writes. Three generations, several children at once. */
#include "hazard.h"

static void generation(char *p, char *heap, size_t n, int depth)
{
    uint64_t seed = 100 + depth;
    fill(p, n, seed);
    fill(heap, n / 4, seed * 7);
    if (depth == 0)
        return;
    pid_t child[3];
    for (int i = 0; i < 3; i++) {
        child[i] = checked_fork();
        if (child[i] == 0) {
            /* The middle child reads backwards and writes as it goes. */
            CHECK(holds(heap, n / 4, seed * 7));
            if (i == 1) {
                for (size_t at = n; at > 0; at -= PAGE)
                    for (size_t w = 0; w < 512; w += 73) {
                        uint64_t *word = (uint64_t *)(p + at - PAGE) + w;
                        CHECK(*word == word_at(seed, word - (uint64_t *)p));
                        *word = ~*word;
                    }
                for (size_t at = 0; at < n; at += PAGE)
                    for (size_t w = 0; w < 512; w += 73) {
                        uint64_t *word = (uint64_t *)(p + at) + w;
                        CHECK(*word == ~word_at(seed, word - (uint64_t *)p));
                    }
            } else {
                CHECK(holds(p, n, seed));
                generation(p, heap, n, i == 0 ? depth - 1 : 0);
            }
            /* exit, not _exit: atexit handlers run on paged memory too. */
            exit(0);
        }
    }
    /* The parent writes while the children still read. */
    for (size_t at = 0; at < n; at += PAGE)
        *(volatile uint64_t *)(p + at) += 1;
    for (int i = 0; i < 3; i++)
        reap(child[i]);
    for (size_t at = 0; at < n; at += PAGE)
        *(volatile uint64_t *)(p + at) -= 1;
    CHECK(holds(p, n, seed));
    CHECK(holds(heap, n / 4, seed * 7));
}

int main(void)
{
    size_t n = hazard_bytes() / 2;
    char *p = map_private(n), *heap = malloc(n / 4);
    CHECK(heap);
    char *never_touched = map_private(4 * MB);
    generation(p, heap, n, 2);
    CHECK(all_zero(never_touched, 4 * MB));
    return 0;
}
