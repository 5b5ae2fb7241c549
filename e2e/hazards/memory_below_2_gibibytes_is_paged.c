/* Memory asked for by MAP_32BIT, as just-in-time compilers do, lies there and is paged: it
 * counts within the frames. So is shared memory. It is cut, moved and given back like any other. */
#include "hazard.h"

#define PIECES 8

static char *low(size_t bytes, int kind)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE | PROT_EXEC, kind | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    CHECK(p != MAP_FAILED && (uintptr_t)p + bytes <= 1ul << 31);
    return p;
}

int main(void)
{
    size_t bytes = hazard_bytes() / PIECES / PAGE * PAGE;
    char *pieces[PIECES];
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = low(bytes, i % 4 == 3 ? MAP_SHARED : MAP_PRIVATE);
        fill(pieces[i], bytes, i);
    }
    for (int i = 0; i < PIECES; i++)
        CHECK(holds(pieces[i], bytes, i));
    /* A function in a page that has left. */
    static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};
    memcpy(pieces[0], code, sizeof code);
    push_out();
    CHECK(((int (*)(void))pieces[0])() == 42);
    CHECK(munmap(pieces[1] + bytes / 2, bytes / 2) == 0 && holds(pieces[1], bytes / 2, 1));
    char *moved = mremap(pieces[2], bytes, 2 * bytes, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && holds(moved, bytes, 2) && all_zero(moved + bytes, bytes));
    pid_t child = fork();
    if (child == 0) {
        CHECK(holds(pieces[4], bytes, 4) && holds(pieces[3], bytes, 3));
        fill(pieces[3], bytes, 33);
        _exit(0);
    }
    reap(child);
    CHECK(holds(pieces[4], bytes, 4) && holds(pieces[3], bytes, 33));
    return 0;
}
