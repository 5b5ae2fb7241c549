/* process_madvise may give up one's own memory, by whatever descriptor it names the process:
 * it is as if madvise had been called. */
#include "hazard.h"
#include <sys/uio.h>

#define PIDFD_OF_THIS_PROCESS -10001

static ssize_t advise(int process, struct iovec *parts, size_t count, int advice)
{
    return syscall(SYS_process_madvise, process, parts, count, advice, 0);
}

int main(void)
{
    size_t n = 16 * PAGE;
    char *p = map_private(n);
    int own = syscall(SYS_pidfd_open, getpid(), 0);
    CHECK(own >= 0);
    struct iovec parts[2] = {{p, 4 * PAGE}, {p + 8 * PAGE, 4 * PAGE}};
    for (int resident = 0; resident < 2; resident++)
        for (int way = 0; way < 2; way++) {
            fill(p, n, 1);
            if (!resident)
                push_out();
            ssize_t done = advise(way ? PIDFD_OF_THIS_PROCESS : own, parts, 2, MADV_DONTNEED);
            if (done < 0) {
                CHECK(errno == EINVAL || errno == EBADF);
                continue;
            }
            CHECK(done == (ssize_t)(8 * PAGE));
            CHECK(all_zero(p, 4 * PAGE) && all_zero(p + 8 * PAGE, 4 * PAGE));
            fill(p, 4 * PAGE, 1);
            fill(p + 8 * PAGE, 4 * PAGE, 2);
            CHECK(holds(p, 8 * PAGE, 1) && holds(p + 8 * PAGE, 4 * PAGE, 2));
        }
    CHECK(advise(-1, parts, 2, MADV_COLD) == -1 && errno == EBADF);
    CHECK(advise(own, parts, 2, -1) == -1 && errno == EINVAL);
    CHECK(advise(own, parts, 2, MADV_COLD) == (ssize_t)(8 * PAGE));
    CHECK(advise(own, (struct iovec *)8, 2, MADV_COLD) == -1 && errno == EFAULT);
    struct iovec wrong = {p + 1, PAGE};
    CHECK(advise(own, &wrong, 1, MADV_COLD) == -1 && errno == EINVAL);
    return 0;
}
