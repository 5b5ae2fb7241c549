/* Calls whose range ends beyond a program's addresses are refused as a whole: the memory that they begin with stays. */
#include "hazard.h"

int main(void)
{
    size_t n = 64 * PAGE, beyond = 1ul << 47;
    char *p = map_private(n);
    for (int out = 0; out < 2; out++) {
        fill(p, n, 1);
        if (out)
            push_out();
        CHECK(munmap(p, beyond) == -1 && errno == EINVAL);
        CHECK(munmap(p, -(size_t)p) == -1 && errno == EINVAL);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        CHECK(mmap(p, beyond, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED && errno == ENOMEM);
        CHECK(mremap(p, beyond, PAGE, MREMAP_MAYMOVE) == MAP_FAILED && (errno == EINVAL || errno == EFAULT));
        CHECK(holds(p, n, 1));
    }
    puts("nothing has changed");
    return 0;
}
