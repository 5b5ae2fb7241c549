/* A program counts its allocations by a malloc and a realloc of its own over the C library's, by that library's own names,
   and has the C library free the blocks. It calls those names itself, too. */
#include "hazard.h"
#include <malloc.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static size_t count;

void *malloc(size_t size)
{
    count++;
    return __libc_malloc(size);
}

void *realloc(void *block, size_t size)
{
    count++;
    return __libc_realloc(block, size);
}

int main(void)
{
    char *blocks[1000];
    for (size_t i = 0; i < 1000; i++) {
        blocks[i] = malloc(i * 10 + 1);
        CHECK(blocks[i] != NULL);
        memset(blocks[i], (int)i, i * 10 + 1);
    }
    for (size_t i = 0; i < 1000; i += 2) {
        blocks[i] = realloc(blocks[i], 20000);
        CHECK(blocks[i] != NULL && blocks[i][i * 10] == (char)i);
    }
    for (size_t i = 0; i < 1000; i++)
        free(blocks[i]);
    char *text = strdup("a block of the C library's malloc");
    CHECK(text != NULL);
    free(text);
    CHECK(count >= 1500);

    char *zeros = __libc_calloc(100, 10);
    CHECK(zeros != NULL && zeros[999] == 0);
    free(zeros);
    char *aligned = __libc_memalign(4096, 100);
    CHECK(aligned != NULL && (uintptr_t)aligned % 4096 == 0 && malloc_usable_size(aligned) >= 100);
    aligned = realloc(aligned, 100000);
    CHECK(aligned != NULL);
    __libc_free(aligned);
    void *other = calloc(10, 10);
    CHECK(other != NULL);
    __libc_free(other);
    puts("every block was freed");
    return 0;
}
