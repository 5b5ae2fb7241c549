/* A process has many threads on stacks that it gave them, whose control blocks stay resident. Each child of a fork has one
 * thread: what its ancestors keep for theirs is paged out there, and several generations fit into the frames. */
#include "hazard.h"

enum { THREADS = 200, STACK = 64 << 10, GENERATIONS = 5 };

static int ends[2];
static char *kept;

static void *waits(void *arg)
{
    char byte;
    CHECK(read(ends[0], &byte, 1) == 0);
    return arg;
}

static pthread_t start(void *(*routine)(void *), void *arg)
{
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, map_private(STACK), STACK) == 0);
    CHECK(pthread_create(&thread, &attributes, routine, arg) == 0);
    CHECK(pthread_attr_destroy(&attributes) == 0);
    return thread;
}

/* Forks a child that does the same, by a thread of such a stack in every second generation. */
static void *forks(void *generations)
{
    long left = (long)generations;
    pid_t child = checked_fork();
    if (child > 0) {
        reap(child);
        return NULL;
    }
    alarm(100);
    CHECK(holds(kept, MB, 1));
    if (left % 2 == 1)
        CHECK(pthread_join(start(forks, (void *)(left - 1)), NULL) == 0);
    else if (left > 0)
        forks((void *)(left - 1));
    push_out();
    CHECK(holds(kept, MB, 1));
    _exit(0);
}

int main(void)
{
    alarm(100);
    pthread_t threads[THREADS];
    CHECK(pipe(ends) == 0);
    kept = map_private(MB);
    fill(kept, MB, 1);
    for (int n = 0; n < THREADS; n++)
        threads[n] = start(waits, NULL);
    forks((void *)GENERATIONS);
    close(ends[1]);
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    CHECK(holds(kept, MB, 1));
    return 0;
}
