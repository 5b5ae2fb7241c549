/* A program has closed its standard error, has a file of its own at that number, and no free descriptor: what the
 * library has to say goes nowhere, and not into that file. */
#include "hazard.h"

int main(void)
{
    char name[] = "fileXXXXXX", text[64] = {0};
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    CHECK(dup2(file, 2) == 2);
    CHECK(write(2, "first,", 6) == 6);
    struct rlimit few = {16, 16};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    while (dup(file) >= 0)
        ;
    /* Refused, or not: it is too much for the frames. */
    mlockall(MCL_CURRENT | MCL_FUTURE);
    munlockall();
    CHECK(write(2, "second", 6) == 6);
    ssize_t n = pread(2, text, sizeof text - 1, 0);
    CHECK(n == 12 && memcmp(text, "first,second", 12) == 0);
    return 0;
}
