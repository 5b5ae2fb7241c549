/* Threads with more values of their own than their control block has room for: the C library
 * clears the values of other threads in a fork's child, in memory that was pushed out. What lies
 * beside them stays. A thread of C11 is one of them. */
#include "hazard.h"
#include <semaphore.h>
#include <threads.h>

enum { KEYS = 100, BLOCKS = 200, BLOCK = 512 };
static pthread_key_t keys[KEYS];
static char *beside[2 * BLOCKS];
static sem_t ready, end;

static void blocks(int from)
{
    for (int n = from; n < from + BLOCKS; n++) {
        beside[n] = malloc(BLOCK);
        CHECK(beside[n] != NULL);
        memset(beside[n], 0x5a, BLOCK);
    }
}

static int has_values(void *arg)
{
    (void)arg;
    blocks(0);
    for (long n = 0; n < KEYS; n++)
        CHECK(pthread_setspecific(keys[n], (void *)(n + 1)) == 0);
    blocks(BLOCKS);
    sem_post(&ready);
    while (sem_wait(&end) != 0)
        ;
    for (long n = 0; n < KEYS; n++)
        CHECK(pthread_getspecific(keys[n]) == (void *)(n + 1));
    return 0;
}

static void *of_posix(void *arg)
{
    has_values(arg);
    return arg;
}

static void fork_beside(void)
{
    sem_wait(&ready);
    push_out();
    pid_t child = checked_fork();
    if (child == 0) {
        for (int n = 0; n < 2 * BLOCKS; n++)
            for (int at = 0; at < BLOCK; at++)
                CHECK(beside[n][at] == 0x5a);
        _exit(0);
    }
    reap(child);
    sem_post(&end);
}

int main(void)
{
    for (int n = 0; n < KEYS; n++)
        CHECK(pthread_key_create(&keys[n], NULL) == 0);
    CHECK(sem_init(&ready, 0, 0) == 0 && sem_init(&end, 0, 0) == 0);
    pthread_t posix;
    CHECK(pthread_create(&posix, NULL, of_posix, NULL) == 0);
    fork_beside();
    CHECK(pthread_join(posix, NULL) == 0);
    thrd_t c11;
    int result = 1;
    CHECK(thrd_create(&c11, has_values, NULL) == thrd_success);
    fork_beside();
    CHECK(thrd_join(c11, &result) == thrd_success && result == 0);
    return 0;
}
