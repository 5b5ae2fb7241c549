/* One thread maps and unmaps shared memory anew, another forks: each child uses shared memory, too. */
#include "hazard.h"

enum { FORKS = 60 };

static volatile int stop;
static char *shared;
static size_t bytes;

static void *map_again(void *unused)
{
    (void)unused;
    while (!stop) {
        char *second = mremap(shared, 0, bytes, MREMAP_MAYMOVE);
        CHECK(second != MAP_FAILED);
        CHECK(*(uint64_t *)second == word_at(1, 0));
        CHECK(munmap(second, bytes) == 0);
    }
    return NULL;
}

int main(void)
{
    alarm(60);
    bytes = 64 * PAGE;
    shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    fill(shared, bytes, 1);
    pthread_t mapper;
    CHECK(pthread_create(&mapper, NULL, map_again, NULL) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = checked_fork();
        if (child == 0) {
            alarm(30);
            char *second = mremap(shared, 0, bytes, MREMAP_MAYMOVE);
            CHECK(second != MAP_FAILED && holds(second, bytes, 1));
            char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            CHECK(own != MAP_FAILED);
            fill(own, bytes, 2);
            CHECK(madvise(own, bytes, MADV_REMOVE) == 0 && all_zero(own, bytes));
            _exit(0);
        }
        reap(child);
    }
    stop = 1;
    CHECK(pthread_join(mapper, NULL) == 0);
    CHECK(holds(shared, bytes, 1));
    return 0;
}
