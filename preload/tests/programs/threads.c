/* Ends of threads, by every way out, on stacks from everywhere. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "%d: %s (%d)\n", __LINE__, #what, errno); _exit(1); } } while (0)

static pthread_mutex_t *robust;
static pthread_key_t key;
static int unwound;

static void lock_in_destructor(void *arg) { CHECK(pthread_mutex_lock(arg) == 0); }
static void cleanup(void *arg) { unwound++; (void)arg; }
static void *returns(void *arg) { return arg; }
static void *exits(void *arg)
{
    pthread_cleanup_push(cleanup, NULL);
    pthread_exit(arg);
    pthread_cleanup_pop(0);
    return NULL;
}
static void *is_cancelled(void *arg)
{
    pthread_cleanup_push(cleanup, NULL);
    for (;;)
        pause();
    pthread_cleanup_pop(0);
    return arg;
}
static void *dies_with_lock(void *arg)
{
    CHECK(pthread_mutex_lock(&robust[0]) == 0);
    pthread_setspecific(key, &robust[1]);
    return arg;
}

static void *join(void *(*body)(void *), void *stack, size_t size)
{
    pthread_attr_t attributes;
    pthread_t thread;
    void *result;
    CHECK(pthread_attr_init(&attributes) == 0);
    if (stack)
        CHECK(pthread_attr_setstack(&attributes, stack, size) == 0);
    CHECK(pthread_create(&thread, &attributes, body, (void *)77) == 0);
    if (body == is_cancelled)
        CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    return result;
}

int main(void)
{
    size_t size = 256 << 10;
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *stacks[] = {NULL, mapped, aligned_alloc(4096, size)};
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < 3; i++) {
            CHECK(join(returns, stacks[i], size) == (void *)77);
            CHECK(join(exits, stacks[i], size) == (void *)77);
            CHECK(join(is_cancelled, stacks[i], size) == PTHREAD_CANCELED);
        }
    CHECK(unwound == 120);
    CHECK(munmap(mapped, size) == 0);

    robust = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust[0], &attributes);
    pthread_mutex_init(&robust[1], &attributes);
    pthread_key_create(&key, lock_in_destructor);
    join(dies_with_lock, NULL, 0);
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_mutex_lock(&robust[i]) == EOWNERDEAD);
        CHECK(pthread_mutex_consistent(&robust[i]) == 0 && pthread_mutex_unlock(&robust[i]) == 0);
    }
    return 0;
}
