/* Children are killed while they join, of a parent with paged shared memory, whose fork waits for what they inherit: it
 * returns soon, and with the child's number also where the kernel reaps the child at once. */
#include "hazard.h"

static volatile int stop;

/* Kills each child of the main thread some time after it has seen it. */
static void *killer(void *unused)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    for (unsigned n = 0; !stop; n++) {
        FILE *children = fopen(path, "r");
        int child;
        CHECK(children);
        if (fscanf(children, "%d", &child) == 1) {
            for (volatile unsigned spins = 0; spins < (1 + n % 16) * 50000; spins++)
                ;
            kill(child, SIGKILL);
        }
        fclose(children);
    }
    return unused;
}

static void *shared_memory(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

int main(void)
{
    size_t n = 2048 * PAGE;
    char *shared = shared_memory(n);
    fill(shared, n, 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, killer, NULL) == 0);
    for (int round = 0; round < 200; round++) {
        int reaps_itself = round % 2;
        CHECK(signal(SIGCHLD, reaps_itself ? SIG_IGN : SIG_DFL) != SIG_ERR);
        pid_t child = checked_fork();
        if (child == 0) {
            CHECK(holds(shared, n, 1));
            for (;;)
                pause();
        }
        int status;
        pid_t reaped = waitpid(child, &status, 0);
        if (reaps_itself)
            CHECK(reaped == -1 && errno == ECHILD);
        else
            CHECK(reaped == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(holds(shared, n, 1));
    return 0;
}
