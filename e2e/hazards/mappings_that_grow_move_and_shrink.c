/* mremap in every form over memory that is partly resident, partly out and partly never
 * touched: grow in place, grow by moving, move to a place asked for, shrink, and by
 * realloc; with another thread paging. */
#include "hazard.h"

int main(void)
{
    struct churn churn[1];
    churn_start(churn, 1);
    size_t n = hazard_bytes() / 4;
    char *p = map_private(n);
    fill(p, n / 2, 1); /* The second half is never touched. */
    for (int round = 0; round < 4; round++) {
        char *q = mremap(p, n, 2 * n, MREMAP_MAYMOVE);
        CHECK(q != MAP_FAILED);
        CHECK(holds(q, n / 2, 1));
        CHECK(all_zero(q + n / 2, n + n / 2));
        fill(q + n, n, 2);
        /* To a place asked for, over something that is mapped and full. */
        char *target = map_private(2 * n + 2 * MB);
        fill(target, 4 * MB, 99);
        char *r = mremap(q, 2 * n, 2 * n, MREMAP_MAYMOVE | MREMAP_FIXED, target + 5 * PAGE);
        CHECK(r == target + 5 * PAGE);
        CHECK(holds(target, 5 * PAGE, 99));
        CHECK(holds(r, n / 2, 1) && holds(r + n, n, 2));
        CHECK(all_zero(r + n / 2, n / 2));
        /* Shrink, then grow again: what was cut off is gone. */
        CHECK(mremap(r, 2 * n, n + 3 * PAGE, 0) == r);
        q = mremap(r, n + 3 * PAGE, 2 * n, MREMAP_MAYMOVE);
        CHECK(q != MAP_FAILED);
        CHECK(holds(q, n / 2, 1) && holds(q + n, 3 * PAGE, 2));
        CHECK(all_zero(q + n + 3 * PAGE, n - 3 * PAGE));
        /* A piece out of the middle. */
        char *piece = mremap(q + n / 4, n / 8, n / 4, MREMAP_MAYMOVE);
        CHECK(piece != MAP_FAILED);
        for (size_t i = 0; i < n / 8 / 8; i += 61)
            CHECK(((uint64_t *)piece)[i] == word_at(1, n / 4 / 8 + i));
        CHECK(all_zero(piece + n / 8, n / 8));
        CHECK(munmap(piece, n / 4) == 0);
        CHECK(munmap(q, 2 * n) == 0);
        munmap(target, 5 * PAGE);
        p = map_private(n);
        CHECK(all_zero(p, n));
        fill(p, n / 2, 1);
    }
    /* realloc of blocks large enough to be moved by mremap, and small ones. */
    char *block = NULL;
    size_t had = 0;
    for (size_t size = 1000; size < hazard_bytes() / 4; size = size * 5 / 3 + 4096) {
        block = realloc(block, size);
        CHECK(block);
        CHECK(holds(block, had, 5));
        fill(block, size / 8 * 8, 5);
        had = size / 8 * 8;
    }
    for (size_t size = had; size > 1000; size = size / 2) {
        block = realloc(block, size);
        CHECK(block && holds(block, size / 8 * 8, 5));
    }
    free(block);
    churn_stop(churn, 1);
    CHECK(mremap((void *)PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    /* A call that does not grow asks for a mapping at its start alone. */
    n = hazard_bytes() / 16 / PAGE * PAGE;
    char *several = map_private(4 * n);
    fill(several, 4 * n, 3);
    CHECK(mprotect(several + n, n, PROT_READ) == 0);
    CHECK(mremap(several, 2 * n, 2 * n, 0) == several);
    CHECK(mremap(several, 2 * n, n / 2 / PAGE * PAGE, 0) == several);
    CHECK(munmap(several + 3 * n, PAGE) == 0);
    CHECK(mremap(several + 2 * n, 2 * n, PAGE, 0) == several + 2 * n);
    CHECK(holds(several, n / 2 / PAGE * PAGE, 3));
    CHECK(*(uint64_t *)(several + 2 * n) == word_at(3, 2 * n / 8));
    char *end = several + n / 2 / PAGE * PAGE;
    CHECK(mremap(end, n, PAGE, 0) == MAP_FAILED && errno == EFAULT);
    CHECK(mremap(several, PAGE, 1ul << 60, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(several, -1ul, PAGE, 0) == MAP_FAILED && errno == EINVAL);
    void *last = (void *)((1ul << 47) - PAGE);
    CHECK(mremap(several, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, last) == MAP_FAILED && errno == EINVAL);
    return 0;
}
