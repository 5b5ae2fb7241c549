/* User-supplied thread stacks, from malloc, mmap and a coroutine library's arena: glibc
 * puts the thread's control block at their end, and the kernel clears the thread's id
 * there when it exits, which is what a join waits for. */
#include "hazard.h"
#include <ucontext.h>

static uint64_t deep(int depth, uint64_t x)
{
    volatile uint64_t frame[256];
    for (int i = 0; i < 256; i++)
        frame[i] = x + i;
    uint64_t below = depth ? deep(depth - 1, mix(x)) : 0;
    for (int i = 0; i < 256; i++)
        CHECK(frame[i] == x + i);
    return below + frame[depth % 256];
}

static __thread uint64_t local[1000];
static void *body(void *arg)
{
    for (int i = 0; i < 1000; i++)
        local[i] = (uintptr_t)arg + i;
    uint64_t a = deep(200, (uintptr_t)arg);
    push_out();
    CHECK(deep(200, (uintptr_t)arg) == a);
    for (int i = 0; i < 1000; i++)
        CHECK(local[i] == (uintptr_t)arg + i);
    return arg;
}
static void *short_body(void *arg)
{
    uint64_t a = deep(20, (uintptr_t)arg);
    return (void *)(a ? arg : NULL);
}

static ucontext_t main_context, coroutine[8];
static int turns;
static void coroutine_main(int id)
{
    volatile uint64_t keep[4096];
    for (int i = 0; i < 4096; i++)
        keep[i] = mix(id + i);
    for (int turn = 0; turn < 5; turn++) {
        turns++;
        CHECK(swapcontext(&coroutine[id], &main_context) == 0);
        for (int i = 0; i < 4096; i++)
            CHECK(keep[i] == mix(id + i));
    }
}

int main(void)
{
    struct churn churn[1];
    churn_start(churn, 1);
    size_t size = MB;
    for (int round = 0; round < 3; round++) {
        pthread_t t[6];
        void *stack[6];
        for (uintptr_t i = 0; i < 6; i++) {
            pthread_attr_t attributes;
            pthread_attr_init(&attributes);
            if (i % 2)
                CHECK(posix_memalign(&stack[i], PAGE, size) == 0);
            else
                stack[i] = map_private(size);
            CHECK(pthread_attr_setstack(&attributes, stack[i], size) == 0);
            CHECK(pthread_create(&t[i], &attributes, body, (void *)(i + 1)) == 0);
        }
        for (uintptr_t i = 0; i < 6; i++) {
            void *result;
            CHECK(pthread_join(t[i], &result) == 0 && result == (void *)(i + 1));
            if (i % 2)
                free(stack[i]);
            else
                CHECK(munmap(stack[i], size) == 0);
        }
    }
    /* Many short-lived threads on ordinary stacks: glibc keeps and reuses those. */
    for (uintptr_t i = 1; i < 1500; i++) {
        pthread_t t;
        CHECK(pthread_create(&t, NULL, short_body, (void *)i) == 0);
        if (i % 4)
            CHECK(pthread_join(t, NULL) == 0);
        else
            CHECK(pthread_detach(t) == 0);
    }
    for (int id = 0; id < 8; id++) {
        CHECK(getcontext(&coroutine[id]) == 0);
        coroutine[id].uc_stack.ss_sp = id % 2 ? malloc(size) : map_private(size);
        coroutine[id].uc_stack.ss_size = size;
        coroutine[id].uc_link = &main_context;
        makecontext(&coroutine[id], (void (*)(void))coroutine_main, 1, id);
    }
    for (int turn = 0; turn < 6; turn++) {
        for (int id = 0; id < 8; id++)
            CHECK(swapcontext(&main_context, &coroutine[id]) == 0);
        push_out();
        if (turn == 5)
            break;
    }
    CHECK(turns == 40);
    churn_stop(churn, 1);
    return 0;
}
