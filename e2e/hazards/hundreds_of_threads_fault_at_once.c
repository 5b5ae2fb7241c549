/* Every thread faults at the same moment as all others, on pages of its own and on pages that all read, while another
 * thread forks and maps. Each page is the one last written. */
#include "hazard.h"

#define THREADS 600
#define ROUNDS 6
#define STACK (64 * 1024)

static pthread_barrier_t together;
static char *own_pages, *common;
static size_t pages_each, common_pages;
static volatile int is_over;

static char *own_page(size_t thread, size_t page)
{
    /* Neighbours are of other threads. */
    return own_pages + (page * THREADS + thread) * PAGE;
}

static void *fault(void *arg)
{
    size_t me = (size_t)arg;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&together);
        for (size_t page = 0; page < pages_each; page++) {
            uint64_t *at = (uint64_t *)own_page(me, page);
            if (round > 0)
                CHECK(*at == mix(me * 1000 + page + round - 1));
            *at = mix(me * 1000 + page + round);
            size_t shared = (me + page * 7 + round) % common_pages;
            CHECK(*(volatile uint64_t *)(common + shared * PAGE) == mix(shared));
        }
    }
    return NULL;
}

static void *fork_and_map(void *arg)
{
    while (!is_over) {
        char *p = map_private(16 * PAGE);
        fill(p, 16 * PAGE, 5);
        pid_t child = checked_fork();
        if (child == 0) {
            CHECK(holds(p, 16 * PAGE, 5));
            _exit(0);
        }
        reap(child);
        CHECK(munmap(p, 16 * PAGE) == 0);
    }
    return arg;
}

int main(void)
{
    pages_each = hazard_bytes() / PAGE / THREADS + 1;
    common_pages = hazard_bytes() / PAGE / 4;
    own_pages = map_private(THREADS * pages_each * PAGE);
    common = map_private(common_pages * PAGE);
    for (size_t page = 0; page < common_pages; page++)
        *(uint64_t *)(common + page * PAGE) = mix(page);
    CHECK(pthread_barrier_init(&together, NULL, THREADS) == 0);
    pthread_attr_t small;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, STACK) == 0);
    pthread_t threads[THREADS], forker;
    CHECK(pthread_create(&forker, NULL, fork_and_map, NULL) == 0);
    for (size_t n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], &small, fault, (void *)n) == 0);
    for (size_t n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    is_over = 1;
    CHECK(pthread_join(forker, NULL) == 0);
    return 0;
}
