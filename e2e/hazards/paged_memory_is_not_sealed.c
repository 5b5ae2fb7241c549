/* mseal of paged memory is refused as by a kernel without it, and the memory is as it was; of other memory it is the
 * kernel's. */
#include "hazard.h"

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

int main(void)
{
    size_t size = 8 * MB;
    char *p = map_private(size);
    fill(p, size, 3);
    long answer = syscall(SYS_mseal, p, size, 0);
    CHECK(answer == 0 || errno == ENOSYS);
    CHECK(!paged() || answer == -1);
    push_out();
    CHECK(holds(p, size, 3));
    if (answer != 0)
        CHECK(munmap(p, size) == 0);

    int file = open("/proc/self/exe", O_RDONLY);
    char *mapped = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(file >= 0 && mapped != MAP_FAILED);
    if (syscall(SYS_mseal, mapped, PAGE, 0) == 0)
        CHECK(munmap(mapped, PAGE) == -1 && errno == EPERM);
    return 0;
}
