/* A thread ends by the system call alone, and its stack is unmapped. A later one has its number, begins on a stack that
 * was never touched, and touches more memory than the frames hold. */
#include "hazard.h"

static pid_t first;
static char *memory;

static void *ends_by_the_system_call(void *unused)
{
    first = syscall(SYS_gettid);
    syscall(SYS_exit, 0);
    return unused;
}

static void *touches_if_it_has_the_number(void *found)
{
    if (syscall(SYS_gettid) == first) {
        fill(memory, hazard_bytes(), 5);
        CHECK(holds(memory, hazard_bytes(), 5));
        *(int *)found = 1;
    }
    return NULL;
}

/* The number before the next process's or thread's. */
static int is_set(pid_t number)
{
    int file = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
    int done = file >= 0 && dprintf(file, "%d", number - 1) > 0;
    close(file);
    return done;
}

int main(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    char *stack = map_private(MB), *later = map_private(MB);
    memory = map_private(hazard_bytes());
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, MB) == 0);
    CHECK(pthread_create(&thread, &attributes, ends_by_the_system_call, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && munmap(stack, MB) == 0);
    /* Other processes may take it first. */
    int found = 0;
    for (int n = 0; n < 200 && !found; n++) {
        if (!is_set(first)) {
            fputs("the number of the next thread cannot be chosen here\n", stderr);
            return 77;
        }
        CHECK(madvise(later, MB, MADV_DONTNEED) == 0);
        CHECK(pthread_attr_setstack(&attributes, later, MB) == 0);
        CHECK(pthread_create(&thread, &attributes, touches_if_it_has_the_number, &found) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    puts("done");
    return 0;
}
