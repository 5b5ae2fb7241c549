/* selfpage run --store ram:16M */
/* An access fails while the store is full and nothing can leave. Once memory is free again the same page is
 * as good as any, also where its neighbours came in first, and also where it leaves later. */
#include "hazard.h"

static int pipe_ends[2];

/* Reads a byte of a page in a system call. Returns an errno, or 0 if it is zero. */
static int peek(const char *page)
{
    char byte = 1;
    if (write(pipe_ends[1], page, 1) != 1)
        return errno;
    CHECK(read(pipe_ends[0], &byte, 1) == 1 && byte == 0);
    return 0;
}

int main(void)
{
    size_t bytes = 64 * MB, filled = 0;
    int noise = open("/dev/urandom", O_RDONLY);
    CHECK(noise >= 0 && pipe(pipe_ends) == 0);
    char *full = map_private(bytes), *pages = map_private(64 * PAGE);
    while (filled < bytes && read(noise, full + filled, PAGE) == (ssize_t)PAGE)
        filled += PAGE;
    int failed = peek(pages + 13 * PAGE);
    CHECK(failed == 0 || failed == EFAULT);
    CHECK(madvise(full, bytes, MADV_DONTNEED) == 0);
    /* The neighbours come in with a window over it. */
    for (int page = 10; page < 13; page++)
        while (peek(pages + page * PAGE) != 0)
            nap(1);
    nap(300);
    CHECK(peek(pages + 13 * PAGE) == 0);
    /* It leaves. */
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < 24 * MB; i += PAGE)
            full[i] = (char)round;
    for (int page = 0; page < 64; page++)
        CHECK(peek(pages + page * PAGE) == 0);
    puts("every page is zero");
    return 0;
}
