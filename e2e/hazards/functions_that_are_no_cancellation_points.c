/* A thread that was cancelled calls functions that are no cancellation points: it comes back from each, and its process
   still forks. */
#include "hazard.h"
#include <spawn.h>

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

static void (*const steps[])(void) = {
    spawns, executes_in_a_vfork_child, executes_what_is_not_there, shares_memory, locks_more_than_it_may,
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
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(7);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    puts("no thread was cancelled");
    return 0;
}
