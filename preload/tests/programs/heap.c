/* The allocator's contract, as C and glibc state it. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "%d: %s\n", __LINE__, #what); _exit(1); } } while (0)

static void *handed[1000];
static void *giver(void *arg)
{
    for (int i = 0; i < 1000; i++) {
        handed[i] = malloc(16 + i * 37);
        memset(handed[i], i, 16 + i * 37);
    }
    return arg;
}

/* Before main, as libraries do it. */
static char *early;
__attribute__((constructor)) static void construct(void)
{
    early = strdup("early");
}

int main(void)
{
    CHECK(strcmp(early, "early") == 0);
    early = realloc(early, 100000);
    CHECK(strcmp(early, "early") == 0);
    free(early);

    for (size_t align = 8; align <= 1 << 22; align *= 2) {
        void *p;
        CHECK(posix_memalign(&p, align, 100) == 0 && (uintptr_t)p % align == 0);
        memset(p, 1, 100);
        free(p);
        p = aligned_alloc(align, align * 2);
        CHECK(p && (uintptr_t)p % align == 0);
        free(p);
        p = memalign(align, 3);
        CHECK(p && (uintptr_t)p % align == 0 && malloc_usable_size(p) >= 3);
        free(p);
    }
    void *p = (void *)1;
    CHECK(posix_memalign(&p, 3, 8) == EINVAL && posix_memalign(&p, 4, 8) == EINVAL && p == (void *)1);
    CHECK((uintptr_t)valloc(10) % 4096 == 0 && (uintptr_t)pvalloc(10) % 4096 == 0);

    volatile size_t huge = SIZE_MAX / 2;
    errno = 0;
    CHECK(malloc(huge) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(huge, 4) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(reallocarray(NULL, huge, 4) == NULL && errno == ENOMEM);
    CHECK(malloc(0) != NULL);
    CHECK(realloc(malloc(10), 0) == NULL);

    /* Large zeroed memory, grown and shrunk, keeps its contents. */
    size_t n = 8 << 20;
    unsigned char *big = calloc(n, 1);
    for (size_t i = 0; i < n; i += 4096)
        CHECK(big[i] == 0);
    for (size_t i = 0; i < n; i++)
        big[i] = i * 7;
    big = realloc(big, n * 3);
    for (size_t i = 0; i < n; i++)
        CHECK(big[i] == (unsigned char)(i * 7));
    big = realloc(big, n / 4);
    for (size_t i = 0; i < n / 4; i++)
        CHECK(big[i] == (unsigned char)(i * 7));
    free(big);

    /* Blocks of a thread that has ended are freed by another. */
    for (int round = 0; round < 10; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, giver, NULL) == 0 && pthread_join(thread, NULL) == 0);
        for (int i = 0; i < 1000; i++) {
            CHECK(((unsigned char *)handed[i])[15 + i * 37] == (unsigned char)i);
            free(handed[i]);
        }
    }
    free(NULL);
    malloc_trim(0);
    struct mallinfo2 info = mallinfo2();
    (void)info;
    return 0;
}
