/* Deep recursion on a large stack, long jumps out of it, pthread_cancel in the middle,
 * thread-local destructors, and main's own stack. */
#include "hazard.h"

static size_t limit;
static jmp_buf out;

static uint64_t dive(size_t used, uint64_t x, int jump)
{
    volatile uint64_t frame[512];
    for (int i = 0; i < 512; i += 37)
        frame[i] = x ^ i;
    uint64_t below = 0;
    if (used < limit)
        below = dive(used + sizeof frame + 64, mix(x), jump);
    else if (jump)
        longjmp(out, 7);
    for (int i = 0; i < 512; i += 37)
        CHECK(frame[i] == (x ^ i));
    return below + x;
}

static void *diver(void *arg)
{
    (void)arg;
    limit = hazard_bytes() / 2;
    uint64_t a = dive(0, 1, 0);
    push_out();
    CHECK(dive(0, 1, 0) == a);
    return NULL;
}

static pthread_key_t key;
static atomic_int destroyed;
static void destructor(void *block)
{
    CHECK(holds(block, 64 * 1024, 5));
    free(block);
    destroyed++;
}
static void *cancelled(void *arg)
{
    (void)arg;
    char *block = malloc(64 * 1024);
    fill(block, 64 * 1024, 5);
    pthread_setspecific(key, block);
    for (;;) {
        push_out();
        pthread_testcancel();
    }
    return NULL;
}

int main(void)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, hazard_bytes() + 8 * MB) == 0);
    pthread_t t;
    CHECK(pthread_create(&t, &attributes, diver, NULL) == 0);
    CHECK(pthread_join(t, NULL) == 0);
    limit = 6 * MB;
    uint64_t a = dive(0, 3, 0);
    for (volatile int i = 0; i < 20; i++)
        if (setjmp(out) == 0) {
            dive(0, 2, 1);
            CHECK(!"reached");
        }
    push_out();
    CHECK(dive(0, 3, 0) == a);
    CHECK(pthread_key_create(&key, destructor) == 0);
    for (int i = 0; i < 6; i++) {
        CHECK(pthread_create(&t, NULL, cancelled, NULL) == 0);
        nap(20);
        CHECK(pthread_cancel(t) == 0);
        void *result;
        CHECK(pthread_join(t, &result) == 0 && result == PTHREAD_CANCELED);
    }
    CHECK(destroyed <= 6);
    return 0;
}
