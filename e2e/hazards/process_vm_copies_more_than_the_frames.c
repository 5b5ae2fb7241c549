/* A process copies more out of another one, and into it, by one call than there are frames that
 * are not locked. */
#include "hazard.h"

enum { RANGES = 40 };

int main(void)
{
    size_t bytes = hazard_bytes() / 2;
    uint64_t *theirs = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *ours = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(theirs != MAP_FAILED && ours != MAP_FAILED);
    for (size_t at = 0; at < bytes / 8; at++)
        theirs[at] = mix(at);
    int ready[2], done[2];
    CHECK(pipe(ready) == 0 && pipe(done) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        for (size_t at = 0; at < bytes / 8; at += 512)
            theirs[at]++;
        CHECK(write(ready[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 1);
        for (size_t at = 0; at < bytes / 8; at++)
            CHECK(theirs[at] == mix(at) + 7);
        _exit(0);
    }
    char byte = 0;
    CHECK(child > 0 && read(ready[0], &byte, 1) == 1);
    char *locked = mmap(NULL, 7 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(locked != MAP_FAILED);
    size_t all = 0;
    while (all < 7 * MB && mlock(locked + all, MB / 4) == 0)
        all += MB / 4;
    /* More than this process's half: the other one waits, and gives frames. */
    CHECK(all > 5 * MB);
    /* Ranges of different lengths on either side, some of none. */
    struct iovec local[3] = { { ours, bytes / 3 }, { NULL, 0 }, { (char *)ours + bytes / 3, bytes - bytes / 3 } };
    struct iovec remote[RANGES];
    for (size_t n = 0, from = 0; n < RANGES; n++) {
        size_t to = n + 1 == RANGES ? bytes : from + (n % 7) * 1000 * 8;
        remote[n] = (struct iovec){ (char *)theirs + from, to - from };
        from = to;
    }
    CHECK(process_vm_readv(child, local, 3, remote, RANGES, 0) == (ssize_t)bytes);
    for (size_t at = 0; at < bytes / 8; at++) {
        CHECK(ours[at] == mix(at) + (at % 512 == 0));
        ours[at] = mix(at) + 7;
    }
    CHECK(syscall(SYS_process_vm_writev, child, local, 3L, remote, (long)RANGES, 0L) == (ssize_t)bytes);
    CHECK(write(done[1], &byte, 1) == 1);
    reap(child);
    /* What follows the end of memory is not copied, and what comes before it is. */
    char *edge = mmap(NULL, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(edge != MAP_FAILED && munmap(edge + MB / 2, MB / 2) == 0);
    struct iovec whole = { edge, MB }, into = { ours, MB };
    memset(edge, 7, MB / 2);
    CHECK(process_vm_readv(getpid(), &into, 1, &whole, 1, 0) == MB / 2);
    errno = 0;
    CHECK(process_vm_readv(getpid(), (struct iovec *)16, 1, &whole, 1, 0) == -1 && errno == EFAULT);
    CHECK(process_vm_readv(getpid(), &into, 1, &whole, 1, 1) == -1 && errno == EINVAL);
    puts("copied");
    return 0;
}
