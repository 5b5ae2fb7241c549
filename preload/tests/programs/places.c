/* Where mappings land: hints, fixed places, reservations, the break, static data. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { dprintf(2, "%d: %s (%d)\n", __LINE__, #what, errno); _exit(1); } } while (0)
#define MB (1ul << 20)

static char zeros[4 * MB];

static char *map(void *at, size_t n, int more)
{
    return mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
}

int main(void)
{
    for (size_t i = 0; i < sizeof zeros; i += 4096) {
        CHECK(zeros[i] == 0);
        zeros[i] = i / 4096;
    }
    for (size_t i = 0; i < sizeof zeros; i += 4096)
        CHECK(zeros[i] == (char)(i / 4096));

    /* A hint is taken where nothing is. */
    char *hinted = map((void *)0x123400000000, 2 * MB, 0);
    CHECK(hinted == (char *)0x123400000000);
    memset(hinted, 3, 2 * MB);
    char *other = map(hinted, MB, 0);
    CHECK(other != MAP_FAILED && other != hinted);
    CHECK(map(hinted + MB, MB, MAP_FIXED_NOREPLACE) == MAP_FAILED && errno == EEXIST);
    CHECK(munmap(hinted, MB) == 0 && hinted[MB] == 3);
    CHECK(map(hinted, MB, MAP_FIXED_NOREPLACE) == hinted && hinted[0] == 0 && hinted[MB - 1] == 0);
    CHECK(munmap(hinted, 2 * MB) == 0);

    /* More than any arena, and more again. */
    size_t huge = 100ul << 30;
    for (int i = 0; i < 3; i++) {
        char *p = map(NULL, huge, MAP_NORESERVE);
        CHECK(p != MAP_FAILED);
        p[0] = 1, p[huge / 2] = 2, p[huge - 1] = 3;
        CHECK(p[0] == 1 && p[huge / 2] == 2 && p[huge - 1] == 3 && p[huge / 3] == 0);
        CHECK(munmap(p, huge) == 0);
    }
    CHECK(map(NULL, 1ul << 47, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(map(NULL, SIZE_MAX, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(map(NULL, 0, 0) == MAP_FAILED && errno == EINVAL);

    /* Asked for below 4 GiB, or growing downwards. */
    char *low = map(NULL, MB, MAP_32BIT);
    CHECK(low != MAP_FAILED && (uintptr_t)low < 1ul << 32);
    low[5] = 5;
    CHECK(munmap(low, MB) == 0);

    /* Moved, grown, moved to a given place, and back. */
    char *p = map(NULL, 4 * MB, 0), *q = map(NULL, 16 * MB, 0);
    for (size_t i = 0; i < 4 * MB; i += 4096)
        *(size_t *)(p + i) = i + 1;
    char *wall = map(p + 4 * MB, 4096, MAP_FIXED_NOREPLACE);
    CHECK(mremap(p, 4 * MB, 8 * MB, 0) == MAP_FAILED && errno == ENOMEM);
    char *moved = mremap(p, 4 * MB, 8 * MB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved != p);
    char *fixed = mremap(moved, 8 * MB, 6 * MB, MREMAP_MAYMOVE | MREMAP_FIXED, q + 4 * MB);
    CHECK(fixed == q + 4 * MB);
    for (size_t i = 0; i < 4 * MB; i += 4096)
        CHECK(*(size_t *)(fixed + i) == i + 1);
    /* By number: the C library passes an address it was not given. */
    char *twin = (char *)syscall(SYS_mremap, fixed, 4 * MB, 4 * MB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(twin != MAP_FAILED && twin != fixed);
    for (size_t i = 0; i < 4 * MB; i += 4096)
        CHECK(*(size_t *)(twin + i) == i + 1 && *(size_t *)(fixed + i) == 0);
    CHECK(mprotect(twin, 4 * MB, PROT_READ) == 0);
    twin = mremap(twin, 4 * MB, 5 * MB, MREMAP_MAYMOVE);
    CHECK(twin != MAP_FAILED && *(size_t *)(twin + 4096) == 4097);
    CHECK(munmap(wall == MAP_FAILED ? NULL : wall, 4096) == 0);

    /* Thousands of mappings, given back in another order. */
    enum { MANY = 5000 };
    static char *many[MANY];
    for (int i = 0; i < MANY; i++) {
        many[i] = map(NULL, 4096 * (1 + i % 7), 0);
        CHECK(many[i] != MAP_FAILED);
        many[i][0] = i;
    }
    for (int i = 0; i < MANY; i++) {
        int k = i * 1237 % MANY;
        CHECK(many[k][0] == (char)k && munmap(many[k], 4096 * (1 + k % 7)) == 0);
    }
    for (int i = 0; i < MANY; i++) {
        char *again = map(NULL, 8192, 0);
        CHECK(again != MAP_FAILED && again[0] == 0 && again[4096] == 0);
        again[0] = again[4096] = 1;
        CHECK(i % 2 || munmap(again, 8192) == 0);
    }

    /* The break, up and down, by both names. */
    char *start = sbrk(0);
    CHECK(sbrk(3 * MB + 5) == start && sbrk(0) == start + 3 * MB + 5);
    memset(start, 9, 3 * MB + 5);
    CHECK(sbrk(-(long)(2 * MB)) == start + 3 * MB + 5);
    CHECK(start[MB] == 9 && brk(start + 4 * MB) == 0 && start[3 * MB + 4096] == 0);
    CHECK((char *)syscall(SYS_brk, start) == start);
    CHECK(sbrk(1l << 50) == (void *)-1 && errno == ENOMEM && sbrk(0) == start);

    /* By number. */
    char *numbered = (char *)syscall(SYS_mmap, NULL, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(numbered != MAP_FAILED);
    numbered[MB - 1] = 1;
    CHECK(syscall(SYS_madvise, numbered, MB, MADV_DONTNEED) == 0 && numbered[MB - 1] == 0);
    CHECK(syscall(SYS_munmap, numbered, MB) == 0);
    CHECK(syscall(SYS_munmap, numbered + 1, MB) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_getpid) == getpid());
    return 0;
}
