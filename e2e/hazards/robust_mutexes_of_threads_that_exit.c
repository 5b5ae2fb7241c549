/* The kernel walks a dying thread's list of robust mutexes and marks them, and drops its
 * own write where the page is missing: the next locker must get EOWNERDEAD, not wait for
 * ever. Threads, then processes with the mutex in shared memory. What a thread held that is gone can
 * be locked in memory, and is there for a fork. */
#include "hazard.h"

struct cell {
    pthread_mutex_t mutex;
    char room[2 * 4096 - sizeof(pthread_mutex_t)];
};
enum { CELLS = 64 };
static struct cell *cell;

static void *dying(void *arg)
{
    size_t from = (uintptr_t)arg;
    for (size_t i = from; i < from + 8; i++)
        CHECK(pthread_mutex_lock(&cell[i].mutex) == 0);
    /* Push the mutexes, and this thread's own block, out before it ends. */
    push_out();
    if (from % 16)
        pthread_exit(NULL);
    return NULL;
}

static void owner_died(size_t i)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 10;
    int got = pthread_mutex_timedlock(&cell[i].mutex, &limit);
    if (got != EOWNERDEAD)
        fprintf(stderr, "mutex %zu: %d\n", i, got);
    CHECK(got == EOWNERDEAD);
    CHECK(pthread_mutex_consistent(&cell[i].mutex) == 0);
    CHECK(pthread_mutex_unlock(&cell[i].mutex) == 0);
}

static void *holds_three(void *arg)
{
    pthread_mutex_t *mutex = arg;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_mutex_lock(&mutex[i]) == 0);
    return NULL;
}

static void several_on_a_page(const pthread_mutexattr_t *attributes)
{
    pthread_mutex_t *mutex = map_private(PAGE);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_mutex_init(&mutex[i], attributes) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, holds_three, mutex) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(mlock(mutex, PAGE) == 0 && munlock(mutex, PAGE) == 0);
}

int main(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
    cell = map_private(CELLS * sizeof *cell);
    for (int i = 0; i < CELLS; i++)
        CHECK(pthread_mutex_init(&cell[i].mutex, &attributes) == 0);
    for (int round = 0; round < 3; round++) {
        pthread_t t[4];
        for (uintptr_t i = 0; i < 4; i++)
            CHECK(pthread_create(&t[i], NULL, dying, (void *)(i * 8 + round % 2 * 32)) == 0);
        for (int i = 0; i < 4; i++)
            CHECK(pthread_join(t[i], NULL) == 0);
        for (size_t i = 0; i < 32; i++)
            owner_died(i + round % 2 * 32);
    }
    several_on_a_page(&attributes);
    /* A process that exits or is killed with the lock held in shared memory, its list
     * head in memory of its own that is out. */
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    cell = mmap(NULL, CELLS * sizeof *cell, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(cell != MAP_FAILED);
    for (int i = 0; i < CELLS; i++)
        CHECK(pthread_mutex_init(&cell[i].mutex, &attributes) == 0);
    for (int i = 0; i < 4; i++) {
        pid_t child = checked_fork();
        if (child == 0) {
            for (int k = 0; k < 8; k++)
                CHECK(pthread_mutex_lock(&cell[i * 8 + k].mutex) == 0);
            push_out();
            if (i % 2)
                kill(getpid(), SIGKILL);
            exit(0);
        }
        CHECK(waitpid(child, NULL, 0) == child);
        for (int k = 0; k < 8; k++)
            owner_died(i * 8 + k);
    }
    return 0;
}
