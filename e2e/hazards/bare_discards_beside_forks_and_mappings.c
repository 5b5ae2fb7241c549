/* madvise by an instruction of the program's own, beside threads that fork and that map: each of them waits for
 * the pager, and none of them for ever. */
#include "hazard.h"

#define GUARD_INSTALL 102

static atomic_int is_over;

static void *discard(void *unused)
{
    size_t bytes = 256 * 1024;
    char *p = map_private(bytes);
    while (!is_over) {
        for (size_t i = 0; i < bytes; i += PAGE)
            p[i] = 1;
        CHECK(bare_madvise(p, bytes, MADV_DONTNEED) == 0);
        CHECK(all_zero(p, bytes));
    }
    return unused;
}

static void *churn_pages(void *unused)
{
    size_t pages = hazard_bytes() / PAGE;
    char *p = map_private(pages * PAGE);
    for (uint64_t i = 0; !is_over; i++)
        p[mix(i) % pages * PAGE]++;
    return unused;
}

/* A page that is guarded is not touched; where the call is refused all pages are as before. */
static void guard(void)
{
    char *p = map_private(MB);
    fill(p, MB, 3);
    long guarded = bare_madvise(p, PAGE, GUARD_INSTALL);
    CHECK(guarded == 0 || guarded == -EINVAL);
    push_out();
    for (size_t i = PAGE; i < MB; i += 8)
        CHECK(*(uint64_t *)(p + i) == word_at(3, i / 8));
}

int main(void)
{
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, discard, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, churn_pages, NULL) == 0);
    for (int round = 0; round < 100; round++) {
        char *p = map_private(MB);
        p[0] = 1;
        pid_t child = checked_fork();
        if (child == 0)
            _exit(p[0] == 1 ? 0 : 1);
        reap(child);
        CHECK(munmap(p, MB) == 0);
    }
    is_over = 1;
    for (int n = 0; n < 2; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    guard();
    puts("all have ended");
    return 0;
}
