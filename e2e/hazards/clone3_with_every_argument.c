/* clone3 by number: what the kernel refuses is refused with its error, also where the
 * arguments cannot be read; a structure longer than the kernel's own is taken if its end is
 * zero, and the child has its parent's memory. */
#include "hazard.h"

static long clone3(void *args, size_t size) { return syscall(SYS_clone3, args, size); }

static void refused(void *args, size_t size, int error)
{
    long answer = clone3(args, size);
    if (answer == 0)
        _exit(9);
    CHECK(answer == -1 && errno == error);
}

int main(void)
{
    alarm(100);
    refused(NULL, 0, EINVAL);
    refused(NULL, 63, EINVAL);
    refused(NULL, 64, EFAULT);
    refused(NULL, 88, EFAULT);
    refused(NULL, PAGE + 1, E2BIG);
    refused((void *)-8, 88, EFAULT);

    char *kept = map_private(MB), *at = map_private(3 * PAGE);
    fill(kept, MB, 1);
    CHECK(munmap(at + PAGE, PAGE) == 0);
    CHECK(mprotect(at + 2 * PAGE, PAGE, PROT_NONE) == 0);
    refused(at + PAGE, 88, EFAULT);
    refused(at + 2 * PAGE, 88, EFAULT);
    /* Its first half can be read, its second cannot. */
    refused(at + PAGE - 32, 64, EFAULT);

    uint64_t args[16] = {0};
    args[0] = CLONE_THREAD;
    refused(args, 64, EINVAL);
    args[0] = CLONE_SIGHAND;
    refused(args, 88, EINVAL);
    args[0] = 0, args[4] = SIGCHLD, args[15] = 1;
    refused(args, sizeof args, E2BIG);
    args[15] = 0;
    /* A stack without a size, and a size without a stack. */
    args[5] = (uintptr_t)kept;
    refused(args, 64, EINVAL);
    args[5] = 0, args[6] = PAGE;
    refused(args, 64, EINVAL);
    args[6] = 0;
    for (size_t size = 64; size <= sizeof args; size += 8) {
        push_out();
        long child = clone3(args, size);
        CHECK(child >= 0);
        if (child == 0)
            _exit(holds(kept, MB, 1) ? 0 : 1);
        reap(child);
    }
    /* The numbers that a child is to have are read where they are paged out. None is free: the
     * process's own is taken. */
    char *memory = map_private(MB);
    fill(memory, MB, 2);
    pid_t *numbers = (pid_t *)(memory + MB / 2);
    numbers[0] = getpid();
    args[8] = (uintptr_t)numbers, args[9] = 1;
    unsigned char resident = 1;
    for (int n = 0; n < 5 && resident; n++) {
        push_out();
        CHECK(mincore(numbers, PAGE, &resident) == 0);
    }
    long child = clone3(args, 88);
    if (child == 0)
        _exit(9);
    CHECK(child == -1 && (errno == EEXIST || errno == EPERM));
    return 0;
}
