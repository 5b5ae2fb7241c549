/* A program of the class SCHED_DEADLINE can fork nothing. It keeps the class when it executes another. */
#include "hazard.h"

/* The kernel's struct sched_attr, in its first version. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

int main(int argc, char **argv)
{
    size_t bytes = hazard_bytes();
    char *p = map_private(bytes);
    fill(p, bytes, 1);
    if (argc == 1) {
        struct attributes deadline = {
            .size = sizeof deadline,
            .policy = SCHED_DEADLINE,
            .runtime = 5000000,
            .deadline = 20000000,
            .period = 20000000,
        };
        if (syscall(SYS_sched_setattr, 0, &deadline, 0) != 0) {
            printf("no SCHED_DEADLINE: %s\n", strerror(errno));
            return 77;
        }
        CHECK(holds(p, bytes, 1));
        CHECK(fork() == -1 && errno == EAGAIN);
        execl("/proc/self/exe", argv[0], "again", NULL);
        CHECK(0);
    }
    CHECK(sched_getscheduler(0) == SCHED_DEADLINE);
    CHECK(holds(p, bytes, 1));
    CHECK(fork() == -1 && errno == EAGAIN);
    return 0;
}
