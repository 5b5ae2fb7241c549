/* Blocks of every size and alignment keep their bytes as they grow, shrink and are freed by several threads, blocks of
 * zeros are zero, and a size that cannot be is refused. */
#include "hazard.h"
#include <malloc.h>

#define BLOCKS 24
#define ROUNDS 1500

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Sizes around all that allocators tell apart: words, pages, thresholds. */
static size_t some_size(uint64_t *seed)
{
    size_t near[] = {1, 24, 4000, 4080, 4096, 65536, 131056, 131072, 262144, 1 << 20, 3 << 20};
    return near[next(seed) % 11] + next(seed) % 48;
}

struct block {
    unsigned char *at;
    size_t size;
    unsigned char mark;
};

/* The first and the last bytes, and one of each page. */
static void mark(struct block *b)
{
    for (size_t i = 0; i < b->size; i += i + 64 < b->size ? 61 : 1)
        b->at[i] = b->mark + i;
}

static void check(struct block *b, size_t size)
{
    for (size_t i = 0; i < size; i += i + 64 < b->size ? 61 : 1)
        CHECK(b->at[i] == (unsigned char)(b->mark + i));
}

static void *churn_blocks(void *arg)
{
    uint64_t seed = (uintptr_t)arg;
    struct block blocks[BLOCKS] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        struct block *b = &blocks[next(&seed) % BLOCKS];
        size_t size = some_size(&seed);
        if (!b->at) {
            size_t align = 1;
            switch (next(&seed) % 3) {
            case 0:
                b->at = malloc(size);
                break;
            case 1:
                b->at = calloc(size, 1);
                for (size_t i = 0; i < size; i += 512)
                    CHECK(b->at[i] == 0);
                CHECK(b->at[size - 1] == 0);
                break;
            default:
                align = (size_t)16 << next(&seed) % 10;
                CHECK(posix_memalign((void **)&b->at, align, size) == 0);
            }
            CHECK(b->at && (uintptr_t)b->at % align == 0 && (uintptr_t)b->at % 16 == 0);
        } else if (next(&seed) % 2) {
            check(b, b->size);
            free(b->at);
            b->at = NULL;
            continue;
        } else {
            check(b, b->size);
            size_t kept = b->size < size ? b->size : size;
            b->at = realloc(b->at, size);
            CHECK(b->at);
            /* What was marked is checked where it was kept. */
            for (size_t i = 0; i < kept; i += 61)
                if (i + 64 < b->size)
                    CHECK(b->at[i] == (unsigned char)(b->mark + i));
        }
        CHECK(malloc_usable_size(b->at) >= size);
        b->size = size;
        b->mark = next(&seed);
        mark(b);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].at)
            check(&blocks[i], blocks[i].size);
        free(blocks[i].at);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, churn_blocks, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    volatile size_t huge = SIZE_MAX / 2;
    errno = 0;
    CHECK(malloc(huge) == NULL && errno == ENOMEM);
    CHECK(malloc(huge * 2 + 1) == NULL && calloc(huge, 4) == NULL);
    char *kept = malloc(MB);
    kept[0] = 1;
    CHECK(realloc(kept, huge) == NULL && kept[0] == 1);
    free(kept);
    /* A step at a time: the bytes come along. */
    char *grown = NULL;
    for (size_t size = 0; size < 24 * MB; size += 64 << 10) {
        CHECK(grown = realloc(grown, size + (64 << 10)));
        memset(grown + size, (int)(size >> 16), 64 << 10);
    }
    for (size_t at = 0; at < 24 * MB; at += 4096)
        CHECK(grown[at] == (char)(at >> 16));
    CHECK(realloc(grown, 0) == NULL);
    return 0;
}
