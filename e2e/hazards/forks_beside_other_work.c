/* A fork that waits holds up no other thread: not where its child is killed before it runs, and not where frames for the
 * child are missing. */
#include "hazard.h"

enum { KILLED = 60, LOCKED = 5 << 20 };

static volatile int stop, forking;
static volatile long mapped_while_forking;

static void *map_and_unmap(void *unused)
{
    (void)unused;
    while (!stop) {
        int before = forking;
        char *p = mmap(NULL, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(p != MAP_FAILED);
        p[5] = 1;
        CHECK(munmap(p, MB) == 0);
        mapped_while_forking += before && before == forking;
    }
    return NULL;
}

/* Kills each child of the first thread as it appears. */
static void *kill_children(void *unused)
{
    char path[64];
    sprintf(path, "/proc/%d/task/%d/children", getpid(), getpid());
    while (!stop) {
        char text[256] = "";
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0 && read(fd, text, sizeof text - 1) >= 0 && close(fd) == 0);
        if (atoi(text) > 0)
            kill(atoi(text), SIGKILL);
    }
    return unused;
}

static void children_that_are_killed(void)
{
    for (int i = 0; i < KILLED; i++) {
        pid_t child = fork();
        if (child == 0) {
            pause();
            _exit(1);
        }
        CHECK(child > 0 || errno == EAGAIN);
        int status;
        if (child > 0)
            CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
}

static void children_without_frames(void)
{
    char *locked = mmap(NULL, LOCKED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(locked != MAP_FAILED);
    fill(locked, LOCKED, 1);
    CHECK(mlock(locked, LOCKED) == 0);
    mapped_while_forking = 0;
    forking = 1;
    pid_t child = fork();
    if (child == 0)
        _exit(holds(locked, LOCKED, 1) ? 0 : 1);
    forking = 2;
    if (child < 0) {
        CHECK(paged() && errno == EAGAIN && mapped_while_forking > 0);
    } else {
        reap(child);
    }
    CHECK(munmap(locked, LOCKED) == 0);
}

int main(void)
{
    alarm(60);
    pthread_t mapper, killer;
    CHECK(pthread_create(&mapper, NULL, map_and_unmap, NULL) == 0);
    children_without_frames();
    CHECK(pthread_create(&killer, NULL, kill_children, NULL) == 0);
    children_that_are_killed();
    stop = 1;
    CHECK(pthread_join(mapper, NULL) == 0 && pthread_join(killer, NULL) == 0);
    return 0;
}
