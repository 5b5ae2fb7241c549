/* A file's pages, written or not, lie in memory at an address of the program's choice. They stay as they are when the memory
 * around them is unmapped, whichever part is the last. */
#include "hazard.h"
#include <sys/syscall.h>

#define PART ((size_t)1 << 20)

static char *const base = (char *)0x380000000000;

static char *anonymous(char *at, size_t n)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    CHECK(mmap(at, n, PROT_READ | PROT_WRITE, flags, -1, 0) == at);
    return at;
}

static char *written_file(char *at, int fd)
{
    int access = PROT_READ | PROT_WRITE;
    CHECK(mmap(at, PART, access, MAP_PRIVATE | MAP_FIXED, fd, 0) == at);
    at[0] = 7;
    at[PART - 1] = 8;
    return at;
}

int main(void)
{
    int fd = (int)syscall(SYS_memfd_create, "file", 0);
    CHECK(fd >= 0 && ftruncate(fd, PART) == 0);
    /* The file first, in the middle, and last. */
    for (int place = 0; place < 3; place++) {
        char *at = anonymous(base, 3 * PART);
        for (size_t page = 0; page < 3 * PART; page += PAGE)
            at[page] = 1;
        char *file = written_file(at + place * PART, fd);
        for (int part = 0; part < 3; part++)
            if (part != place)
                CHECK(munmap(at + part * PART, PART) == 0);
        CHECK(file[0] == 7 && file[PART - 1] == 8 && file[PAGE] == 0);
        /* New memory beside it. */
        char *beside = anonymous(at + (place + 1) % 3 * PART, PART);
        CHECK(beside[0] == 0 && beside[PART - 1] == 0);
        beside[0] = 2;
        CHECK(file[0] == 7 && file[PART - 1] == 8);
        CHECK(munmap(beside, PART) == 0);
        CHECK(file[0] == 7 && file[PART - 1] == 8);
        CHECK(munmap(file, PART) == 0);
    }
    return 0;
}
