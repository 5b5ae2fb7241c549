/* Parts of a large reservation are unmapped, mapped again by pieces and as a whole, and used: what comes is zero, what stays
 * has its contents, also in the child of a fork. */
#include "hazard.h"

#define WHOLE ((size_t)16 << 30)
#define ROUNDS 12
#define HUGE ((size_t)2 << 20)

static char *const base = (char *)0x280000000000;

static void *map_at(char *at, size_t n, int fixed)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed;
    char *p = mmap(at, n, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(p == at);
    return p;
}

/* Each 61st MiB of a range has a page, whose first byte tells where it is. */
static void mark(char *from, char *to, int by)
{
    for (char *at = from; at < to; at += (size_t)61 << 20)
        *at = by;
}

static void check(char *from, char *to, int by)
{
    for (char *at = from; at < to; at += (size_t)61 << 20)
        CHECK(*at == by);
}

int main(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        /* Holes that begin and end within a unit, and that do not. */
        size_t skew = round % 3 * 5 * PAGE, half = WHOLE / 2;
        char *end = base + WHOLE, *hole = base + WHOLE / 4 + skew, *rest = hole + half;
        map_at(base, WHOLE, 0);
        mark(base, hole, 1);
        mark(rest, end, 2);
        if (round % 2)
            mark(hole, rest, 3);
        CHECK(munmap(hole, half) == 0);
        check(base, hole, 1);
        check(rest, end, 2);
        unsigned char there;
        CHECK(mincore(hole, PAGE, &there) == -1 && errno == ENOMEM);

        /* A piece of the hole, then the rest of it. */
        char *piece = hole + HUGE * 7 + 3 * PAGE;
        size_t n = HUGE * 3 + PAGE;
        map_at(piece, n, MAP_FIXED_NOREPLACE);
        CHECK(piece[0] == 0 && piece[n - 1] == 0 && piece[HUGE] == 0);
        memset(piece, 4, n);
        map_at(hole, piece - hole, MAP_FIXED_NOREPLACE);
        map_at(piece + n, rest - (piece + n), MAP_FIXED_NOREPLACE);
        CHECK(hole[0] == 0 && piece[-1] == 0 && piece[n] == 0 && rest[-1] == 0);
        for (size_t at = 0; at < n; at += PAGE)
            CHECK(piece[at] == 4);
        mark(piece + n, rest, 5);
        pid_t child = checked_fork();
        if (child == 0) {
            check(base, hole, 1);
            check(rest, end, 2);
            check(piece + n, rest, 5);
            CHECK(piece[n - 1] == 4 && hole[PAGE] == 0);
            hole[PAGE] = 6;
            _exit(0);
        }
        CHECK(end_of(child) == 0);
        CHECK(hole[PAGE] == 0);

        /* Files in the place of parts. */
        char *file = base + HUGE * 3 + skew;
        int fd = open("/proc/self/exe", O_RDONLY);
        CHECK(fd >= 0);
        CHECK(mmap(file, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == file);
        CHECK(close(fd) == 0 && memcmp(file, "\177ELF", 4) == 0);
        CHECK(file[PAGE] == 0 && file[-1] == 0);
        check(rest, end, 2);
        CHECK(munmap(base, WHOLE) == 0);
    }
    return 0;
}
