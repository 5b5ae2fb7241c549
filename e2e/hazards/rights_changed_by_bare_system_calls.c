/* A program takes the rights to its memory away by an instruction of its own, as Go's runtime does: the pages leave and
   come back whole, and what is mapped there afterwards has the rights that were asked for. */
#include "hazard.h"

static long bare_mprotect(void *at, size_t bytes, long rights)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_mprotect), "D"(at), "S"(bytes), "d"(rights) : "rcx", "r11", "memory");
    return result;
}

static char *map(void *at, size_t bytes, int flags)
{
    char *memory = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

int main(void)
{
    size_t bytes = hazard_bytes() / 4;
    uint64_t *closed = (uint64_t *)map(NULL, bytes, 0);
    char *others = map(NULL, 3 * bytes, 0);
    for (size_t word = 0; word < bytes / 8; word++)
        closed[word] = mix(word);
    CHECK(bare_mprotect(closed, bytes, PROT_NONE) == 0);
    for (int round = 1; round <= 3; round++)
        memset(others, round, 3 * bytes);
    CHECK(bare_mprotect(closed, bytes, PROT_READ | PROT_WRITE) == 0);
    for (size_t word = 0; word < bytes / 8; word++)
        CHECK(closed[word] == mix(word));

    /* A mapping over it, and others that get its addresses once it is unmapped. */
    CHECK(bare_mprotect(closed, bytes, PROT_NONE) == 0);
    char *again = map(closed, bytes, MAP_FIXED);
    memset(again, 1, bytes);
    CHECK(bare_mprotect(again, bytes, PROT_READ) == 0);
    CHECK(munmap(again, bytes) == 0);
    for (int round = 0; round < 8; round++) {
        char *fresh = map(NULL, bytes / 8, 0);
        for (size_t at = 0; at < bytes / 8; at += PAGE)
            CHECK(fresh[at] == 0);
        memset(fresh, 2, bytes / 8);
    }
    puts("every page was there, with the rights asked for");
    return 0;
}
