/* A thread that was cancelled calls functions that are no cancellation points: it comes back from each, and its process
   still forks. */
#include "hazard.h"
#include <sys/ipc.h>
#include <sys/shm.h>

extern char **environ;

static pthread_barrier_t barrier;

static void spawns(void)
{
    char *arguments[] = {"/bin/true", NULL};
    pid_t child;
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
}

static void executes_in_a_vfork_child(void)
{
    char *arguments[] = {"/bin/true", NULL};
    if (vfork() == 0) {
        execve("/bin/true", arguments, environ);
        _exit(1);
    }
}

static void executes_what_is_not_there(void)
{
    char *arguments[] = {"/nonexistent", NULL};
    CHECK(execve("/nonexistent", arguments, environ) == -1 && errno == ENOENT);
}

static void shares_memory(void)
{
    for (int round = 0; round < 4; round++) {
        char *memory = mmap(NULL, MB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        memset(memory, 1, MB);
        mlock(memory, 4 * PAGE);
        munlock(memory, 4 * PAGE);
        CHECK(madvise(memory, 4 * PAGE, MADV_REMOVE) == 0);
        memory = mremap(memory, MB, MB / 2, MREMAP_MAYMOVE);
        CHECK(memory != MAP_FAILED);
        CHECK(munmap(memory, MB / 2) == 0);
    }
}

static void locks_more_than_it_may(void)
{
    mlockall(MCL_CURRENT);
    munlockall();
}

static void advises_itself(void)
{
    char *memory = map_private(MB);
    memset(memory, 1, MB);
    int own = syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec part = {memory, MB};
    ssize_t done = syscall(SYS_process_madvise, own, &part, 1, MADV_DONTNEED, 0);
    CHECK(done == -1 ? errno == EINVAL : done == (ssize_t)MB && all_zero(memory, MB));
    CHECK(munmap(memory, MB) == 0);
}

static void detaches_a_segment(void)
{
    char *memory = map_private(3 * MB);
    int id = shmget(IPC_PRIVATE, MB, 0600 | IPC_CREAT);
    CHECK(id >= 0);
    char *segment = shmat(id, memory + MB, SHM_REMAP);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0 && segment == memory + MB);
    CHECK(shmdt(segment) == 0 && munmap(memory, 3 * MB) == 0);
}

static void (*const steps[])(void) = {
    spawns, executes_in_a_vfork_child, executes_what_is_not_there, shares_memory, locks_more_than_it_may,
    advises_itself, detaches_a_segment,
};

static void *cancelled(void *step)
{
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    steps[(size_t)step]();
    return &barrier;
}

int main(void)
{
    for (size_t step = 0; step < sizeof steps / sizeof *steps; step++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
        CHECK(pthread_create(&thread, NULL, cancelled, (void *)step) == 0);
        pthread_barrier_wait(&barrier);
        CHECK(pthread_cancel(thread) == 0);
        pthread_barrier_wait(&barrier);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == &barrier);
        while (wait(NULL) > 0)
            ;
    }
    pid_t child = checked_fork();
    if (child == 0)
        _exit(7);
    int status = end_of(child);
    CHECK(WEXITSTATUS(status) == 7);
    puts("no thread was cancelled");
    return 0;
}
